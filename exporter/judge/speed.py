"""Is it fast enough? Floors with a source per row, learned baselines, and whether the worker had the CPU to measure at all.

A starved worker is never called slow: what it measured is then unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.config.thresholds import Floor
from probes.reasons import Reason
from probes.result import Measurement, Result, Throttling

STARVED_SHARE = 0.25
"""Share of the window a worker may be throttled, or wait for a CPU it is entitled to, before its speed means nothing."""


Figure = tuple[str, int, str, str]
"""One bandwidth of a run: operation with its variant, bytes, memory, kind."""
Basis = Literal["floor", "baseline", "sanity"]
"""Whose limit it is: the operator's floor, the learned baseline, or a fraction of published figures."""


@dataclass(frozen=True)
class Limit:
    """What a bandwidth must reach beside floors, bytes per second: where that comes from, and why a run below it is degraded."""

    value: float
    source: str
    reason: Reason
    basis: Basis


@dataclass(frozen=True)
class Comparison:
    """A figure against its limit: a share of 0.8 is 80 % of what it must be.

    `measure` is `bandwidth` (bytes per second), `p50` or `p99` (seconds); `bytes` the block size, `source` where the limit comes from,
    `reason` what a run is that does not keep it.
    """

    node: str
    operation: str
    bytes: int
    memory: str
    measure: Literal["bandwidth", "p50", "p99"]
    value: float
    limit: float
    source: str
    reason: Reason = Reason.BELOW_FLOOR
    basis: Basis = "floor"

    @property
    def share(self) -> float:
        """How the figure stands to its limit, 1 or more when it keeps it."""
        return self.value / self.limit if self.measure == "bandwidth" else self.limit / self.value

    @property
    def says(self) -> str:
        """The comparison as a sentence."""
        what = f"{self.operation} of {self.bytes} bytes in {self.memory}"
        if self.measure == "bandwidth":
            limit = {"floor": "the floor", "baseline": "the least that is normal,", "sanity": "the sanity floor"}[self.basis]
            return f"{what}: {self.value / 1e9:.3g} GB/s, {self.share:.0%} of {limit} {self.limit / 1e9:.3g} GB/s ({self.source})"
        stands = "more than" if self.share < 1 else "within"
        return f"{what}: {self.measure} {self.value * 1e6:.4g} us, {stands} {self.limit * 1e6:.4g} us ({self.source})"


@dataclass(frozen=True)
class SpeedFinding:
    """Speed of one run: `ok`, or the reason, with the figures behind it. `holds` None means there was nothing to compare."""

    reason: Reason
    says: str
    holds: bool | None
    comparisons: tuple[Comparison, ...] = ()


def judge_speed(results: Sequence[Result], floors: Iterable[Floor], instance_types: Mapping[str, str | None],
                limits: Mapping[Figure, Limit] | None = None) -> SpeedFinding:
    """Compare every measured figure with the floors that cover it and with what is usual; the largest shortfall speaks.

    `instance_types` gives the EC2 type of each node. A floor with an instance type wins over one without, and a floor over a sanity floor;
    a baseline holds beside them.
    """
    by_key: dict[tuple[str, str, int, str], list[Floor]] = {}
    for floor in floors:
        by_key.setdefault((floor.probe, floor.operation, floor.bytes, floor.memory), []).append(floor)
    figures = 0
    compared: list[Comparison] = []
    for result in results:
        kind = instance_types.get(result.node)
        for row in result.measurements:
            for index, size in enumerate(row.bytes):
                figures += row.bandwidth[index] is not None
                found = _best(by_key.get((result.probe, row.operation, size, row.memory), ()), kind)
                if found is not None:
                    compared += _compare(found, row, index, result.node)
                compared += _usual(limits or {}, row, index, result.node, floored=found is not None and found.min_bandwidth is not None)
    if not compared:
        return SpeedFinding(Reason.OK, f"{figures} figures, and no floor is set for them" if figures else "no figure", None)
    kept = tuple(sorted(compared, key=lambda comparison: comparison.share))
    lowest = kept[0]
    if lowest.share >= 1:
        return SpeedFinding(Reason.OK, _all_kept(compared), holds=True, comparisons=kept)
    starved = _starved(results)
    if starved:
        return SpeedFinding(Reason.CPU_STARVED, f"{lowest.says}, but {starved}", None, kept)
    return SpeedFinding(lowest.reason, lowest.says, holds=False, comparisons=kept)


def starvation(throttling: Throttling | None, window: float) -> str | None:
    """Why a worker got too little CPU in a window of `window` seconds, or None when it did not or nobody can tell."""
    if throttling is None or window <= 0:
        return None
    if throttling.periods and throttling.throttled_periods is not None:
        share = throttling.throttled_periods / throttling.periods
        if share > STARVED_SHARE:
            return f"its cgroup was throttled in {share:.0%} of the periods"
    if throttling.wait_seconds is not None and throttling.wait_seconds / window > STARVED_SHARE:
        return f"it waited {throttling.wait_seconds:.2f} s for a CPU in a window of {window:.2f} s"
    return None


def _best(candidates: Iterable[Floor], instance_type: str | None) -> Floor | None:
    fallback = None
    for floor in candidates:
        if floor.instance_type is None:
            fallback = floor
        elif floor.instance_type == instance_type:
            return floor
    return fallback


def _compare(floor: Floor, row: Measurement, index: int, node: str) -> Iterator[Comparison]:
    value = row.bandwidth[index]
    if floor.min_bandwidth is not None and value is not None:
        yield Comparison(node, row.operation, row.bytes[index], row.memory, "bandwidth", value, floor.min_bandwidth, floor.source)
    limits: tuple[tuple[Literal["p50", "p99"], float | None], ...] = (("p50", floor.max_p50), ("p99", floor.max_p99))
    for name, limit in limits:
        column = row.latency.get(name)
        seconds = column[index] if column is not None else None
        if limit is not None and seconds:
            yield Comparison(node, row.operation, row.bytes[index], row.memory, name, seconds, limit, floor.source)


def _usual(limits: Mapping[Figure, Limit], row: Measurement, index: int, node: str, *, floored: bool) -> Iterator[Comparison]:
    """A bandwidth against its baseline or sanity floor. `floored`: the operator has said what it must reach."""
    value, size = row.bandwidth[index], row.bytes[index]
    name = f"{row.operation}:{row.variant}" if row.variant else row.operation
    limit = limits.get((name, size, row.memory, row.kind))
    if limit is not None and value is not None and not (floored and limit.basis == "sanity"):
        yield Comparison(node, name, size, row.memory, "bandwidth", value, limit.value, limit.source, limit.reason, limit.basis)


def _all_kept(compared: Sequence[Comparison]) -> str:
    counts = {basis: sum(one.basis == basis for one in compared) for basis in ("floor", "baseline", "sanity")}
    words = {"floor": "floors", "baseline": "baselines", "sanity": "sanity floors"}
    return ", ".join(f"{count} figures keep their {words[basis]}" for basis, count in counts.items() if count)


def _starved(results: Sequence[Result]) -> str | None:
    for result in results:
        if result.measure is not None:
            why = starvation(result.throttling, result.measure.end - result.measure.start)
            if why:
                return f"rank {result.rank} was starved: {why}"
    return None
