"""What goes into a decision of the planner and what comes out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from exporter.inventory.model import Inventory, Node, Stratum
from exporter.plan.probes import ProbePlan
from exporter.repairs import Repair
from exporter.runs import RunSpec

Why = Literal["round", "leftover", "new", "suspect", "due"]
JOB_NAME_LIMIT = 52


def _never_good(probe: str, instance_id: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True)
class World:
    """What the planner looks at. `now` is Unix seconds; nodes are instance ids.

    `busy` names the run on each node that has one, whoever launched it; `running` counts probe runs in flight, those of the CLI included.
    `quiet` holds the reason for each probe that is in a quiet window. `good` says whether localisation knows a node as good for a probe.
    """

    now: float
    inventory: Inventory
    busy: Mapping[str, str] = field(default_factory=dict)
    running: int = 0
    paused: str | None = None
    quiet: Mapping[str, str] = field(default_factory=dict)
    background: Mapping[str, float] = field(default_factory=dict)
    repairs: Sequence[Repair] = ()
    good: Callable[[str, str], bool] = _never_good


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to start now. `nodes[r]` is the node of rank r; `round` and `group` say where it belongs."""

    run_id: str
    probe: str
    nodes: tuple[Node, ...]
    why: Why
    group: str
    round: int
    stratum: Stratum | None = None
    repair: Repair | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The identities of the nodes, by rank."""
        return tuple(node.instance_id for node in self.nodes)

    @property
    def target(self) -> str:
        """Name of what is measured: the node, or both ends of the pair."""
        return "--".join(node.name for node in self.nodes)

    def spec(self, plan: ProbePlan) -> RunSpec:
        """The run for a launcher."""
        labels = {"round": str(self.round), "why": self.why, "instance-ids": ",".join(self.ids)}
        if self.stratum is not None:
            labels["stratum"] = self.stratum.value
        return RunSpec(self.run_id, self.probe, self.target, tuple(node.name for node in self.nodes), plan.transport, plan.deadline,
                       plan.spec(self.nodes), labels)


@dataclass(frozen=True)
class Unplaced:
    """A re-pairing that could not start, and why; `lasting` when there is nobody to pair with at all."""

    repair: Repair
    why: str
    lasting: bool


@dataclass(frozen=True)
class Decision:
    """The runs to start now, re-pairings that found no place, and when to ask again at the latest (Unix seconds)."""

    runs: tuple[PlannedRun, ...]
    unplaced: tuple[Unplaced, ...]
    wake_at: float


def run_name(probe: str, mark: str, number: int, *parts: object) -> str:
    """A run id that the same decision always gets, whoever makes it: a valid Kubernetes name of at most 52 characters.

    `mark` tells kinds of runs apart, `parts` everything else that makes the run this one.
    """
    digest = hashlib.sha256("\0".join([probe, mark, str(number), *map(str, parts)]).encode()).hexdigest()[:16]
    name = f"{probe}-{mark}{number}-{digest}"
    if len(name) > JOB_NAME_LIMIT:
        raise ValueError(f"run name {name!r} is longer than {JOB_NAME_LIMIT} characters")
    return name
