"""From every rank's figures to the run's: the slowest rank counts, the fastest shows the spread.

The size of a measurement is the batch of one rank, tokens x hidden x 2 bytes: the same in every run of a shape, whatever the routing. The
bandwidth is upstream's: over the payload of a rank, which counts a token once for each expert (low latency) or rank it goes to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probes.nccl.merge import statistics
from probes.result import Measurement
from probes.uccl_ep.output import EpRun

BENCH_CALLS = 100


@dataclass(frozen=True)
class RankFigures:
    """One operation on one rank: payload bytes of an operation, its mean seconds, and of single operations where they were timed."""

    rank: int
    operation: str
    bytes: int
    mean: float
    times: tuple[float, ...] = ()
    wrong: int | None = None

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.bytes / self.mean


def measurements(figures: Sequence[RankFigures], batch: int) -> list[Measurement]:
    """Two per operation: the slowest rank's bandwidth, and as variant `fastest_rank` the fastest's. Latency is over the slowest rank of
    each operation where all ranks timed them singly, else only the mean of the slowest."""
    found = []
    for operation in dict.fromkeys(figure.operation for figure in figures):
        group = [figure for figure in figures if figure.operation == operation]
        slowest, fastest = min(group, key=lambda figure: figure.rate), max(group, key=lambda figure: figure.rate)
        checks = [figure.wrong for figure in group if figure.wrong is not None]
        found.append(_one(slowest, batch, None, _latency(group), sum(checks) if checks else None))
        found.append(_one(fastest, batch, "fastest_rank", {"mean": fastest.mean}, None))
    return found


def of_bench(run: EpRun) -> list[RankFigures]:
    """What the low-latency bench said of each rank. It gives rates and times, so bytes are their product."""
    figures = []
    for rank, lines in sorted(run.ranks.items()):
        pairs = {"dispatch": (lines.dispatch_rate, lines.dispatch_mean), "combine": (lines.combine_rate, lines.combine_mean)}
        figures += [RankFigures(rank, name, round(rate * mean), mean) for name, (rate, mean) in pairs.items() if rate and mean]
    return figures


def of_tuning(run: EpRun, batch: int) -> list[Measurement]:
    """What a throughput bench said: its default configuration, and as variant `best_config` its best. BF16 where it measured both."""
    found = []
    for operation in ("dispatch", "combine"):
        for best, variant in ((False, None), (True, "best_config")):
            lines = [line for line in run.tuning if line.operation == operation and line.best is best and (line.best or line.default)]
            lines = [line for line in lines if line.dtype != "FP8"] or lines
            rate, seconds = next(((line.rdma_rate or line.nvl_rate, line.seconds) for line in lines if line.seconds), (None, None))
            if rate and seconds:
                found.append(_one(RankFigures(0, operation, round(rate * seconds), seconds), batch, variant, {"mean": seconds}, None))
    return found


def least_moved(run: EpRun, *, gpus: int, nodes: int) -> int:
    """Bytes that at least left this node (its GPUs, where there is one node) while a bench ran, from what it says of one operation.

    `bench` (ep/bench/utils.py) calls each operation 100 times; the many calls of its checks and sweeps come on top and are not counted.
    The share of a payload that leaves is that of even routing; the RDMA leg of a throughput line is what leaves.
    """
    away = (nodes - 1) / nodes if nodes > 1 else (gpus - 1) / gpus
    total = sum(figure.bytes for figure in of_bench(run)) * away
    if not run.ranks:
        for operation in ("dispatch", "combine"):
            line = next((line for line in run.tuning if line.best and line.operation == operation and line.dtype != "FP8"), None)
            if line is not None and line.seconds:
                total += gpus * line.seconds * (line.rdma_rate or (line.nvl_rate or 0.0) * away)
    return int(total * BENCH_CALLS)


def _latency(group: list[RankFigures]) -> dict[str, float]:
    lengths = {len(figure.times) for figure in group}
    if len(lengths) != 1 or lengths == {0}:
        return {"mean": max(figure.mean for figure in group)}
    return statistics([max(times) for times in zip(*(figure.times for figure in group), strict=True)])


def _one(figure: RankFigures, batch: int, variant: str | None, latency: dict[str, float], wrong: int | None) -> Measurement:
    return Measurement(
        operation=figure.operation, memory="gpu", kind="goodput", bytes=[batch], bandwidth=[figure.rate],
        latency={name: [value] for name, value in latency.items()}, variant=variant,
        iterations=[len(figure.times)] if figure.times else [], wrong=None if wrong is None else [wrong],
    )
