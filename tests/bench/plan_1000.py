"""How long does it take to plan a round over 1000 nodes?"""

from __future__ import annotations

from typing import Any

from bench.plan_rig import rows


def run() -> list[dict[str, Any]]:
    """Rows of the planner over 1000 nodes."""
    return rows("plan_1000", 1000, 50.0)
