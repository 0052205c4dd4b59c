"""Runs of pairs with given bandwidths, judged by the service's judge and told to baselines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from exporter.config.baselines import Baselines as Settings
from exporter.inventory.model import Node
from exporter.judge.baseline import Baselines
from exporter.judge.judge import judge
from exporter.judge.verdict import Verdict
from exporter.runs import Run, RunSpec
from probes.reasons import Reason
from probes.result import Evidence, Measurement, Result

T = 1.8e9
HALF = 1800.0
DAY = 86400.0
SIZE = 16 << 20
TYPE = "p5.48xlarge"
OLD = {"mooncake": "0.3.10", "libfabric": "1.22"}
NEW = {"mooncake": "0.3.11", "libfabric": "1.23"}


def fleet(count: int = 8, kind: str | None = TYPE, leaf: int = 4) -> dict[str, Node]:
    """Nodes by name: `n0`, `n1`, ... with ids `i-0`, ..., so many on a leaf."""
    return {f"n{index}": Node(f"i-{index}", f"n{index}", kind, network_nodes=("top", "spine", f"leaf-{index // leaf}"))
            for index in range(count)}


def ended(names: Sequence[str], rates: Mapping[str, float], at: float, *, probe: str = "mooncake", reason: Reason = Reason.OK,
          versions: Mapping[str, str] | Mapping[str, Mapping[str, str]] | None = None, batch: int = 8, size: int = SIZE,
          transport: str = "any", memory: str = "dram") -> Run:
    """A run of these nodes; rank 0 measured `rates` by operation. `versions` may be given for each node."""
    rows = [Measurement.model_validate({"operation": operation, "memory": memory, "kind": "goodput", "bytes": [size], "bandwidth": [rate]})
            for operation, rate in rates.items()]

    def software(name: str) -> dict[str, str]:
        told: Mapping[str, Any] = versions or OLD
        own = told.get(name)
        return dict(own if isinstance(own, Mapping) else told)

    results = tuple(Result.model_validate({
        "run_id": f"r{at}-{names[0]}", "probe": probe, "target": "--".join(names), "rank": rank, "world_size": len(names), "node": name,
        "started": at - 8, "finished": at, "reason": reason, "measurements": [row.model_dump() for row in rows] if rank == 0 else [],
        "versions": software(name), "shape": {"batch": batch}, "evidence": Evidence(stack=probe, nics_allocated=32).model_dump()})
        for rank, name in enumerate(names))
    return Run(RunSpec(f"r{at}-{names[0]}", probe, "--".join(names), tuple(names), transport, 60.0), results, at - 8, at)  # type: ignore[arg-type]


def tell(book: Baselines, nodes: Mapping[str, Node], run: Run) -> Verdict:
    """Judge a run by the baselines, then let it teach them."""
    verdict = judge(run, limits=book.limits(run, nodes))
    book.observe(verdict, nodes)
    return verdict


def rounds(book: Baselines, nodes: Mapping[str, Node], speeds: Mapping[str, float], count: int, *, start: float = T,
           versions: Mapping[str, str] | Mapping[str, Mapping[str, str]] | None = None) -> list[Verdict]:
    """So many rounds of disjoint pairs by the circle method, half an hour apart. A pair is as fast as its slower node, within 0.5 %."""
    names = list(nodes)
    found: list[Verdict] = []
    for number in range(count):
        for one, other in pairs(names, number):
            wobble = 1 + 0.005 * (((hash_of(one, other) + number * 7) % 5) - 2) / 2
            rate = min(speeds[one], speeds[other]) * wobble
            found.append(tell(book, nodes, ended((one, other), {"write": rate}, start + number * HALF, versions=versions)))
    return found


def pairs(names: Sequence[str], number: int) -> Iterable[tuple[str, str]]:
    """The disjoint pairs of one round."""
    rest = list(names[1:])
    turned = [names[0], *rest[number % len(rest):], *rest[:number % len(rest)]]
    half = len(turned) // 2
    return [(turned[index], turned[-1 - index]) for index in range(half)]


def hash_of(one: str, other: str) -> int:
    """A number that depends on the names only."""
    return sum(map(ord, one + other))


def book(**settings: object) -> Baselines:
    """Baselines with these settings."""
    return Baselines(Settings.model_validate(settings))
