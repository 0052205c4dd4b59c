"""How much memory does the whole service need in a cluster of 10,000 EFA nodes with 100,000 pods?"""

from __future__ import annotations

from typing import Any

from bench.service_rig import rows


def run() -> list[dict[str, Any]]:
    """Resident bytes of one process, libraries included."""
    return rows("service_rss_10000", 10_000, 100_000, 1 << 30)
