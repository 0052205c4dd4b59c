"""What the baseline benchmarks share: weeks of rounds on a simulated fabric, watched by our baselines and by the nearest peer's rule.

Each run is one pair of a random round, judged by the service's own judge. Nodes differ by 6 %, distances by 8 %, runs by 1 %, 1 % of the
runs could not measure and 0.1 % were slow by chance, as the sources of `exporter.launch.fabric` report.

The peer is the rule of the HyperPod debugging notes (awslabs/agent-plugins): run each node pair, a pair more than about 5 % below the mean
is a straggler candidate. It is taken as kindly as it can be: the mean is that of the round and of pairs at the same distance, and a node is
named only when it is in such pairs twice in a row.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Literal

from exporter.config.baselines import Baselines as Settings
from exporter.inventory.model import Node, stratum_of
from exporter.judge.baseline import Baselines
from exporter.judge.judge import judge
from exporter.launch.fabric import Fabric, Layout, make_inventory
from exporter.launch.faults import Fault, FaultKind
from exporter.runs import Run, RunSpec
from exporter.simulation.scenario import START
from probes.reasons import Outcome as Ended
from probes.reasons import Reason
from probes.result import Measurement, Result

SCHEMA: Literal["efa-pulse/result/v1"] = "efa-pulse/result/v1"
TYPE = "p5.48xlarge"
PROBE, SIZE = "mooncake", 16 << 20
ROUND = 1800.0
DAY, WEEK = 86400.0, 7 * 86400.0
UNKNOWN, CHANCE = 0.01, 0.001
STRAGGLER = 0.05
OLD, NEW = {"mooncake": "0.3.10", "libfabric": "1.22"}, {"mooncake": "0.3.11", "libfabric": "1.23"}


@dataclass
class Seen:
    """When nodes were named, Unix seconds after the start: by us with the kind of change, and by the peer."""

    ours: list[tuple[float, str, str]] = field(default_factory=list)
    peer: list[tuple[float, str]] = field(default_factory=list)
    runs: int = 0

    def first(self, name: str, after: float) -> float | None:
        """When we named a node first, seconds after `after`."""
        return min((at - after for at, node, _ in self.ours if node == name and at >= after), default=None)

    def peer_first(self, name: str, after: float) -> float | None:
        """The same of the peer."""
        return min((at - after for at, node in self.peer if node == name and at >= after), default=None)


class Weeks:
    """A fabric that is measured round by round. `upgraded(node, now)` says whether a node has the new software, which is `gain` as fast."""

    def __init__(self, nodes: int, seed: int, *, faults: Sequence[Fault] = (),
                 upgraded: Callable[[int, float], bool] = lambda *_: False, gain: float = 1.0) -> None:
        inventory = make_inventory(Layout(nodes, TYPE), seed, START)
        self.names = [node.name for node in inventory]
        placed = [replace(fault, where=self.names[int(fault.where)], start=START + fault.start) for fault in faults]
        self._fabric = Fabric(inventory, seed, placed, CHANCE)
        self._nodes = list(inventory.nodes)
        self._by_name = {node.name: node for node in inventory}
        self._ids = {node.instance_id: node.name for node in inventory}
        self._number = {node.name: index for index, node in enumerate(inventory)}
        self._rng = random.Random(seed)
        self._upgraded, self._gain = upgraded, gain
        self.baselines = Baselines(Settings())
        self._slow_before: set[str] = set()
        self.seen = Seen()

    def run(self, seconds: float) -> Seen:
        """So many seconds of rounds."""
        now = 0.0
        while now < seconds:
            self._round(START + now)
            now += ROUND
        return self.seen

    def _round(self, now: float) -> None:
        order = list(self._nodes)
        self._rng.shuffle(order)
        figures: list[tuple[Node, Node, float]] = []
        for index in range(0, len(order) - 1, 2):
            if self._rng.random() < UNKNOWN:
                continue
            one, other = order[index], order[index + 1]
            rate = self._one(one, other, now)
            figures.append((one, other, rate))
        self._peer(figures, now)

    def _one(self, one: Node, other: Node, now: float) -> float:
        run_id = f"{self.seen.runs}"
        self.seen.runs += 1
        rate = self._fabric.effect(PROBE, [one, other], run_id, now).rate
        new = [self._upgraded(self._number[node.name], now - START) for node in (one, other)]
        if any(new):
            rate *= self._gain
        ended = now + self._rng.random() * 600
        row = Measurement.model_construct(operation="write", memory="dram", kind="goodput", bytes=[SIZE], bandwidth=[rate], algbw=None,
                                          latency={}, iterations=[], wrong=None, batch=1, cold=None, variant=None)
        results = tuple(Result.model_construct(
            schema_=SCHEMA, run_id=run_id, probe=PROBE, target="", role=None, rank=rank, world_size=2, node=node.name, started=ended - 8,
            finished=ended, outcome=Ended.OK, reason=Reason.OK, message="",
            measure=None, phases={}, measurements=[row] if rank == 0 else [], stream=None,
            findings=[], evidence=None, throttling=None, versions=NEW if new[rank] else OLD, shape={"batch": 8})
            for rank, node in enumerate((one, other)))
        spec = RunSpec(run_id, PROBE, "", (one.name, other.name), "any", 60.0)
        run = Run(spec, results, ended - 8, ended)
        self.baselines.observe(judge(run, limits=self.baselines.limits(run, self._by_name)), self._by_name)
        for change in self.baselines.found:
            self.seen.ours.append((ended - START, self._ids[change.node], change.kind))
        self.baselines.found.clear()
        return rate

    def _peer(self, figures: Sequence[tuple[Node, Node, float]], now: float) -> None:
        by_distance: dict[str, list[float]] = {}
        for one, other, rate in figures:
            by_distance.setdefault(stratum_of(one, other).value, []).append(rate)
        means = {distance: mean(rates) for distance, rates in by_distance.items()}
        slow = {node.name for one, other, rate in figures if rate < (1 - STRAGGLER) * means[stratum_of(one, other).value]
                for node in (one, other)}
        self.seen.peer += [(now + 600 - START, name) for name in sorted(slow & self._slow_before)]
        self._slow_before = slow


@dataclass(frozen=True)
class Outcome:
    """One world: healthy node-weeks, how often healthy nodes were named, and for each bad node when it was (None: never)."""

    node_weeks: float
    ours_false: int
    peer_false: int
    found: tuple[float | None, ...]
    peer_found: tuple[float | None, ...]
    kinds: tuple[str, ...] = ()


def injected(kind: FaultKind, severity: float, weeks: float, after: float, count: int, nodes: int, seed: int) -> Outcome:
    """A world that is healthy for some weeks, then `count` of its nodes get a fault and are watched for `after` seconds.

    A healthy node counts as named once for every episode: a change that stands, or for the peer a day.
    """
    start = weeks * WEEK
    bad = random.Random(seed).sample(range(nodes), count)
    world = Weeks(nodes, seed, faults=[Fault(kind, str(index), start, severity=severity) for index in bad])
    seen = world.run(start + after)
    names = {world.names[index] for index in bad}
    ours = [name for at, name, _ in seen.ours if at < start or name not in names]
    peer = {(int(at // DAY), name) for at, name in seen.peer if at < start or name not in names}
    kinds = tuple(kind for at, name, kind in seen.ours if at >= start and name in names)
    return Outcome(nodes * weeks + (nodes - count) * after / WEEK, len(ours), len(peer),
                   tuple(seen.first(name, start) for name in sorted(names)), tuple(seen.peer_first(name, start) for name in sorted(names)),
                   kinds)


def upgrade(gain: float, nodes: int, seed: int) -> Outcome:
    """A world that is upgraded node by node over 12 hours, to software that is `gain` as fast: nobody is bad."""
    start, took = WEEK, 12 * 3600.0
    world = Weeks(nodes, seed, upgraded=lambda index, now: now >= start + took * index / nodes, gain=gain)
    seen = world.run(start + 4 * DAY)
    return Outcome(nodes * (1 + 4 / 7), len(seen.ours), len({(int(at // DAY), name) for at, name in seen.peer}), (), ())


def spread(calls: Iterable[tuple[Callable[..., Outcome], tuple[object, ...]]]) -> list[Outcome]:
    """These worlds, on every core."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return [waiting.get() for waiting in [pool.apply_async(call, arguments) for call, arguments in calls]]
