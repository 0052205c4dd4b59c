"""What the probe tells a lane to do, and what a lane tells back: plain data on both sides of the link."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from probes.nccl.params import Dtype, Operation

# Per-iteration times of each row travel between the ranks: more than this adds nothing to a p99.
MAX_TIMED = 200


class Job(BaseModel):
    """One lane's work. `device` is the index among the visible GPUs; `need` bytes must be free on it.

    `wraps`: the worker counted from what it knows of its machine; where fewer GPUs are visible, the count starts again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: int
    wraps: bool
    operations: list[Operation]
    sizes: list[int]
    dtype: Dtype
    iterations: int
    warmup: int
    in_place: bool
    check: bool
    need: int
    allow_busy: bool
    makes_id: bool


class Meeting(BaseModel):
    """An exchange of this lane with one partner, in one turn; every other lane of the run waits, or meets somebody else."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    turn: int
    partner: int
    name: str


class Join(BaseModel):
    """Enter the communicator. `turns` counts those of the whole run, `meetings` are this lane's own in them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unique_id: str
    rank: int
    ranks: int
    seed: int
    turns: int = 0
    meetings: list[Meeting] = Field(default_factory=list)


class Record(BaseModel):
    """One measured row of one lane. Seconds per operation: `mean` over a batch that ran back to back, `times` of single operations.

    `launches` counts every operation of this row, warm-up and check included: their bytes moved as well.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: Operation
    bytes: int
    variant: str | None
    mean: float
    times: list[float]
    wrong: int | None
    launches: int
    cold: float | None = None
