"""How much memory does the whole service need in a cluster of 1000 EFA nodes with 20,000 pods?"""

from __future__ import annotations

from typing import Any

from bench.service_rig import rows


def run() -> list[dict[str, Any]]:
    """Resident bytes of one process, libraries included."""
    return rows("service_rss_1000", 1000, 20_000, 300 << 20)
