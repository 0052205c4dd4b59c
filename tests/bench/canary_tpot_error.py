"""How far is the canary's TPOT from the server's own account, on a busy machine, plain and TLS, beside a load generator's?"""

from __future__ import annotations

from typing import Any

from bench.canary_truth import compare, row

NAME = "canary_tpot_error"
LIMIT = 0.005


def run() -> list[dict[str, Any]]:
    """One row a protocol; errors are shares of the true value."""
    return [row(NAME, "TPOT", "ratio", "error p99 <= 0.5 %", LIMIT, one, one.ours.tpot, one.theirs.tpot)
            for one in compare(requests=60, tokens=32)]
