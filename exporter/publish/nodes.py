"""What is published of each node: its last verdicts, and figures that do not punish it for a bad partner.

A node has at most `series` series. Verdicts come first; what is left goes to figures in this order: bandwidth at the largest size of each
operation, then p99, p50 and maximum of the latency at its smallest size. A state set shows the present state as 1 and the one before
as 0, no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from exporter.publish import families as f
from exporter.publish import render
from exporter.publish.family import Family
from exporter.publish.legal import FALLBACKS
from exporter.publish.render import Piece
from probes.reasons import Outcome
from probes.result import Measurement

STATISTICS = ("p99", "p50", "max")
INDETERMINATE = "indeterminate"
LEFT_KEPT = 10_000

_PER_PROBE = 5  # healthy, verdict time, measured time, and two outcomes
_PER_TRANSPORT = 2

FAMILIES = (f.NODE_HEALTHY, f.NODE_VERDICT_TIME, f.NODE_OUTCOME, f.NODE_MEASURED_TIME, f.NODE_FIRST_SEEN, f.NODE_BANDWIDTH,
            f.NODE_TRANSFER, f.NODE_TRANSPORT, f.NODE_EFA_DEVICES)


class Figure(NamedTuple):
    """One figure of a run worth showing per node. `labels` are those of its family after node and probe."""

    family: Family
    operation: str
    size: int
    memory: str
    last: str
    value: float

    @property
    def key(self) -> tuple[str, str, str, int, str]:
        """What tells this figure from the others of its probe."""
        return self.family.name, self.operation, self.memory, self.size, self.last

    @property
    def labels(self) -> tuple[str, str, str, str]:
        """Label values after node and probe."""
        return self.operation, str(self.size), self.memory, self.last


def figures(measurements: Iterable[Measurement]) -> list[Figure]:
    """The headline figures of one rank: bandwidth at the largest size, latency at the smallest, for each operation."""
    out = []
    for m in measurements:
        name = operation_of(m)
        rates = [(size, rate) for size, rate in zip(m.bytes, m.bandwidth, strict=True) if rate is not None]
        if rates:
            size, rate = max(rates)
            out.append(Figure(f.NODE_BANDWIDTH, name, size, m.memory, m.kind, rate))
        for statistic in STATISTICS:
            times = [(size, t) for size, t in zip(m.bytes, m.latency.get(statistic, []), strict=False) if t is not None]
            if times:
                size, seconds = min(times)
                out.append(Figure(f.NODE_TRANSFER, name, size, m.memory, statistic, seconds))
    return out


def operation_of(measurement: Measurement) -> str:
    """The `operation` label: the operation, with its variant where it has one."""
    return f"{measurement.operation}:{measurement.variant}" if measurement.variant else measurement.operation


class _States:
    """The present state and the one before."""

    def __init__(self) -> None:
        self.now: str | None = None
        self.before: str | None = None

    def enter(self, state: str) -> None:
        if state != self.now:
            self.now, self.before = state, self.now

    def samples(self) -> list[tuple[str, float]]:
        pairs = ((self.now, 1.0), (self.before, 0.0))
        return sorted((state, value) for state, value in pairs if state is not None)


@dataclass
class _Probe:
    """What is known of one node from one probe. `history` holds the last value of each pair, per figure."""

    healthy: bool | None = None
    verdict_time: float = 0.0
    measured_time: float | None = None
    outcome: _States = field(default_factory=_States)
    transport: _States = field(default_factory=_States)
    history: dict[tuple[str, str, str, int, str], dict[str, tuple[float, Figure]]] = field(default_factory=dict)


@dataclass
class _Node:
    first_seen: float
    probes: dict[str, _Probe] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    devices: dict[str, int] = field(default_factory=dict)


class Nodes:
    """The nodes and their pieces. `interval` is in seconds, `best_of` the number of pairs a figure is the best of."""

    def __init__(self, *, interval: float, best_of: int, series: int) -> None:
        self._interval = interval
        self._best_of = best_of
        self._series = series
        self._nodes: dict[str, _Node] = {}
        self._dirty: set[str] = set()
        self._left: dict[str, None] = {}

    def seen(self, node: str, at: float, required: Iterable[str] = ()) -> None:
        """Note a node, first seen `at`. `required` are its probes in EFA mode: they have fallback counters."""
        self._left.pop(node, None)
        known = self._nodes.setdefault(node, _Node(at))
        known.first_seen = min(known.first_seen, at)
        known.required |= frozenset(required)
        self._dirty.add(node)

    def remove(self, node: str) -> None:
        """Forget a node that left. Results that still come in of it are ignored until it is seen again."""
        if self._nodes.pop(node, None) is not None:
            self._dirty.add(node)
        self._left[node] = None
        while len(self._left) > LEFT_KEPT:
            self._left.pop(next(iter(self._left)))

    def left(self, node: str) -> bool:
        """Whether a node was removed and has not been seen since."""
        return node in self._left

    def record(self, node: str, probe: str, *, outcome: Outcome, finished: float, partner: str, figures: Sequence[Figure],
               transport: str | None, measured: bool) -> None:
        """Take in one run. `partner` tells pairs apart; `measured` says that the run left something to look at."""
        self.seen(node, finished)
        state = self._nodes[node].probes.setdefault(probe, _Probe())
        state.outcome.enter(outcome.value)
        if outcome.conclusive:
            state.healthy = outcome is Outcome.OK
            state.verdict_time = finished
            if measured:
                state.measured_time = finished
        if transport is not None and (transport != INDETERMINATE or state.transport.now is None):
            state.transport.enter(transport)
        if figures and outcome in {Outcome.OK, Outcome.DEGRADED}:
            self._remember(state, partner, finished, figures)

    def devices(self, node: str, counts: Mapping[str, int]) -> None:
        """Take in how many EFA devices a node has, by what says so: expected, allocatable, seen."""
        known = self._nodes.get(node)
        if known is not None:
            known.devices = dict(counts)
            self._dirty.add(node)

    def _remember(self, state: _Probe, partner: str, finished: float, figures: Sequence[Figure]) -> None:
        kept = {figure.key: state.history.get(figure.key, {}) for figure in figures}
        for figure in figures:
            pairs = kept[figure.key]
            same_run = pairs.get(partner)
            if same_run is None or same_run[0] != finished or _better(figure, same_run[1]):
                pairs[partner] = (finished, figure)
            recent = sorted(pairs, key=lambda name: pairs[name][0], reverse=True)[: self._best_of]
            kept[figure.key] = {name: pairs[name] for name in recent if pairs[name][0] > finished - self._interval}
        state.history = kept

    def kept(self, node: str, probe: str) -> dict[str, Any] | None:
        """What is known of a probe on a node, as JSON. `restore` reads it."""
        known = self._nodes.get(node)
        state = known.probes.get(probe) if known is not None else None
        if state is None:
            return None
        history = [[*key, partner, finished, figure.value] for key, pairs in sorted(state.history.items())
                   for partner, (finished, figure) in sorted(pairs.items())]
        return {"healthy": state.healthy, "verdict_time": state.verdict_time, "measured_time": state.measured_time,
                "outcome": [state.outcome.now, state.outcome.before], "transport": [state.transport.now, state.transport.before],
                "history": history}

    def restore(self, node: str, probe: str, values: Mapping[str, Any]) -> None:
        """Take back what `kept` gave. Raises KeyError, TypeError or ValueError when it is something else."""
        state = _Probe(values["healthy"], float(values["verdict_time"]), values["measured_time"])
        state.outcome.now, state.outcome.before = values["outcome"]
        state.transport.now, state.transport.before = values["transport"]
        for name, operation, memory, size, last, partner, finished, value in values["history"]:
            figure = Figure(_FIGURES[name], operation, int(size), memory, last, float(value))
            state.history.setdefault(figure.key, {})[partner] = (float(finished), figure)
        known = self._nodes.get(node)
        if known is not None and probe not in known.probes:
            known.probes[probe] = state
            self._dirty.add(node)

    def rendered(self) -> Iterator[tuple[Family, str, Piece | None]]:
        """What changed since the last call; None where a node is gone."""
        for node in sorted(self._dirty):
            known = self._nodes.get(node)
            for family in FAMILIES:
                samples = self._samples(family, node, known) if known else []
                yield family, node, render.gauges(family, samples) if samples else None
        self._dirty.clear()

    def _samples(self, family: Family, node: str, known: _Node) -> list[tuple[Sequence[str], float]]:
        if family is f.NODE_FIRST_SEEN:
            return [((node,), known.first_seen)]
        if family is f.NODE_EFA_DEVICES:
            return [((node, state), count) for state, count in sorted(known.devices.items())]
        if family in (f.NODE_BANDWIDTH, f.NODE_TRANSFER):
            shown = self._shown(known)
            return sorted(((node, probe, *figure.labels), figure.value) for probe, figure in shown if figure.family is family)
        out: list[tuple[Sequence[str], float]] = []
        for probe, state in sorted(known.probes.items()):
            if family is f.NODE_OUTCOME:
                out += [((node, probe, name), value) for name, value in state.outcome.samples()]
            elif family is f.NODE_TRANSPORT:
                out += [((node, probe, name), value) for name, value in state.transport.samples()]
            elif family is f.NODE_MEASURED_TIME:
                if state.measured_time is not None:
                    out.append(((node, probe), state.measured_time))
            elif state.healthy is not None:
                out.append(((node, probe), float(state.healthy) if family is f.NODE_HEALTHY else state.verdict_time))
        return out

    def _shown(self, known: _Node) -> list[tuple[str, Figure]]:
        verdicts = sum(_PER_PROBE + (_PER_TRANSPORT if state.transport.now else 0) for state in known.probes.values())
        room = max(0, self._series - 1 - len(known.devices) - verdicts - len(known.required) * len(FALLBACKS))
        best = [(probe, _best(pairs)) for probe, state in known.probes.items() for pairs in state.history.values()]
        order = ["", *STATISTICS]
        best.sort(key=lambda item: (order.index(item[1].last) if item[1].family is f.NODE_TRANSFER else 0, item[0], item[1].key))
        return best[:room]


_FIGURES = {family.name: family for family in (f.NODE_BANDWIDTH, f.NODE_TRANSFER)}


def _better(a: Figure, b: Figure) -> bool:
    return a.value > b.value if a.family is f.NODE_BANDWIDTH else a.value < b.value


def _best(pairs: dict[str, tuple[float, Figure]]) -> Figure:
    values = [figure for _, figure in pairs.values()]
    choose = max if values[0].family is f.NODE_BANDWIDTH else min
    return choose(values, key=lambda figure: figure.value)
