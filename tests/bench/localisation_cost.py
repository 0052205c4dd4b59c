"""How many probe runs does it take to name the bad nodes, against the two-pass scheme on the same faults?"""

from __future__ import annotations

from typing import Any

from bench.localisation_trials import QUIET, ROUNDS, USUAL, Weather, trials

import probes

NAME = "localisation_cost"
PEER = "two-pass scheme of cluster-health-scanner"
COUNT = 300


def run() -> list[dict[str, Any]]:
    """Re-pairings beyond the rounds, in quiet weather and with runs that cannot be measured."""
    return [_row(QUIET, "every run can be measured"), _row(USUAL, "1 % of runs unknown, 0.1 % slow by chance")]


def _row(weather: Weather, says: str) -> dict[str, Any]:
    found = trials(COUNT, weather)
    ours, peer = sum(one.extra for one in found), sum(one.peer_extra for one in found)
    bad = sum(one.bad for one in found)
    what = (f"re-pairings beyond the rounds for {bad} bad nodes in {COUNT} fabrics, {says}; ours over {ROUNDS} rounds "
            f"(named {sum(one.named for one in found)}, innocent {sum(one.innocent for one in found)}), the peer over its one "
            f"(named {sum(one.peer_named for one in found)}, innocent {sum(one.peer_innocent for one in found)})")
    return {"name": NAME, "what": what, "value": ours, "unit": "runs", "peer": PEER, "peer_value": peer, "ratio": round(ours / peer, 3),
            "goal": "no more than the peer", "holds": ours <= peer, "versions": {"efa-pulse": probes.__version__}}
