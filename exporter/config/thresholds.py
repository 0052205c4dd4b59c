"""Floors and ceilings that the operator sets for measured figures."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from exporter.config.base import Line, Model
from exporter.config.probes import ProbeName
from exporter.config.semantic import refuse, repeated
from probes.kv.params import Operation as KvOperation
from probes.nccl.params import Operation as NcclOperation
from probes.units import Duration, Rate, Size, show_size

OPERATIONS: dict[ProbeName, tuple[str, ...]] = {
    "node": (), "mooncake": get_args(KvOperation), "nixl": get_args(KvOperation), "nccl": get_args(NcclOperation),
    "uccl-ep": ("dispatch", "combine"),
}


class Floor(Model):
    """What one figure must reach. Below it the run is `degraded`."""

    probe: Literal["mooncake", "nixl", "nccl", "uccl-ep"]
    """The probe."""
    operation: Annotated[str, Field(min_length=1, max_length=64)]
    """The operation, as in the metrics."""
    bytes: Annotated[Size, Field(ge=1)]
    """The block or buffer size, as in the metrics."""
    memory: Literal["dram", "gpu"] = "dram"
    """Where the bytes lie."""
    instance_type: Line | None = None
    """Only for nodes of this EC2 instance type; default: all."""
    min_bandwidth: Annotated[Rate, Field(gt=0)] | None = None
    """Least bandwidth."""
    max_p50: Annotated[Duration, Field(gt=0)] | None = None
    """Longest median time of one operation."""
    max_p99: Annotated[Duration, Field(gt=0)] | None = None
    """Longest 99th percentile of the time of one operation."""
    source: Annotated[str, Field(min_length=1, max_length=500)]
    """Where the figure comes from, for whoever is paged by it."""

    @model_validator(mode="after")
    def _consistent(self) -> Floor:
        known = OPERATIONS[self.probe]
        found: list[tuple[tuple[str | int, ...], str]] = []
        if self.operation not in known:
            found.append((("operation",), f"probe {self.probe} has no operation {self.operation!r}: use one of {', '.join(known)}"))
        if self.min_bandwidth is None and self.max_p50 is None and self.max_p99 is None:
            found.append(((), "a floor needs at least one of min_bandwidth, max_p50 and max_p99"))
        if self.max_p50 is not None and self.max_p99 is not None and self.max_p99 < self.max_p50:
            found.append((("max_p99",), "max_p99 is lower than max_p50"))
        refuse("Floor", found)
        return self

    @property
    def key(self) -> str:
        """What the floor is for, in words."""
        kind = f" on {self.instance_type}" if self.instance_type else ""
        return f"{self.probe} {self.operation} {show_size(self.bytes)} {self.memory}{kind}"


class Thresholds(Model):
    """Floors set by the operator."""

    floors: Annotated[tuple[Floor, ...], Field(max_length=10_000)] = ()
    """The floors; one with an `instance_type` wins over one without."""

    @model_validator(mode="after")
    def _unique(self) -> Thresholds:
        refuse("Thresholds", [(("floors", index), f"a second floor for {key}")
                              for index, key in repeated(floor.key for floor in self.floors)])
        return self
