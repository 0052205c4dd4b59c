"""How far is each gap between tokens from the server's own account, on a busy machine, plain and TLS, beside a load generator's?"""

from __future__ import annotations

from typing import Any

from bench.canary_truth import Comparison, compare, row

NAME = "canary_gap_error"
LIMIT = 0.0002


def run() -> list[dict[str, Any]]:
    """Per protocol one row for the gaps, and one for the token events that shared a read and so take part in none."""
    rows = []
    for one in compare(requests=80, tokens=16):
        rows += [row(NAME, "a gap of 20 ms", "s", "error p99 <= 0.2 ms", LIMIT, one, one.ours.gaps, one.theirs.gaps), _unresolved(one)]
    return rows


def _unresolved(one: Comparison) -> dict[str, Any]:
    what = f"share of {one.ours.events} token events that are unresolved, {one.protocol} ({one.ours.untimed} requests disturbed)"
    return {"name": NAME, "what": what, "value": one.ours.unresolved / one.ours.events, "unit": "ratio", "peer": None, "peer_value": None,
            "ratio": None, "goal": None, "holds": None, "versions": {}}
