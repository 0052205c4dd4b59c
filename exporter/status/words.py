"""Words for spans, moments and gates that the page and the command line share."""

from __future__ import annotations

import time
from typing import Any

Json = dict[str, Any]


def grouped(gates: list[Json]) -> dict[tuple[str, str], list[str]]:
    """Nodes by gate and reason: the same reason holds for many."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in gates:
        nodes = found.setdefault((one["gate"], one["why"]), [])
        if one["node"] not in nodes:
            nodes.append(one["node"])
    return found


def ahead(seconds: float) -> str:
    """When something is due: `in 17 min`, or `now`."""
    return f"in {ago(seconds)}" if seconds > 1 else "now"


def ago(seconds: float) -> str:
    """A span for people: `42 s`, `17 min`, `5.2 h`, `3.1 d`."""
    seconds = max(0.0, seconds)
    for limit, scale, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / scale:.0f} {unit}" if unit != "h" else f"{seconds / scale:.1f} h"
    return f"{seconds / 86400:.1f} d"


def clock_time(at: float) -> str:
    """A moment as UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
