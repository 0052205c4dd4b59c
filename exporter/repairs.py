"""A wish to measure a suspect again, passed from localisation to the planner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Repair:
    """One run that localisation needs at once. Nodes are instance ids.

    `partner` is the one it has to be, None for any known-good node that is not in `avoid`. `case` and `attempt` tell runs apart.
    """

    probe: str
    suspect: str
    case: str
    attempt: int
    why: str
    partner: str | None = None
    avoid: frozenset[str] = frozenset()
