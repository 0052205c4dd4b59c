"""Is a node that became 8 % slower noticed, how soon, and how often is a healthy one accused? 1,000 node-weeks of a simulated fleet."""

from __future__ import annotations

from typing import Any

from bench.baseline_trials import injected, spread, upgrade
from bench.report import quantile

import probes
from exporter.launch.faults import FaultKind

NAME = "baseline_step"
PEER = "5 % below the mean of the round, twice in a row (HyperPod notes)"
HOUR = 3600.0
STEP = 0.92
NODES, WEEKS, BAD, WORLDS = 250, 2.0, 30, 2
GAINS = (0.94, 1.05)


def run() -> list[dict[str, Any]]:
    """Share found, hours until found, false alarms, and what an upgrade of all nodes does."""
    found = spread([(injected, (FaultKind.SLOW_NODE, STEP, WEEKS, 86400.0, BAD, NODES, seed)) for seed in range(WORLDS)]
                   + [(upgrade, (gain, 64, seed)) for seed, gain in enumerate(GAINS)])
    worlds, upgrades = found[:WORLDS], found[WORLDS:]
    ours, peer = [at for one in worlds for at in one.found], [at for one in worlds for at in one.peer_found]
    node_weeks = sum(one.node_weeks for one in worlds)
    ours_false, peer_false = sum(one.ours_false for one in worlds), sum(one.peer_false for one in worlds)
    in_time = sum(at is not None and at <= 6 * HOUR for at in ours) / len(ours)
    peer_in_time = sum(at is not None and at <= 6 * HOUR for at in peer) / len(peer)
    late = quantile([at if at is not None else 86400.0 for at in ours], 0.99)
    peer_late = quantile([at if at is not None else 86400.0 for at in peer], 0.99)
    moved, peer_moved = sum(one.ours_false for one in upgrades), sum(one.peer_false for one in upgrades)
    common = {"name": NAME, "peer": PEER, "versions": {"efa-pulse": probes.__version__}}
    where = f"{len(ours)} nodes 8 % slower at once, measured every 30 min"
    return [
        {**common, "what": f"found within 6 h; {where}", "value": in_time, "unit": "", "peer_value": peer_in_time,
         "ratio": round(in_time / peer_in_time, 4) if peer_in_time else None, "goal": "at least 0.99", "holds": in_time >= 0.99},
        {**common, "what": f"time until found, p99 (a day where never); {where}", "value": late, "unit": "s", "peer_value": peer_late,
         "ratio": round(late / peer_late, 4), "goal": "at most 6 h", "holds": late <= 6 * HOUR},
        {**common, "what": f"healthy nodes accused in {node_weeks:.0f} node-weeks, step or drift", "value": float(ours_false), "unit": "",
         "peer_value": float(peer_false), "ratio": round(ours_false / peer_false, 4) if peer_false else None,
         "goal": "at most 1 in 1,000 node-weeks", "holds": ours_false <= node_weeks / 1000},
        {**common, "what": "nodes accused by an upgrade of 64 nodes over 12 h to software 6 % slower, and to one 5 % faster", "unit": "",
         "value": float(moved), "peer_value": float(peer_moved), "ratio": round(moved / peer_moved, 4) if peer_moved else None,
         "goal": "none", "holds": moved == 0},
    ]
