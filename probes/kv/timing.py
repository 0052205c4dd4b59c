"""When a measurement ends, and what its times say."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from probes.kv.params import MIN_OPERATIONS
from probes.reasons import Reason
from probes.worker import ProbeFailure


@dataclass
class Samples:
    """Times of one size of one operation: `latencies` from post to completion, `posts` of the posting call alone, `seconds` of it all."""

    latencies: list[float] = field(default_factory=list)
    posts: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def operations(self) -> int:
        """Operations that completed."""
        return len(self.latencies)


@dataclass(frozen=True)
class Budget:
    """When to stop: the smallest of three limits, but not before `least` operations, and always at `ends_at` (monotonic seconds)."""

    iterations: int
    seconds: float
    ends_at: float
    least: int = MIN_OPERATIONS

    @classmethod
    def of(cls, *, iterations: int, seconds: float, volume: int, bytes_each: int, ends_at: float, threads: int = 1) -> Budget:
        """The share of one of `threads` threads."""
        most = max(min(iterations, -(-volume // bytes_each)), MIN_OPERATIONS)
        least = -(-MIN_OPERATIONS // threads)
        return cls(iterations=max(most // threads, least), seconds=seconds, ends_at=ends_at, least=least)

    def more(self, done: int, started: float) -> bool:
        """Whether another operation is due, `done` having ended since `started` (perf_counter seconds)."""
        if time.monotonic() >= self.ends_at:
            raise ProbeFailure(Reason.DEADLINE, f"the time ran out after {done} operations")
        if done < self.least:
            return True
        return done < self.iterations and time.perf_counter() - started < self.seconds


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least `share` of all do not exceed. `ordered` ascends and is not empty."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def statistics(values: Sequence[float]) -> dict[str, float]:
    """`min`, `p50`, `p99`, `max` and `mean` of at least one value."""
    ordered = sorted(values)
    return {"min": ordered[0], "p50": percentile(ordered, 0.5), "p99": percentile(ordered, 0.99), "max": ordered[-1],
            "mean": math.fsum(ordered) / len(ordered)}


def bandwidth(total: int, seconds: float, ceiling: float, what: str) -> float:
    """Bytes per second. Raises ProbeFailure (`implausible`) above `ceiling`: an engine that moves nothing is very fast."""
    if not seconds > 0 or total / seconds > ceiling:
        raise ProbeFailure(Reason.IMPLAUSIBLE, f"{what}: {total} bytes in {seconds:.3g} s is more than the ceiling of {ceiling:.3g} B/s")
    return total / seconds
