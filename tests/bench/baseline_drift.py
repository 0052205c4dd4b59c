"""Is a node that loses 1 % of its speed a day noticed, and how soon?"""

from __future__ import annotations

from typing import Any

from bench.baseline_step import PEER
from bench.baseline_trials import DAY, injected, spread
from bench.report import quantile

import probes
from exporter.launch.faults import FaultKind

NAME = "baseline_drift"
LOSS = 0.01
NODES, WEEKS, BAD, WORLDS = 64, 2.0, 12, 2
WATCHED = 6 * DAY


def run() -> list[dict[str, Any]]:
    """Share found, days until found, false alarms."""
    worlds = spread([(injected, (FaultKind.DRIFT, LOSS, WEEKS, WATCHED, BAD, NODES, 100 + seed)) for seed in range(WORLDS)])
    ours, peer = [at for one in worlds for at in one.found], [at for one in worlds for at in one.peer_found]
    node_weeks = sum(one.node_weeks for one in worlds)
    ours_false, peer_false = sum(one.ours_false for one in worlds), sum(one.peer_false for one in worlds)
    in_time, peer_in_time = (sum(at is not None and at <= 4 * DAY for at in found) / len(found) for found in (ours, peer))
    middle, peer_middle = (quantile([at if at is not None else WATCHED for at in found], 0.5) for found in (ours, peer))
    common = {"name": NAME, "peer": PEER, "versions": {"efa-pulse": probes.__version__}}
    where = f"{len(ours)} nodes that lose 1 % a day, measured every 30 min"
    return [
        {**common, "what": f"found within 4 days; {where}", "value": in_time, "unit": "", "peer_value": peer_in_time,
         "ratio": round(in_time / peer_in_time, 4) if peer_in_time else None, "goal": "at least 0.99", "holds": in_time >= 0.99},
        {**common, "what": f"time until found, median (6 days where never); {where}", "value": middle, "unit": "s",
         "peer_value": peer_middle, "ratio": round(middle / peer_middle, 4), "goal": "at most 3 days", "holds": middle <= 3 * DAY},
        {**common, "what": f"healthy nodes accused in {node_weeks:.0f} node-weeks beside them", "value": float(ours_false), "unit": "",
         "peer_value": float(peer_false), "ratio": round(ours_false / peer_false, 4) if peer_false else None,
         "goal": "at most 1 in 1,000 node-weeks", "holds": ours_false <= max(1.0, node_weeks / 1000)},
    ]
