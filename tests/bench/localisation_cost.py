"""How many probe runs does it take to name the bad nodes, against the two-pass scheme on the same faults?

Both schemes begin with a round of all pairs. In ours an odd node sits that round out; the peer puts it in a second pair. Then come the
re-pairings: ours are those of two rounds, the peer's those of its second pass.
"""

from __future__ import annotations

from typing import Any

from bench.localisation_trials import QUIET, USUAL, Weather, trials

import probes

NAME = "localisation_cost"
PEER = "two-pass scheme of cluster-health-scanner"
COUNT = 300


def run() -> list[dict[str, Any]]:
    """All probe runs, and the re-pairings among them, in quiet weather and with runs that cannot be measured."""
    return [*_rows(QUIET, "every run can be measured"), *_rows(USUAL, "1 % of runs unknown, 0.1 % slow by chance")]


def _rows(weather: Weather, says: str) -> list[dict[str, Any]]:
    found = trials(COUNT, weather)
    extra, peer_extra = sum(one.extra for one in found), sum(one.peer_extra for one in found)
    all_runs, peer_runs = sum(one.nodes // 2 for one in found) + extra, sum(one.peer_runs for one in found)
    bad = sum(one.bad for one in found)
    where = (f"{bad} bad nodes in {COUNT} fabrics, {says}; ours named {sum(one.named for one in found)} and "
             f"{sum(one.innocent for one in found)} innocent, the peer {sum(one.peer_named for one in found)} and "
             f"{sum(one.peer_innocent for one in found)}")
    common = {"name": NAME, "unit": "runs", "peer": PEER, "versions": {"efa-pulse": probes.__version__}}
    return [
        {**common, "what": f"probe runs, the first round included, to name {where}", "value": all_runs, "peer_value": peer_runs,
         "ratio": round(all_runs / peer_runs, 4), "goal": "no more than the peer", "holds": all_runs <= peer_runs},
        {**common, "what": f"re-pairings among them ({says})", "value": extra, "peer_value": peer_extra,
         "ratio": round(extra / peer_extra, 3), "goal": None, "holds": None},
    ]
