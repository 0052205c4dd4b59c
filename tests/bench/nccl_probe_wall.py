"""How long does a whole NCCL probe take, from the start of its workers to their results, against nccl-tests at the same size?"""

from __future__ import annotations

import statistics
from typing import Any

from bench.nccl_peer import PEER, compare

GOAL_SECONDS = 10.0


def run() -> list[dict[str, Any]]:
    """One row, in seconds."""
    rounds = compare("all_reduce", 256 << 20)
    value, peer_value = statistics.median(rounds.our_walls), statistics.median(rounds.their_walls)
    return [{"name": "nccl_probe_wall", "what": "whole probe, all_reduce at 256 MiB, 2 GPUs, values checked", "value": value, "unit": "s",
             "peer": f"{PEER}, program alone", "peer_value": peer_value, "ratio": value / peer_value, "goal": f"<= {GOAL_SECONDS:.0f} s",
             "holds": value <= GOAL_SECONDS, "versions": rounds.versions}]
