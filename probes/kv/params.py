"""Parameters of the KV probes. Imports no engine, so that the service can check a configuration anywhere."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from probes.units import Duration, Rate, Size, show_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MIN_OPERATIONS = 3
"""Operations measured at least, whatever the limits say: below that a percentile means nothing."""

Operation = Literal["write", "read", "batch_write", "batch_read"]
Memory = Literal["dram", "gpu"]
T = TypeVar("T")

_VARIABLE = re.compile(r"^(MC|FI|UCX|NIXL)_[A-Z0-9_]+$")


def _each_once(values: list[T]) -> list[T]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} is given twice")
    return values


def _ascending(sizes: list[int]) -> list[int]:
    return sorted(_each_once(sizes))


def _engine_variables(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is not a variable of an engine: MC_*, FI_*, UCX_* or NIXL_* is needed")
    return env


Block = Annotated[Size, Field(ge=KIB, le=GIB)]


class KvParams(BaseModel):
    """What both KV probes share. The defaults are the light run: a few seconds on two cores."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    sizes: Annotated[list[Block], Field(min_length=1, max_length=16), AfterValidator(_ascending)] = [64 * KIB, MIB, 16 * MIB]
    """Bytes of one block, 1 KiB to 1 GiB; measured in ascending order."""
    operations: Annotated[list[Operation], Field(min_length=1), AfterValidator(_each_once)] = ["write", "read", "batch_write", "batch_read"]
    """`write` moves from rank 0 to rank 1, `read` the other way; the batch forms move `batch` scattered blocks with one call."""
    batch: int = Field(default=8, ge=1, le=4096)
    """Blocks of one batch operation."""
    threads: int = Field(default=1, ge=1, le=64)
    """Operations in flight at once, each on blocks of its own."""
    warmup: int = Field(default=2, ge=0, le=1000)
    """Operations per size, operation and thread that count as payload but not as a measurement."""
    iterations: int = Field(default=200, ge=1, le=1_000_000)
    """Most operations measured per size and operation, all threads together."""
    seconds: Annotated[Duration, Field(gt=0, le=600)] = 0.25
    """Most time measured per size and operation."""
    volume: Annotated[Size, Field(ge=MIB, le=1 << 44)] = GIB
    """Most bytes measured per size and operation. The smallest of the three limits ends a measurement, after 3 operations at least."""
    buffer: Annotated[Size, Field(ge=KIB, le=64 * GIB)] = 256 * MIB
    """Most bytes of memory registered with the engine on each rank."""
    memory: Memory = "dram"
    """`gpu` needs a CUDA device and an engine built for CUDA on both ranks."""
    gpu: int = Field(default=0, ge=0, le=63)
    """CUDA device of rank 0."""
    target_gpu: int | None = Field(default=None, ge=0, le=63)
    """CUDA device of rank 1; default: the same index as on rank 0."""
    ceiling: Annotated[Rate, Field(gt=0)] = 1e12
    """A bandwidth that no hardware of this kind reaches; a figure above it ends the run as `implausible`."""
    env: Annotated[dict[str, str], AfterValidator(_engine_variables)] = {}
    """Variables set for the engine (MC_*, FI_*, UCX_*, NIXL_*). Those that choose the transport count only from here."""

    @model_validator(mode="after")
    def _fits_the_buffer(self) -> KvParams:
        if self.region > self.buffer:
            raise ValueError(
                f"blocks of {show_size(max(self.sizes))} x batch {self.most_blocks} x threads {self.threads} need "
                f"{show_size(self.region)} of registered memory, buffer allows {show_size(self.buffer)}: "
                "raise buffer, or lower sizes, batch or threads"
            )
        return self

    @property
    def most_blocks(self) -> int:
        """Blocks of the largest operation."""
        return max(self.blocks(operation) for operation in self.operations)

    @property
    def region(self) -> int:
        """Bytes of memory registered on each rank."""
        return max(self.sizes) * self.most_blocks * self.threads

    def blocks(self, operation: Operation) -> int:
        """Blocks that one call of `operation` moves."""
        return self.batch if operation.startswith("batch_") else 1

    def most_bytes(self) -> tuple[int, int]:
        """Upper bound of the payload of one run: bytes from rank 0 to rank 1, and back."""
        totals = [0, 0]
        for operation in self.operations:
            for size in self.sizes:
                one = size * self.blocks(operation)
                measured = max(min(self.iterations, -(-self.volume // one)), MIN_OPERATIONS) + self.threads
                totals[0 if operation.endswith("write") else 1] += one * (measured + (self.warmup + 2) * self.threads)
        return totals[0], totals[1]


class MooncakeParams(KvParams):
    """Parameters of the `mooncake` probe."""

    protocol: Literal["efa", "tcp", "rdma"] | None = None
    """Protocol given to the engine; default: `efa` in EFA mode, else `tcp`. EFA mode accepts only `efa`."""
    device: str = Field(default="", max_length=1024)
    """Device filter given to the engine, a comma list of device names; empty means all."""


class NixlParams(KvParams):
    """Parameters of the `nixl` probe."""

    backend: Literal["LIBFABRIC", "UCX"] | None = None
    """NIXL backend; default: LIBFABRIC in EFA mode or where an EFA device is present, else UCX."""
    tls: str | None = Field(default=None, pattern=r"^[a-z0-9_,^:]+$", max_length=200)
    """UCX_TLS; default: `srd,self,cuda_copy` in EFA mode, else `tcp,self,cuda_copy`. EFA mode accepts no `tcp`."""
    provider: str | None = Field(default=None, pattern=r"^[a-z0-9_;,^]+$", max_length=200)
    """FI_PROVIDER; default: `efa` in EFA mode, else libfabric's own choice. EFA mode accepts only `efa`."""
