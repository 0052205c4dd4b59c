"""Is the right node named, in time, and no innocent one? 1,000 seeded fabrics of 64 to 1,024 nodes with 0 to 3 bad nodes."""

from __future__ import annotations

from typing import Any

from bench.localisation_trials import USUAL, trials

import probes

NAME = "localisation"
PEER = "two-pass scheme of cluster-health-scanner"
COUNT = 1000


def run() -> list[dict[str, Any]]:
    """Share of bad nodes named in two rounds (three when it met another bad node), and share of good nodes named."""
    found = trials(COUNT, USUAL)
    bad = sum(one.bad for one in found)
    good = sum(one.nodes - one.bad for one in found)
    in_time = sum(one.named - one.late for one in found) / bad
    innocent = sum(one.innocent for one in found) / good
    peer_named = sum(one.peer_named for one in found) / bad
    peer_innocent = sum(one.peer_innocent for one in found) / good
    where = f"{COUNT} fabrics, {bad} bad and {good} good nodes, 1 % of runs unknown, 0.1 % slow by chance"
    common = {"name": NAME, "unit": "", "peer": PEER, "versions": {"efa-pulse": probes.__version__}}
    return [
        {**common, "what": f"bad nodes named within two rounds, three when two met; {where}", "value": in_time, "peer_value": peer_named,
         "ratio": round(in_time / peer_named, 4), "goal": "at least 0.99", "holds": in_time >= 0.99},
        {**common, "what": f"good nodes named; {where}", "value": innocent, "peer_value": peer_innocent,
         "ratio": round(innocent / peer_innocent, 4) if peer_innocent else None, "goal": "at most 0.001", "holds": innocent <= 0.001},
    ]
