"""What is published of each node: its last verdicts, and figures that do not punish it for a bad partner.

A node has at most `series` series. Verdicts come first; what is left goes, in this order, to changes, one bandwidth of each probe with its
ratios to baseline and peers, how many devices were measured, the other bandwidths at the largest size of each operation, ratios to the
hardware, shares of EFA devices, then p99, p50 and maximum of the latency at its smallest size. A state set shows the present state as 1
and the one before as 0, no other; where the bandwidths would not fit beside them, the states before are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, NamedTuple

from exporter.publish import families as f
from exporter.publish import families_baseline as fb
from exporter.publish import render
from exporter.publish.family import Family
from exporter.publish.legal import FALLBACKS
from exporter.publish.render import Piece
from probes.reasons import Outcome
from probes.result import Measurement

STATISTICS = ("p99", "p50", "max")
INDETERMINATE = "indeterminate"
LEFT_KEPT = 10_000

GATES_SHOWN = 2
"""Closed gates that are shown of one node: the first ones are those that somebody decided."""
NICS_SHOWN = 4
"""Shares of EFA devices that are shown of one node: the lowest."""
WEAK_SHARE = 0.5
"""Where most devices carried less than this share of an average one, the run was not over all of them, and their shares say nothing."""

_PER_PROBE = 4  # healthy, verdict time, measured time, and the outcome; one more for the outcome before, and two for transports

FAMILIES = (f.NODE_HEALTHY, f.NODE_VERDICT_TIME, f.NODE_OUTCOME, f.NODE_MEASURED_TIME, f.NODE_FIRST_SEEN, f.NODE_BANDWIDTH,
            f.NODE_TRANSFER, f.NODE_TRANSPORT, f.NODE_EFA_DEVICES, f.NODE_INFO, f.NODE_GATE_CLOSED, f.NODE_SUSPICION,
            f.NODE_DEVICES_MEASURED, f.NIC_SHARE, fb.TO_BASELINE, fb.TO_PEERS, fb.TO_CEILING, fb.CHANGE)

Row = tuple[Sequence[str], float]


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


class Ratio(NamedTuple):
    """One figure of a node against something. `family` is one of `families_baseline.RATIOS`, `labels` are those of it after the node."""

    family: Family
    labels: tuple[str, str, str, str, str]
    value: float


@dataclass(frozen=True)
class Standing:
    """How a node stands to what it should reach. `changes` gives, by probe and kind, whether one stands or is over."""

    ratios: tuple[Ratio, ...] = ()
    changes: Mapping[tuple[str, str], bool] = field(default_factory=dict)


class _States:
    """The present state and the one before."""

    def __init__(self) -> None:
        self.now: str | None = None
        self.before: str | None = None

    def enter(self, state: str) -> None:
        if state != self.now:
            self.now, self.before = state, self.now

    def samples(self, before: bool = True) -> list[tuple[str, float]]:
        pairs = ((self.now, 1.0), (self.before if before else None, 0.0))
        return sorted((state, value) for state, value in pairs if state is not None)


@dataclass
class _Probe:
    """What is known of one node from one probe. `history` holds the last value of each pair, per figure; `used` when a run last used each
    device, by kind."""

    healthy: bool | None = None
    verdict_time: float = 0.0
    measured_time: float | None = None
    outcome: _States = field(default_factory=_States)
    transport: _States = field(default_factory=_States)
    history: dict[tuple[str, str, str, int, str], dict[str, tuple[float, Figure]]] = field(default_factory=dict)
    used: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class _Node:
    first_seen: float
    probes: dict[str, _Probe] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    devices: dict[str, int] = field(default_factory=dict)
    info: tuple[str, str, str, str] | None = None
    gates: tuple[str, ...] = ()
    suspicion: float | None = None
    shares: dict[str, float] = field(default_factory=dict)
    compared: Standing = field(default_factory=lambda: Standing())


class Nodes:
    """The nodes and their pieces. `interval` is in seconds, `best_of` the number of pairs a figure is the best of."""

    def __init__(self, *, interval: float, best_of: int, series: int) -> None:
        self._interval = interval
        self._best_of = best_of
        self._series = series
        self._nodes: dict[str, _Node] = {}
        self._dirty: set[str] = set()
        self._left: dict[str, None] = {}
        self._shown: dict[str, frozenset[str]] = {}

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
               transport: str | None, measured: bool, healthy: bool | EllipsisType | None = ...) -> None:
        """Take in one run. `partner` tells pairs apart; `measured` says that the run left something to look at.

        `healthy` is what localisation makes of the node, so that it does not answer for its partner; None: not told yet, what was shown
        stays. Left out, the run itself decides.
        """
        self.seen(node, finished)
        state = self._nodes[node].probes.setdefault(probe, _Probe())
        state.outcome.enter(outcome.value)
        if outcome.conclusive:
            if healthy is ...:
                state.healthy = outcome is Outcome.OK
            elif healthy is not None:
                state.healthy = healthy
            state.verdict_time = finished
            if measured:
                state.measured_time = finished
        if transport is not None and (transport != INDETERMINATE or state.transport.now is None):
            state.transport.enter(transport)
        if figures and outcome in {Outcome.OK, Outcome.DEGRADED}:
            self._remember(state, partner, finished, figures)

    def judged(self, node: str, probe: str, healthy: bool, at: float) -> None:
        """Take in what localisation has found of a known node without a run of its own."""
        known = self._nodes.get(node)
        state = known.probes.get(probe) if known is not None else None
        if state is not None and state.healthy is not healthy:
            state.healthy, state.verdict_time = healthy, at
            self._dirty.add(node)

    def devices(self, node: str, counts: Mapping[str, int]) -> None:
        """Take in how many EFA devices a node has, by what says so: expected, allocatable, seen."""
        known = self._nodes.get(node)
        if known is not None:
            known.devices = dict(counts)
            self._dirty.add(node)

    def describe(self, node: str, info: tuple[str, str, str, str]) -> None:
        """Take in what a known node is: the labels of its info after the name."""
        known = self._nodes.get(node)
        if known is not None and known.info != info:
            known.info = info
            self._dirty.add(node)

    def gates(self, node: str, closed: Sequence[str]) -> None:
        """Take in which gates of a node are closed now."""
        known, shown = self._nodes.get(node), tuple(dict.fromkeys(closed))[:GATES_SHOWN]
        if known is not None and known.gates != shown:
            known.gates = shown
            self._dirty.add(node)

    def suspect(self, node: str, suspicion: float | None) -> None:
        """Take in how likely a node is bad; None: nobody suspects it."""
        known = self._nodes.get(node)
        if known is not None and known.suspicion != suspicion:
            known.suspicion = suspicion
            self._dirty.add(node)

    def compared(self, node: str, standing: Standing) -> None:
        """Take in how a known node stands now."""
        known = self._nodes.get(node)
        if known is not None and known.compared != standing:
            known.compared = standing
            self._dirty.add(node)

    def used(self, node: str, probe: str, kind: str, devices: Iterable[str], at: float) -> None:
        """A run of a known node used these devices, until `at`."""
        known = self._nodes.get(node)
        state = known.probes.get(probe) if known is not None else None
        if state is None:
            return
        seen = state.used.setdefault(kind, {})
        for device in devices:
            seen[device] = max(at, seen.get(device, at))
        self._expire(state, at)
        self._dirty.add(node)

    def carried(self, node: str, counted: Mapping[str, float], devices: Iterable[str] = ()) -> None:
        """Take in how many bytes each EFA device carried in one run. `devices` are those the worker had, where it said so.

        One device has no share. Without `devices` nothing is said of a run in which most carried little: it was over few of them.
        """
        known, had = self._nodes.get(node), set(devices)
        amounts = {device: amount for device, amount in counted.items() if not had or device in had}
        if known is None or len(amounts) < 2 or sum(amounts.values()) <= 0:
            return
        mean = sum(amounts.values()) / len(amounts)
        shares = {device: amount / mean for device, amount in amounts.items()}
        if not had and 2 * sum(share < WEAK_SHARE for share in shares.values()) > len(shares):
            return
        # Rounded, so that devices of a healthy node do not take turns in being among the lowest.
        lowest = sorted(shares, key=lambda device: (round(shares[device], 1), device))[:NICS_SHOWN]
        known.shares = {device: shares[device] for device in sorted(lowest)}
        self._dirty.add(node)

    def age(self, now: float) -> None:
        """Forget devices that no run has used within the interval."""
        for node, known in self._nodes.items():
            for state in known.probes.values():
                if state.used and self._expire(state, now):
                    self._dirty.add(node)

    def _expire(self, state: _Probe, now: float) -> bool:
        gone = [(kind, device) for kind, seen in state.used.items() for device, at in seen.items() if at <= now - self._interval]
        for kind, device in gone:
            del state.used[kind][device]
        return bool(gone)

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
                "history": history, **({"used": {kind: dict(seen) for kind, seen in state.used.items() if seen}} if state.used else {})}

    def restore(self, node: str, probe: str, values: Mapping[str, Any]) -> None:
        """Take back what `kept` gave. Raises KeyError, TypeError or ValueError when it is something else."""
        state = _Probe(values["healthy"], float(values["verdict_time"]), values["measured_time"])
        state.outcome.now, state.outcome.before = values["outcome"]
        state.transport.now, state.transport.before = values["transport"]
        for name, operation, memory, size, last, partner, finished, value in values["history"]:
            figure = Figure(_FIGURES[name], operation, int(size), memory, last, float(value))
            state.history.setdefault(figure.key, {})[partner] = (float(finished), figure)
        for kind, seen in dict(values.get("used", {})).items():
            state.used[str(kind)] = {str(device): float(at) for device, at in seen.items()}
        known = self._nodes.get(node)
        if known is not None and probe not in known.probes:
            known.probes[probe] = state
            self._dirty.add(node)

    def rendered(self) -> Iterator[tuple[Family, str, Piece | None]]:
        """What changed since the last call; None where a node is gone."""
        for node in sorted(self._dirty):
            known = self._nodes.get(node)
            rows = self._rows(node, known) if known else {}
            before, now = self._shown.pop(node, frozenset()), frozenset(name for name, samples in rows.items() if samples)
            if now:
                self._shown[node] = now
            for family in FAMILIES:
                if family.name in now:
                    yield family, node, render.gauges(family, rows[family.name])
                elif family.name in before:
                    yield family, node, None
        self._dirty.clear()

    def _rows(self, node: str, known: _Node) -> dict[str, list[Row]]:
        """All samples of a node by family."""
        out: dict[str, list[Row]] = {f.NODE_FIRST_SEEN.name: [((node,), known.first_seen)]}
        if known.info is not None:
            out[f.NODE_INFO.name] = [((node, *known.info), 1)]
        if known.suspicion is not None:
            out[f.NODE_SUSPICION.name] = [((node,), known.suspicion)]
        out[f.NODE_GATE_CLOSED.name] = [((node, gate), 1) for gate in sorted(known.gates)]
        out[f.NODE_EFA_DEVICES.name] = [((node, state), count) for state, count in sorted(known.devices.items())]
        optional = self._optional(node, known)
        moving = sum(state.transport.now is not None for state in known.probes.values())
        room = self._series - sum(map(len, out.values())) - len(known.required) * len(FALLBACKS) - len(known.probes) * _PER_PROBE - moving
        first = sum(family in _FIRST for family, _ in optional)
        before = room - len(known.probes) - moving >= first
        for probe, state in sorted(known.probes.items()):
            values: list[tuple[Family, float | None]] = [(f.NODE_MEASURED_TIME, state.measured_time)]
            if state.healthy is not None:
                values += [(f.NODE_HEALTHY, float(state.healthy)), (f.NODE_VERDICT_TIME, state.verdict_time)]
            for family, value in values:
                if value is not None:
                    out.setdefault(family.name, []).append(((node, probe), value))
            for family, states in ((f.NODE_OUTCOME, state.outcome), (f.NODE_TRANSPORT, state.transport)):
                out.setdefault(family.name, []).extend(((node, probe, name), value) for name, value in states.samples(before))
        # Places of the states before are kept free also while there is none, so that nothing comes and goes with them.
        room -= (len(known.probes) + moving) if before else 0
        for family, row in sorted(optional[:max(0, room)], key=lambda item: tuple(item[1][0])):
            out.setdefault(family.name, []).append(row)
        return out

    def _optional(self, node: str, known: _Node) -> list[tuple[Family, Row]]:
        """What is shown as far as there is room, the first first."""
        best = [(probe, _best(pairs)) for probe, state in known.probes.items() for pairs in state.history.values()]
        order = ["", *STATISTICS]
        best.sort(key=lambda item: (order.index(item[1].last) if item[1].family is f.NODE_TRANSFER else 0, item[0], item[1].key))
        rows: list[tuple[Family, Row]] = [(figure.family, ((node, probe, *figure.labels), figure.value)) for probe, figure in best]
        rates = [row for row in rows if row[0] is f.NODE_BANDWIDTH]
        heads = list({row[1][0][1]: row for row in reversed(rates)}.values())[::-1]
        measured: list[tuple[Family, Row]] = [
            (f.NODE_DEVICES_MEASURED, ((node, probe, kind), len(seen)))
            for probe, state in sorted(known.probes.items()) for kind, seen in sorted(state.used.items()) if seen]
        shares: list[tuple[Family, Row]] = [(f.NIC_SHARE, ((node, device), share)) for device, share in known.shares.items()]
        others = [row for row in rates if row not in heads]
        changes: list[tuple[Family, Row]] = [(fb.CHANGE, ((node, probe, kind), float(stands)))
                                             for (probe, kind), stands in sorted(known.compared.changes.items())]
        to: dict[str, list[tuple[Family, Row]]] = {family.name: [] for family in fb.RATIOS.values()}
        for ratio in sorted(known.compared.ratios, key=lambda one: one.labels):
            to[ratio.family.name].append((ratio.family, ((node, *ratio.labels), ratio.value)))
        return [*changes, *heads, *to[fb.TO_BASELINE.name], *to[fb.TO_PEERS.name], *measured, *others, *to[fb.TO_CEILING.name], *shares,
                *(row for row in rows if row[0] is f.NODE_TRANSFER)]


_FIRST = (f.NODE_BANDWIDTH, f.NODE_DEVICES_MEASURED, fb.CHANGE, fb.TO_BASELINE)
"""Where these would not fit beside them, states before are left out."""
_FIGURES = {family.name: family for family in (f.NODE_BANDWIDTH, f.NODE_TRANSFER)}


def _better(a: Figure, b: Figure) -> bool:
    return a.value > b.value if a.family is f.NODE_BANDWIDTH else a.value < b.value


def _best(pairs: dict[str, tuple[float, Figure]]) -> Figure:
    values = [figure for _, figure in pairs.values()]
    choose = max if values[0].family is f.NODE_BANDWIDTH else min
    return choose(values, key=lambda figure: figure.value)
