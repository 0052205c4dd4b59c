"""From what every lane measured to what the run measured: the slowest rank sets the time, wrong elements add up.

Statistics over the single operations are nccl-tests' own (`computeIterStats`, nearest rank), over the slowest rank of each iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probes.nccl.factors import bandwidths, leaving_bytes
from probes.nccl.job import Record
from probes.nccl.meetings import RAIL, ranks_of
from probes.result import Measurement

Key = tuple[str, str, int]


@dataclass(frozen=True)
class Merged:
    """One row over several lanes or ranks. `ranks_wrong`: which of them held wrong elements."""

    operation: str
    variant: str
    bytes: int
    mean: float
    times: tuple[float, ...]
    wrong: int | None
    launches: int
    cold: float | None
    ranks_wrong: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """What the same row is called on every rank."""
        return self.operation, self.variant, self.bytes


def of_record(record: Record, rank: int) -> Merged:
    """One lane's row as a merged one."""
    return Merged(record.operation, record.variant or "", record.bytes, record.mean, tuple(record.times), record.wrong, record.launches,
                  record.cold, (rank,) if record.wrong else ())


def merge(rows: Sequence[Merged]) -> list[Merged]:
    """Join rows with the same key, in order of first appearance. Raises ValueError when ranks timed different numbers of operations."""
    groups: dict[Key, list[Merged]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    return [_join(group) for group in groups.values()]


def _join(group: list[Merged]) -> Merged:
    first = group[0]
    if any(len(row.times) != len(first.times) for row in group):
        raise ValueError(f"{first.operation} at {first.bytes} bytes was timed {sorted({len(row.times) for row in group})} times")
    checks = [row.wrong for row in group if row.wrong is not None]
    colds = [row.cold for row in group if row.cold is not None]
    return Merged(first.operation, first.variant, first.bytes, max(row.mean for row in group),
                  tuple(max(times) for times in zip(*(row.times for row in group), strict=True)), sum(checks) if checks else None,
                  max(row.launches for row in group), max(colds) if colds else None,
                  tuple(sorted({rank for row in group for rank in row.ranks_wrong})))


def to_json(row: Merged) -> list[object]:
    """A row as it travels between ranks: times in units of 10 ns, the resolution of nothing better than that."""
    return [row.operation, row.variant, row.bytes, row.mean, [round(time * 1e8) for time in row.times], row.wrong, row.launches, row.cold,
            list(row.ranks_wrong)]


def from_json(value: object) -> Merged:
    """The row that `to_json` made. Raises ValueError for anything else."""
    parts: list[Any] = value if isinstance(value, list) else []
    try:
        operation, variant, size, mean, times, wrong, launches, cold, ranks_wrong = parts
        return Merged(str(operation), str(variant), int(size), float(mean), tuple(int(time) * 1e-8 for time in times),
                      None if wrong is None else int(wrong), int(launches), None if cold is None else float(cold),
                      tuple(int(rank) for rank in ranks_wrong))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a rank sent a row that cannot be read: {error}") from None


def statistics(times: Sequence[float]) -> dict[str, float]:
    """min, p50, p99, max, mean and stdev in seconds. cv is stdev / mean."""
    ordered = sorted(times)
    count = len(ordered)
    mean = sum(ordered) / count
    return {"min": ordered[0], "p50": ordered[count // 2], "p99": ordered[min(count - 1, (count * 99 + 99) // 100 - 1)], "max": ordered[-1],
            "mean": mean, "stdev": math.sqrt(sum((time - mean) ** 2 for time in ordered) / count)}


def measurements(rows: Sequence[Merged], ranks: int) -> list[Measurement]:
    """Columns over sizes, one measurement per operation and variant. Bandwidth is busbw from the batch, latency from single operations."""
    groups: dict[tuple[str, str], list[Merged]] = {}
    for row in rows:
        groups.setdefault((row.operation, row.variant), []).append(row)
    return [_columns(sorted(group, key=lambda row: row.bytes), ranks) for group in groups.values()]


def _columns(group: list[Merged], ranks: int) -> Measurement:
    operation, variant = group[0].operation, group[0].variant
    rates = [bandwidths(operation, ranks, row.bytes, row.mean) for row in group]
    stats = [statistics(row.times) for row in group]
    checked = any(row.wrong is not None for row in group)
    colds = [row.cold for row in group if row.cold is not None]
    return Measurement(
        operation=operation, memory="gpu", kind="busbw", variant=variant or None, bytes=[row.bytes for row in group],
        algbw=[algbw for algbw, _ in rates], bandwidth=[busbw for _, busbw in rates],
        # A matrix of pairs has many rows and must fit into one result: its bandwidth and its slowest exchanges are what it is for.
        latency={name: [stat[name] for stat in stats] for name in (("p50", "p99") if ranks_of(variant) else stats[0])},
        iterations=[len(row.times) for row in group], wrong=[row.wrong for row in group] if checked else None,
        cold=colds[0] if colds else None,
    )


def payload(rows: Sequence[Merged], *, gpus: int, workers: int) -> int:
    """The least bytes that left one worker while these rows were measured. `rows` are one worker's, merged over its lanes.

    A worker that is alone counts every lane as one: then it is the bytes between its GPUs.
    """
    total = 0
    for row in rows:
        pair = ranks_of(row.variant)
        if row.variant.startswith(RAIL):
            total += row.launches * row.bytes
        elif pair is not None:
            # Both ends are here: where the worker is alone, its GPUs' bytes are what counts; among several, they never left it.
            inside = pair[0] // gpus == pair[1] // gpus
            total += row.launches * row.bytes * (1 if not inside else 2 if workers == 1 else 0)
        elif workers > 1:
            total += row.launches * leaving_bytes(row.operation, size=row.bytes, gpus=gpus, workers=workers)
        elif gpus > 1:
            total += row.launches * gpus * leaving_bytes(row.operation, size=row.bytes, gpus=1, workers=gpus)
    return total
