"""Sanity floors: far below what healthy hardware reaches, for the time until a baseline is learned. The data is `floors.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

TABLE = Path(__file__).with_name("floors.yaml")


class SanityFloor(BaseModel):
    """One row; see the head of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    probe: Literal["mooncake", "nixl", "nccl", "uccl-ep"]
    memory: Literal["dram", "gpu"] | None = None
    min_bytes: int = Field(ge=1)
    instance_types: tuple[str, ...] = ()
    min_bandwidth: float | None = Field(default=None, gt=0)
    share: float | None = Field(default=None, gt=0, lt=1)
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _one_limit(self) -> SanityFloor:
        if (self.min_bandwidth is None) == (self.share is None):
            raise ValueError("a sanity floor has either min_bandwidth or share")
        return self

    def covers(self, probe: str, size: int, memory: str, instance_type: str | None) -> bool:
        """Whether the row holds for this figure."""
        return (probe == self.probe and size >= self.min_bytes and self.memory in (None, memory)
                and (not self.instance_types or instance_type in self.instance_types))


@lru_cache(maxsize=1)
def table() -> tuple[SanityFloor, ...]:
    """All rows, those of instance types first."""
    rows = [SanityFloor(**row) for row in yaml.safe_load(TABLE.read_text(encoding="utf-8"))]
    return tuple(sorted(rows, key=lambda row: not row.instance_types))


def sanity_floor(probe: str, size: int, memory: str, instance_type: str | None, ceiling: float | None) -> tuple[float, str] | None:
    """Bytes per second that a figure must reach, and where that comes from; None where nothing is known. `ceiling` is that of the run."""
    for row in table():
        if row.covers(probe, size, memory, instance_type):
            if row.min_bandwidth is not None:
                return row.min_bandwidth, f"sanity floor: {row.source}"
            if row.share is not None and ceiling is not None:
                return row.share * ceiling, f"sanity floor: {row.share:g} of the {ceiling / 1e9:.4g} GB/s of its devices, {row.source}"
    return None
