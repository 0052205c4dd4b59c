"""Planning in a fleet: how fast rounds go, which gates close a node, and what the probes may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from exporter.config.base import Line, Model
from exporter.config.semantic import Found, refuse
from probes.units import Duration, Rate, Size

Share = Annotated[float, Field(ge=0, le=1)]


class Toleration(Model):
    """A taint that probes tolerate, as in a pod's `tolerations`."""

    key: Line | None = None
    """Key of the taint; default: every key, with operator `Exists`."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists` takes every value, `Equal` only `value`."""
    value: Annotated[str, Field(max_length=63)] = ""
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; default: all."""

    @model_validator(mode="after")
    def _consistent(self) -> Toleration:
        found: list[Found] = []
        if self.key is None and self.operator == "Equal":
            found.append((("key",), "a toleration without a key needs operator Exists"))
        if self.operator == "Exists" and self.value:
            found.append((("value",), "operator Exists takes no value"))
        if self.key == "node.kubernetes.io/unschedulable":
            found.append((("key",), "a cordoned node is never probed: remove this toleration"))
        refuse("Toleration", found)
        return self


class Gates(Model):
    """What closes a node to probes. A closed gate is shown for each node and is no fault of the node."""

    min_age: Annotated[Duration, Field(le=86400)] = 300.0
    """Time that a new node gets to settle before its first probe."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=64)] = (
        Toleration(key="nvidia.com/gpu", operator="Exists"), Toleration(key="aws.amazon.com/efa", operator="Exists"),
        Toleration(key="vpc.amazonaws.com/efa", operator="Exists"))
    """Taints that probes tolerate; those of GPU and EFA nodes by default."""
    max_background: Share = 0.1
    """Traffic of others on a node's EFA devices, as a share of its line rate, above which nothing is measured there."""
    max_background_rate: Annotated[Rate, Field(gt=0)] = 1e9
    """The same as a rate, for nodes whose line rate is not known."""
    require_image: bool = False
    """Probe only nodes that have the probe image already; a pre-pull has to bring it."""
    disk_reserve: Size = 20 << 30
    """Bytes that must stay free on the image disk after the image was pulled."""
    idle_skip: Literal["marked", "always", "never"] = "marked"
    """Leave out nodes without workload: those that an autoscaler has marked for removal, all, or none."""


class Budget(Model):
    """What probes may cost. A run that does not fit waits; re-pairing of a suspect may draw on the next day's budget once."""

    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Probe runs at the same time in the cluster; default: what a round needs to end within its interval, at most 64."""
    node_bytes_per_day: Annotated[Size, Field(ge=1 << 20)] = 2 << 40
    """Bytes that probes may send from one node in a day."""
    fleet_bytes_per_day: Annotated[Size, Field(ge=1 << 20)] | None = None
    """Bytes that probes may send from all nodes in a day; default: no limit but that of each node."""
    fabric_time: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Share of a node's time in which probes may move payload."""
    gpu_time: Annotated[float, Field(gt=0, le=1)] = 0.001
    """Share of a node's GPU time that probes may hold, counted in device-seconds from bind to release."""


class Planning(Model):
    """Rounds over the nodes of a fleet: who is probed when, and with whom."""

    spread: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of a probe's interval over which the runs of a round are spread."""
    stratum_interval: Annotated[Duration, Field(ge=60, le=366 * 86400)] = 86400.0
    """Every node is measured with a partner on the same leaf, on the same spine and across spines within this time, where there is one."""
    repairs: Annotated[int, Field(ge=1, le=1024)] = 16
    """Suspects that are re-paired at the same time."""
    gates: Gates = Gates()
    """What closes a node to probes."""
    budget: Budget = Budget()
    """What probes may cost."""
