"""How much of a node's fabric time do the probes take, and how many bytes does one pair test move?"""

from __future__ import annotations

from typing import Any

from bench.cost_rig import NODES, day, declared, row

import probes

NAME = "cost_fabric"
GOAL = 0.005
PEER = "NVSentinel preflight, 25 all-reduces of 4 GB"
PEER_BYTES = 25 * 4e9
"""Bytes that leave a node at least: an all-reduce sends its buffer once or more (facts of the peer: 25 x 4 GB)."""


def run() -> list[dict[str, Any]]:
    """Shares of a simulated day and as declared, and the bytes of one KV run."""
    told = declared()
    most = max(one.cost.bytes for one in told.probes if one.probe in ("mooncake", "nixl"))
    return [
        row(NAME, f"share of a node's time in which payload moves, simulated day of {NODES} nodes with faults", day().fabric_time, GOAL),
        row(NAME, "the same as `plan` declares it (upper bound)", told.fabric_share, GOAL),
        {"name": NAME, "what": "bytes that leave a node in one pair test (upper bound)", "value": float(most), "unit": "B", "peer": PEER,
         "peer_value": PEER_BYTES, "ratio": round(most / PEER_BYTES, 4), "goal": "at least 10 times less", "holds": most * 10 <= PEER_BYTES,
         "versions": {"efa-pulse": probes.__version__}},
    ]
