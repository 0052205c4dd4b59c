"""How much of a node's GPU time do the probes and canaries take?"""

from __future__ import annotations

from typing import Any

from bench.cost_rig import NODES, day, declared, row

NAME = "cost_gpu"
GOAL = 0.001


def run() -> list[dict[str, Any]]:
    """Shares of a simulated day and as declared, canaries included."""
    return [
        row(NAME, f"share of a node's GPU time from bind to release, canaries included, simulated day of {NODES} nodes with faults",
            day().gpu_time, GOAL),
        row(NAME, "the same as `plan` declares it (upper bound)", declared().gpu_share, GOAL),
    ]
