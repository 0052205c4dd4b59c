"""What the control loop hears of: runs that ended, configurations, nodes, leadership; and what holds it back from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.config import Config
from exporter.inventory.model import Inventory
from exporter.runs import Run
from exporter.scheduler import Tick

STALE_SECONDS = 300.0
"""An inventory that is older than this is not planned with."""


@dataclass(frozen=True)
class Finished:
    """A run has ended."""

    run: Run


@dataclass(frozen=True)
class Loaded:
    """A configuration was read: the new one, or why it was refused. `at` is Unix seconds."""

    config: Config | None
    error: str | None
    at: float


@dataclass(frozen=True)
class Stop:
    """End the loop."""


@dataclass(frozen=True)
class Inventoried:
    """The nodes of the fleet are now these."""

    inventory: Inventory


@dataclass(frozen=True)
class Leading:
    """This replica plans and launches from now on, or no longer."""

    leading: bool


@dataclass(frozen=True)
class Conditions:
    """What holds back the planner from outside: why an operator paused it, and others' traffic, bytes per second by instance id.

    In a cluster also how it is followed: `trouble` (empty: none), `inventory_age` in seconds since everything was last known to be seen,
    and the requests sent so far by method. `requests` None means that there is no cluster. `other_leads`: another replica holds the Lease.
    """

    paused: str | None = None
    background: Mapping[str, float] = field(default_factory=dict)
    trouble: str = ""
    inventory_age: float = 0.0
    requests: Mapping[str, int] | None = None
    other_leads: bool = False

    @property
    def stale(self) -> bool:
        """Whether the inventory is too old to plan with: nodes may have left, and others may hold their devices."""
        return self.inventory_age > STALE_SECONDS

    @property
    def held(self) -> str | None:
        """Why nothing is planned now, None when planning goes on."""
        if self.paused is None and self.stale:
            return f"the cluster has not been seen for more than {STALE_SECONDS:g} s: {self.trouble or 'no answer'}"
        return self.paused


Event = Tick | Finished | Loaded | Inventoried | Leading | Stop
