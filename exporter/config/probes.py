"""The probes: which run, how often, between which nodes, with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from exporter.config.base import Model, Name
from exporter.config.inventory import Inventory
from exporter.config.schedule import Schedule, every
from exporter.config.semantic import Found, refuse, repeated
from probes.contract import Transport
from probes.kv.params import MooncakeParams, NixlParams
from probes.nccl.params import NcclParams
from probes.node_params import NodeParams
from probes.uccl_ep.params import UcclEpParams
from probes.units import Duration, show_duration

ProbeName = Literal["node", "mooncake", "nixl", "nccl", "uccl-ep"]
Deadline = Annotated[Duration, Field(ge=1, le=86400)]
MANY_RANKS = 4096


class Target(Model):
    """What one run measures: the node of each rank, rank 0 first."""

    name: Name | None = None
    """Default: the nodes joined by `--`."""
    nodes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MANY_RANKS)]
    """One node per rank; a node listed twice gets two ranks."""

    @property
    def label(self) -> str:
        """The target's name."""
        return self.name or "--".join(self.nodes)


class Probe(Model):
    """What every probe has."""

    RANKS: ClassVar[tuple[int, int]]
    """Fewest and most ranks of one run."""

    enabled: bool = True
    """Whether the probe runs on its schedule."""
    transport: Transport = "any"
    """`efa`: the transport is pinned and a fall-back is an error. `any`: measure what there is and report it."""
    targets: Annotated[tuple[Target, ...], Field(max_length=10_000)] = ()
    """What is measured. Default: every node (`node`); else a ring of pairs over the nodes, or two ranks on the only node."""
    deadline: Deadline
    schedule: Schedule
    params: BaseModel

    @model_validator(mode="after")
    def _consistent(self) -> Probe:
        found: list[Found] = []
        fewest, most = self.RANKS
        for index, target in enumerate(self.targets):
            ranks = len(target.nodes)
            if not fewest <= ranks <= most:
                need = f"{fewest} ranks" if fewest == most else f"{fewest} ranks or more"
                found.append((("targets", index, "nodes"), f"this probe needs {need}, one node each (it may repeat); got {ranks}"))
            if target.name is None and len(target.label) > 63:
                found.append((("targets", index), "the nodes' names are too long for a name made of them: give the target a name"))
        found += [(("targets", index), f"target {name!r} is listed twice")
                  for index, name in repeated(target.label for target in self.targets)]
        interval = self.schedule.interval
        if interval is not None and interval <= self.deadline:
            what = f"interval {show_duration(interval)} is not longer than the deadline {show_duration(self.deadline)}"
            found.append((("schedule", "interval"), what + ": a run could still go on when the next is due"))
        refuse(type(self).__name__, found)
        return self

    def spec(self, target: Target, types: Mapping[str, str | None]) -> dict[str, Any]:  # noqa: ARG002 - some probes look at them
        """The parameters that a worker gets: those that were set. `types` has the instance type of each node."""
        return self.params.model_dump(mode="json", exclude_unset=True)

    def chosen(self, inventory: Inventory) -> tuple[Target, ...]:
        """The targets, those of the default included."""
        if self.targets:
            return self.targets
        names = [node.name for node in inventory.members()]
        if not names:
            return ()
        if self.RANKS[1] == 1:
            return tuple(Target(nodes=(name,)) for name in names)
        if len(names) == 1:
            return (_pair(names[0], names[0]),)
        ring = zip(names, names[1:] + names[:1], strict=True) if len(names) > 2 else [(names[0], names[1])]
        return tuple(_pair(one, other) for one, other in ring)


class NodeProbe(Probe):
    """Preflight of a node: devices, libraries, limits. No GPU, no peer, seconds."""

    RANKS = (1, 1)
    deadline: Deadline = 60.0
    """Longest time of one run, from the start of a worker to its forced end."""
    schedule: Annotated[Schedule, every("1h")] = Schedule(interval=3600.0)
    """When it runs."""
    params: NodeParams = NodeParams()
    """What is expected of the node. `instance_type` comes from the inventory unless it is set here."""

    def spec(self, target: Target, types: Mapping[str, str | None]) -> dict[str, Any]:
        """The parameters, with the node's instance type."""
        known = types.get(target.nodes[0])
        return {**({"instance_type": known} if known else {}), **super().spec(target, types)}


class MooncakeProbe(Probe):
    """KV-sized blocks between two ranks with the Mooncake transfer engine."""

    RANKS = (2, 2)
    deadline: Deadline = 60.0
    """Longest time of one run, from the start of a worker to its forced end."""
    schedule: Annotated[Schedule, every("30m")] = Schedule(interval=1800.0)
    """When it runs."""
    params: MooncakeParams = MooncakeParams()
    """What is measured."""


class NixlProbe(Probe):
    """KV-sized blocks between two ranks with NIXL."""

    RANKS = (2, 2)
    deadline: Deadline = 60.0
    """Longest time of one run, from the start of a worker to its forced end."""
    schedule: Annotated[Schedule, every("30m")] = Schedule(interval=1800.0)
    """When it runs."""
    params: NixlParams = NixlParams()
    """What is measured."""


class NcclProbe(Probe):
    """NCCL collectives. Off by default: it takes GPUs."""

    RANKS = (2, MANY_RANKS)
    enabled: bool = False
    """Whether the probe runs on its schedule."""
    deadline: Deadline = 180.0
    """Longest time of one run, from the start of a worker to its forced end."""
    schedule: Annotated[Schedule, every("6h")] = Schedule(interval=21600.0)
    """When it runs."""
    params: NcclParams = NcclParams()
    """What is measured."""


class UcclEpProbe(Probe):
    """UCCL-EP dispatch and combine. Off by default: it takes whole nodes."""

    RANKS = (1, MANY_RANKS)
    enabled: bool = False
    """Whether the probe runs on its schedule."""
    deadline: Deadline = 300.0
    """Longest time of one run, from the start of a worker to its forced end."""
    schedule: Annotated[Schedule, every("7d")] = Schedule(interval=604800.0)
    """When it runs."""
    params: UcclEpParams = UcclEpParams()
    """What is measured."""


class Probes(Model):
    """One section per probe."""

    node: NodeProbe = NodeProbe()
    """Preflight of each node."""
    mooncake: MooncakeProbe = MooncakeProbe()
    """Mooncake transfer engine."""
    nixl: NixlProbe = NixlProbe()
    """NIXL."""
    nccl: NcclProbe = NcclProbe()
    """NCCL collectives."""
    uccl_ep: UcclEpProbe = Field(default=UcclEpProbe(), alias="uccl-ep")
    """UCCL-EP dispatch and combine."""

    def items(self) -> list[tuple[ProbeName, Probe]]:
        """Every section under its probe's name, enabled or not."""
        return [("node", self.node), ("mooncake", self.mooncake), ("nixl", self.nixl), ("nccl", self.nccl), ("uccl-ep", self.uccl_ep)]


def _pair(one: str, other: str) -> Target:
    label = f"{one}--{other}"
    # Names of 63 characters exist; the short form keeps both ends recognisable.
    return Target(nodes=(one, other), name=None if len(label) <= 63 else f"{one[:30].rstrip('-._')}--{other[-30:].lstrip('-._')}")
