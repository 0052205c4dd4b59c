"""What a bench of UCCL-EP (or DeepEP, whose lines are the same) printed, as typed values. Base units: bytes per second, seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from probes.reasons import Outcome, Reason, outcome_of

Operation = Literal["dispatch", "combine"]


@dataclass
class RankLines:
    """The low-latency lines of one rank. None: that line was not printed. `repeated` names lines that came more than once."""

    both_rate: float | None = None
    both_mean: float | None = None
    both_min: float | None = None
    both_max: float | None = None
    dispatch_rate: float | None = None
    dispatch_mean: float | None = None
    combine_rate: float | None = None
    combine_mean: float | None = None
    dispatch_send: float | None = None
    dispatch_receive: float | None = None
    combine_send: float | None = None
    combine_receive: float | None = None
    repeated: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether dispatch and combine of this rank were both measured. 0.00 stands for a kernel the profiler did not find."""
        figures = (self.dispatch_rate, self.dispatch_mean, self.combine_rate, self.combine_mean)
        return all(value is not None and value > 0 for value in figures)


@dataclass(frozen=True)
class Tuning:
    """One throughput line. `best`: chosen by the bench. Rates by leg of the path, seconds for the whole operation."""

    operation: Operation | None
    dtype: str | None
    best: bool
    default: bool
    nvl_rate: float | None
    rdma_rate: float | None
    seconds: float | None


@dataclass
class EpRun:
    """One parsed output. `marks` counts correctness marks of the low-latency test, `passed` and `failed` the single tests of the others."""

    ranks: dict[int, RankLines] = field(default_factory=dict)
    marks: int = 0
    passed: int = 0
    unfinished: int = 0
    tuning: list[Tuning] = field(default_factory=list)
    failures: list[tuple[Reason, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    reason: Reason = Reason.NO_ROWS
    message: str = ""

    @property
    def outcome(self) -> Outcome:
        """The outcome the reason belongs to."""
        return outcome_of(self.reason)

    def rows(self) -> list[dict[str, Any]]:
        """Flat records for a table: one per rank and operation, then one per best or default throughput line."""
        records: list[dict[str, Any]] = []
        for rank, lines in sorted(self.ranks.items()):
            if lines.usable:
                records += [{"rank": rank, "operation": "dispatch", "rate": lines.dispatch_rate, "seconds": lines.dispatch_mean},
                            {"rank": rank, "operation": "combine", "rate": lines.combine_rate, "seconds": lines.combine_mean}]
        records += [{"rank": None, "operation": line.operation, "dtype": line.dtype, "best": line.best, "nvl_rate": line.nvl_rate,
                     "rdma_rate": line.rdma_rate, "seconds": line.seconds} for line in self.tuning if line.best or line.default]
        return records
