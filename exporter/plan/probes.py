"""The probes as the planner sees them: cadence, ranks, what a node must have room for, and the declared cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from exporter.config import Config
from exporter.config.cron import Cron
from exporter.config.probes import ProbeName
from exporter.inventory.model import Node
from exporter.layers import LAYERS
from exporter.plan.cost import Cost, declared
from probes.contract import Transport

GIB = 1 << 30


@dataclass(frozen=True)
class Needs:
    """What one worker asks of its node. `efa` and `gpu` None mean every device of the node; sizes are bytes, `cpu` millicores."""

    efa: int | None = 1
    gpu: int | None = 0
    hugepages: int = 0
    memory: int = 0
    cpu: int = 0
    image: str | None = None
    image_bytes: int | None = None


DEFAULT_NEEDS: dict[str, Needs] = {
    "node": Needs(efa=0, cpu=100, memory=GIB // 4),
    "mooncake": Needs(cpu=1000, memory=GIB),
    "nixl": Needs(cpu=1000, memory=GIB),
    "nccl": Needs(gpu=1, cpu=1000, memory=2 * GIB),
    "uccl-ep": Needs(efa=None, gpu=None, cpu=8000, memory=16 * GIB),
}
"""What the workers of each probe ask for where the launcher's configuration says nothing else."""

SpecOf = Callable[[tuple[Node, ...]], dict[str, Any]]


@dataclass(frozen=True)
class ProbePlan:
    """One probe on its schedule. `ranks` is 1 or 2; `interval` is seconds between two rounds, with `cron` the shortest time between two."""

    name: str
    ranks: int
    interval: float
    transport: Transport
    deadline: float
    needs: Needs
    cost: Cost
    spec: SpecOf = field(compare=False)
    cron: Cron | None = field(default=None, compare=False)
    start_spread: float = 10.0
    """Seconds over which the first runs after a cold start are spread."""

    def next_round(self, last: float) -> float:
        """When the round after the one that began at `last` (Unix seconds) is due."""
        if self.cron is None:
            return last + self.interval
        due = self.cron.next_after(datetime.fromtimestamp(last, timezone.utc))
        return due.timestamp() if due is not None else float("inf")

    @property
    def layer(self) -> int:
        """Lower layers are planned first and explain higher ones."""
        return LAYERS[self.name]


def probe_plans(config: Config, needs: Mapping[str, Needs] | None = None) -> list[ProbePlan]:
    """The enabled probes of a configuration, lowest layer first. `needs` comes from the launcher's configuration.

    A probe with targets of its own keeps its jobs in the scheduler and is not planned here.
    """
    plans: list[ProbePlan] = []
    for name, probe in config.probes.items():
        if not probe.enabled or probe.targets:
            continue
        when = probe.schedule.when(config.schedule)
        cron = Cron(when.cron, when.zone) if when.cron is not None else None
        want = (needs or {}).get(name, DEFAULT_NEEDS[name])
        ranks = 1 if probe.RANKS[1] == 1 else 2
        plans.append(ProbePlan(name, ranks, when.interval or _gap(cron), probe.transport, probe.deadline, want,
                               declared(name, probe.params), spec_of(name, probe.params.model_dump(mode="json", exclude_unset=True)),
                               cron, when.start_spread))
    return sorted(plans, key=lambda plan: (plan.layer, plan.name))


def _gap(cron: Cron | None) -> float:
    """The shortest time between two of the next sixteen times of a cron expression, seconds; a day when there are not two."""
    times: list[float] = []
    moment: datetime | None = datetime(2026, 1, 1, tzinfo=timezone.utc)
    while cron is not None and moment is not None and len(times) < 16:
        moment = cron.next_after(moment)
        if moment is not None:
            times.append(moment.timestamp())
    return min((later - earlier for earlier, later in itertools.pairwise(times)), default=86400.0)


def spec_of(name: ProbeName, params: dict[str, Any]) -> SpecOf:
    """What makes a worker's parameters of its nodes: `params`, for the preflight with what the inventory knows of the node."""
    def spec(nodes: tuple[Node, ...]) -> dict[str, Any]:
        if name != "node":
            return dict(params)
        node = nodes[0]
        known: dict[str, Any] = {}
        if node.instance_type is not None:
            known["instance_type"] = node.instance_type
        if node.efa is not None:
            known["allocatable"] = node.efa.allocatable
        return {**known, **params}

    return spec
