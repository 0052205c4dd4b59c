"""What an EC2 instance type should have: number and rate of EFA devices, accelerators, RDMA in hardware. The data is `instances.yaml`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

TABLE = Path(__file__).with_name("instances.yaml")


class InstanceType(BaseModel):
    """One row. Rates are Gb/s of one device as AWS writes them; None means no source says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    efa: int = Field(ge=1)
    gbit: float = Field(gt=0)
    gpus: int | None = None
    rdma_read: bool | None = None
    rdma_write: bool | None = None
    source: str

    @property
    def rdma(self) -> bool | None:
        """Whether the hardware does RDMA of any kind. None: not known."""
        if self.rdma_read or self.rdma_write:
            return True
        return None if self.rdma_read is None or self.rdma_write is None else False

    @property
    def line_rate(self) -> float:
        """All devices together in one direction, bytes per second."""
        return self.efa * self.gbit * 1e9 / 8


@lru_cache(maxsize=1)
def table() -> dict[str, InstanceType]:
    """All known instance types by name."""
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: InstanceType(name=name, **row) for name, row in rows.items()}


def lookup(name: str | None) -> InstanceType | None:
    """The row of an instance type, or None when it is not known or has no EFA in the table."""
    return table().get(name) if name else None


def all_rdma(names: Iterable[str | None]) -> bool | None:
    """False when none of these instance types has RDMA, True when all have it, None when they differ or one is not known."""
    known = {row.rdma if row is not None else None for row in map(lookup, names)}
    return known.pop() if len(known) == 1 else None
