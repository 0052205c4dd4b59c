"""What the probe tells a lane of the driver, and what a lane tells back."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Kernel = Literal["low-latency", "normal"]

MAX_TIMED = 200


class Job(BaseModel):
    """One rank's work. `device` is its GPU among the visible ones; `store` is host and port of rank 0's store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: int
    rank: int
    ranks: int
    local_ranks: int
    node: int
    store: tuple[str, int]
    kernel: Kernel
    tokens: int
    hidden: int
    topk: int
    experts: int
    fp8: bool
    iterations: int
    warmup: int
    disable_nvlink: bool
    bench_folder: str | None
    seed: int
    seconds: float


class Record(BaseModel):
    """What one rank measured of one operation.

    `bytes` is the payload of one operation as upstream counts it: everything a rank receives (normal kernels) or sends to the experts it
    selected (low latency), its own part included. `sent` and `received` are what really moved to and from other nodes (other ranks, when
    there is one node) over all launches.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: Literal["dispatch", "combine"]
    bytes: int
    times: list[float]
    wrong: int
    sent: int
    received: int
