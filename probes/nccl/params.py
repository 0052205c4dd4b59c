"""Parameters of the `nccl` probe. Sizes are bytes, durations seconds, rates bytes per second. Imports no engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from probes.units import Rate, Size

Operation = Literal["all_reduce", "alltoall", "all_gather", "reduce_scatter", "sendrecv"]
Dtype = Literal["float", "bf16"]

KIB = 1024
MIB = 1024 * KIB
SIZE_LIMIT = 16 * 1024 * MIB
# All generations of the AWS plugin accept this name: current ones rename themselves to what NCCL_NET asks for.
AWS_PLUGIN = "AWS Libfabric"
# Interfaces that never lead to a peer: loopback, Docker's bridge and the link-local one of the EKS pod identity agent.
NO_PEER_INTERFACES = ("lo", "docker", "pod-id-link")


class NcclParams(BaseModel):
    """What one NCCL run measures. The defaults are the light one: seconds on one GPU of each of two nodes.

    `sizes` follow nccl-tests: bytes of the buffer of one rank (all_reduce, alltoall, sendrecv) or of all ranks together (all_gather,
    reduce_scatter). `ceilings` are plausibility bounds of busbw per operation; without them they are derived from
    `node_line_rate` (one way, all EFA interfaces of a node) and `local_line_rate` (NVLink, one way, one GPU).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["nccl4py", "nccl-tests"] = "nccl4py"
    operations: list[Operation] = Field(default=["all_reduce", "sendrecv"], min_length=1, max_length=5)
    sizes: list[Size] = Field(default=[MIB, 16 * MIB, 256 * MIB], min_length=1, max_length=16)
    dtype: Dtype = "float"
    iterations: int = Field(default=20, ge=2, le=1000)
    warmup: int = Field(default=5, ge=1, le=1000)
    in_place: bool = Field(default=False, description="measure every size in place as well")
    check: bool = Field(default=True, description="check every value on every rank after each size")
    rails: Literal["off", "together", "each"] = Field(
        default="off", description="GPU i to GPU i of the partner node: all at once, or one after the other, which names a slow NIC"
    )
    pairs: Literal["off", "together", "each"] = Field(
        default="off", description="every GPU with every other: in rounds of disjoint pairs, or one pair after the other; names a slow link"
    )

    gpus: int | Literal["all"] = Field(default=1, description="GPUs of each worker: 1 is the cheap shape, all the whole node")
    gpu: int | None = Field(default=None, ge=0, description="first GPU to use; default: by the worker's place among those of its node")
    allow_busy: bool = Field(default=False, description="measure although another process holds the GPU")
    min_free_bytes: Size = Field(default=0, ge=0, description="free memory a GPU must have beyond what the buffers need")

    net: str = Field(default=AWS_PLUGIN, min_length=1, max_length=64, description="NCCL_NET in EFA mode: another network is then an error")
    force_network: bool = Field(default=False, description="turn NVLink and shared memory off, so that GPUs of one node use the network")
    excluded_interfaces: list[str] = Field(default=list(NO_PEER_INTERFACES), max_length=16)
    allow_intra_node: bool = Field(default=False, description="in EFA mode, accept a run whose ranks all sit on one node")

    node_line_rate: Rate | None = Field(default=None, gt=0)
    gpu_line_rate: Rate | None = Field(default=None, gt=0, description="one way, the EFA interfaces nearest to one GPU")
    local_line_rate: Rate = Field(default=900e9, gt=0)
    ceilings: dict[Operation, Rate] = Field(default_factory=dict)
    tail_ratio: float = Field(default=10.0, gt=1, description="p99 over min from which a run is degraded")
    fall_ratio: float = Field(default=0.7, gt=0, le=1, description="share of the busbw of a 4 times smaller size that must be reached")
    link_ratio: float = Field(default=0.7, gt=0, le=1, description="share of the median rail or pair that every one must reach")

    tests_folder: str | None = Field(default=None, description="where the nccl-tests programs are; default: PATH and the usual folders")

    @field_validator("gpus")
    @classmethod
    def _at_least_one(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= 64:
            raise ValueError("between 1 and 64 GPUs, or all")
        return value

    @field_validator("sizes")
    @classmethod
    def _usable_sizes(cls, value: list[int]) -> list[int]:
        for size in value:
            if not 4 <= size <= SIZE_LIMIT:
                raise ValueError(f"a size is between 4 and {SIZE_LIMIT} bytes, got {size}")
        if len(set(value)) != len(value):
            raise ValueError("a size appears twice")
        return sorted(value)

    @field_validator("operations")
    @classmethod
    def _each_once(cls, value: list[Operation]) -> list[Operation]:
        if len(set(value)) != len(value):
            raise ValueError("an operation appears twice")
        return value

    @field_validator("excluded_interfaces")
    @classmethod
    def _plain_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if not name or any(mark in name for mark in ",^= \t\n"):
                raise ValueError(f"{name!r} is not the beginning of an interface name")
        return value

    @model_validator(mode="after")
    def _engine_can(self) -> NcclParams:
        for name, way in (("rails", self.rails), ("pairs", self.pairs)):
            if self.engine == "nccl-tests" and way != "off":
                raise ValueError(f"{name} need engine nccl4py: nccl-tests reports one figure for all pairs")
        return self
