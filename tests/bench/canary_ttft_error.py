"""How far is the canary's TTFT from the server's own account, on a busy machine, plain and TLS, beside a load generator's?"""

from __future__ import annotations

from typing import Any

from bench.canary_truth import compare, row

NAME = "canary_ttft_error"
LIMIT = 0.0002


def run() -> list[dict[str, Any]]:
    """One row a protocol."""
    return [row(NAME, "TTFT", "s", "error p99 <= 0.2 ms", LIMIT, one, one.ours.ttft, one.theirs.ttft)
            for one in compare(requests=200, tokens=4)]
