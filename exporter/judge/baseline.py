"""Baselines: what runs of one kind usually reach, how each node stands to that, and whether it has changed.

    before the verdict   limits(run)        what its figures must reach, and where that comes from
    after the verdict    observe(verdict)   good runs teach; every measured one is compared

Only `ok` runs teach, and none in which a node takes part that a change is seen or suspected of. Everything here belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from exporter.config.baselines import Baselines as Settings
from exporter.inventory.model import Node
from exporter.judge.ceiling import ceiling
from exporter.judge.change import KINDS, Kind, Tracker
from exporter.judge.norm import Norm, NormKey, distance_of, shape_of, software_of, types_of
from exporter.judge.peers import Peers
from exporter.judge.sanity import sanity_floor
from exporter.judge.sketch import Sketch
from exporter.judge.speed import Figure, Limit
from exporter.judge.verdict import Verdict
from exporter.runs import Run
from probes.reasons import Outcome, Reason
from probes.result import Result

MEASURED = (Outcome.OK, Outcome.DEGRADED)
FEW = 8
"""Runs from which a baseline is good enough to compare peers of different distances."""
SPREADS = 5.0
"""Spreads below the baseline that are still normal."""
WIDEST = 0.6
"""A run is never allowed to be slower than the baseline by more than this share."""
MOST_NORMS = 2000
ORDER, ORDER_LENGTH = "reset", 64
NODE, NORM = "baseline/", "norm/"
"""Where they stand in the journal."""


@dataclass
class Pair:
    """The last run of a node with one partner. `x` is log(value / baseline), `share` the value over the ceiling; None: not known."""

    at: float
    value: float
    x: float | None
    share: float | None


@dataclass
class Watched:
    """One probe on one node: its main figure, with whom it was measured, and its tracker."""

    tracker: Tracker = field(default_factory=Tracker)
    figure: Figure | None = None
    pairs: dict[str, Pair] = field(default_factory=dict)
    group: NormKey | None = None

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        record: dict[str, Any] = {"t": self.tracker.dump()}
        if self.figure is not None:
            record["g"] = list(self.figure)
            record["p"] = [[who, *map(_digits, (pair.at, pair.value, pair.x, pair.share))] for who, pair in self.pairs.items()]
        return record

    @classmethod
    def load(cls, data: Mapping[str, Any], most: int) -> Watched:
        """From JSON. Raises KeyError, TypeError or ValueError when it is none."""
        made = cls(Tracker.load(data["t"]))
        if "g" in data:
            operation, size, memory, kind = data["g"]
            made.figure = (str(operation), int(size), str(memory), str(kind))
            for who, at, value, x, share in data["p"][-most:]:
                if not all(part is None or (isinstance(part, (int, float)) and math.isfinite(part)) for part in (at, value, x, share)):
                    raise ValueError("a figure of a pair is no number")
                made.pairs[str(who)] = Pair(float(at), float(value), x, share)
        return made


@dataclass(frozen=True)
class Ratio:
    """A node's main figure of one probe against its baseline, its peers or its hardware."""

    to: Literal["baseline", "peers", "ceiling"]
    probe: str
    figure: Figure
    value: float


@dataclass(frozen=True)
class NodeStanding:
    """How one node stands. `changes` says by probe and kind whether one stands (True) or is over (False)."""

    ratios: tuple[Ratio, ...]
    changes: Mapping[tuple[str, str], bool]


@dataclass(frozen=True)
class Changed:
    """A change of a node that was just found: how much slower it is, as a share, and whether most of its kind are (`level`)."""

    node: str
    probe: str
    kind: Kind
    size: float


class Baselines:
    """See the module. `best_of` and `interval` are those of the published figures: the last pairs, within so many seconds."""

    def __init__(self, settings: Settings, *, best_of: int = 3, interval: float = 86400.0) -> None:
        self.settings, self._best_of, self._interval = settings, best_of, interval
        self.norms: dict[NormKey, Norm] = {}
        self.nodes: dict[str, dict[str, Watched]] = {}
        self.current: dict[NormKey, Norm] = {}
        self.found: list[Changed] = []
        self.orders: dict[str, str] = {}
        self._peers: dict[NormKey, Peers] = {}
        self._last: tuple[Run | None, dict[Figure, NormKey]] = (None, {})
        self._dirty_nodes: set[str] = set()
        self._dirty_norms: set[NormKey] = set()
        self._gone: set[str] = set()

    def configure(self, settings: Settings, best_of: int, interval: float) -> None:
        """Take in a new configuration. What is learned stays; a new half-life holds from now on."""
        self.settings, self._best_of, self._interval = settings, best_of, interval
        for norm in self.norms.values():
            norm.sketch.half_life = settings.half_life

    # what a run must reach

    def limits(self, run: Run, nodes: Mapping[str, Node]) -> dict[Figure, Limit]:
        """What the figures of a run must reach. `nodes` are by name; a run with an unknown node has no baseline."""
        figures = figures_of(run.results)
        found: dict[Figure, Limit] = {}
        if not figures or not self.settings.enabled:
            return found
        keys = self._keys(run, nodes, figures)
        types = {name: node.instance_type for name, node in nodes.items()}
        alike = {types.get(name) for name in run.spec.nodes}
        for figure in figures:
            norm = self.norms.get(keys[figure]) if keys else None
            limit = self._learned(norm, run.finished) if norm is not None else None
            if limit is None and self.settings.sanity and run.spec.transport == "efa" and len(alike) == 1:
                told = sanity_floor(run.spec.probe, figure[1], figure[2], next(iter(alike)), ceiling(figure[0], run.results, types))
                limit = Limit(told[0], told[1], Reason.BELOW_FLOOR, "sanity") if told is not None else None
            if limit is not None:
                found[figure] = limit
        return found

    def _learned(self, norm: Norm, now: float) -> Limit | None:
        samples = norm.sketch.samples(now)
        if samples < self.settings.samples:
            return None
        centre, spread = norm.sketch.centre, norm.sketch.spread
        below = min(max(self.settings.margin, SPREADS * spread), WIDEST)
        says = (f"baseline: {below:.0%} below {centre / 1e9:.4g} GB/s, the median of {samples:.0f} good runs with a spread of "
                f"{spread:.1%}; {norm.key.instance_type}, {norm.key.stratum}, software {norm.key.software}")
        return Limit(centre * (1 - below), says, Reason.BELOW_BASELINE, "baseline")

    # what a run teaches

    def observe(self, verdict: Verdict, nodes: Mapping[str, Node]) -> tuple[str, ...]:
        """Take in a judged run. Returns the identities of the nodes whose standing may differ now."""
        run = verdict.run
        figures = figures_of(run.results) if verdict.outcome in MEASURED and self.settings.enabled else {}
        keys = self._keys(run, nodes, figures) if figures else {}
        if not keys:
            return ()
        found = {node.instance_id: node for name in run.spec.nodes if (node := nodes.get(name)) is not None}
        watched = {one: self.nodes.setdefault(one, {}).setdefault(run.spec.probe, Watched()) for one in found}
        raised = {one for one, its in watched.items() if its.tracker.raised}
        good = verdict.outcome is Outcome.OK
        head = headline(figures)
        norm = self.norms.get(keys[head])
        share = None
        top = ceiling(head[0], run.results, {name: node.instance_type for name, node in nodes.items()})
        if top is not None:
            share = figures[head] / top
        x = None
        if norm is not None and norm.sketch.samples(run.finished) >= FEW:
            x = math.log(figures[head] / norm.sketch.centre)
        for one, its in watched.items():
            partner = next((other for other in found if other != one), one)
            self._compare(its, one, partner, head, keys[head], Pair(run.finished, figures[head], x, share))
            own = software_of(result for result in run.results if result.node == found[one].name)[0]
            self._track(its, one, run, x if norm is not None and self._usable(norm, run.finished) else None, own,
                        teach=good and not raised - {one},
                        blamed=any(watched[other].tracker.changed is not None for other in watched if other != one))
            self._dirty_nodes.add(one)
        if good and not any(its.tracker.raised for its in watched.values()):
            says = software_of(run.results)[1]
            for figure, value in figures.items():
                self._teach(keys[figure], value, run.finished, says)
        return tuple(watched)

    def _usable(self, norm: Norm, now: float) -> bool:
        return norm.sketch.samples(now) >= self.settings.samples

    def _compare(self, its: Watched, node: str, partner: str, head: Figure, key: NormKey, pair: Pair) -> None:
        """Note the last pair of a node, and how it stands among its peers."""
        group = key.group
        if its.figure != head or its.group != group:
            if its.group is not None and its.group in self._peers:
                self._peers[its.group].drop(node)
            if its.figure != head:
                its.pairs = {}
            its.figure, its.group = head, group
        its.pairs.pop(partner, None)
        its.pairs[partner] = pair
        for who in [who for who, one in its.pairs.items() if one.at <= pair.at - self._interval][:-1] if len(its.pairs) > 1 else ():
            del its.pairs[who]
        while len(its.pairs) > self._best_of:
            del its.pairs[next(iter(its.pairs))]
        if pair.x is not None:
            best = max(one.x for one in its.pairs.values() if one.x is not None)
            self._peers.setdefault(group, Peers()).tell(node, pair.at, pair.x, best)

    def _track(self, its: Watched, node: str, run: Run, x: float | None, software: str, *, teach: bool, blamed: bool) -> None:
        tracker = its.tracker
        if tracker.software != software:
            if tracker.software:
                values = [pair.value / math.exp(pair.x) for pair in its.pairs.values() if pair.x is not None]
                tracker.upgraded(software, values[0] * math.exp(tracker.centre) if values else None, run.finished)
                last = list(its.pairs.items())[-1:]
                its.pairs = dict(last)
            tracker.software = software
        if x is None or blamed:
            return  # a partner that is known to be slow explains what is seen
        level = self._level(its.group)
        kind = tracker.observe(x - level, run.finished, teach=teach, half_life=self.settings.half_life)
        if kind is not None:
            self.found.append(Changed(node, run.spec.probe, kind, tracker.size))

    def _level(self, group: NormKey | None) -> float:
        """How much faster or slower most nodes of a kind are than their baselines: that is no change of one of them."""
        peers = self._peers.get(group) if group is not None else None
        level = peers.level() if peers is not None else None
        if peers is None or level is None:
            return 0.0
        noise = 3 * 1.2533 * 0.02 / math.sqrt(peers.count)  # three standard errors of a median of runs that differ by 2 %
        return level if abs(level) > noise else 0.0

    def _teach(self, key: NormKey, value: float, at: float, says: str) -> None:
        norm = self.norms.get(key)
        if norm is None:
            norm = self.norms[key] = Norm(key, Sketch(self.settings.half_life), says)
            before = self.current.get(norm.kin)
            if before is not None and before.sketch.samples(at) >= self.settings.samples:
                norm.before = before.frozen(at)
            elif before is not None:
                norm.before = before.before
            self._bound()
        norm.sketch.add(value, at)
        present = self.current.get(norm.kin)
        if present is None or present.sketch.last is None or at >= present.sketch.last:
            self.current[norm.kin] = norm
        self._dirty_norms.add(key)

    def _bound(self) -> None:
        """Give up the norms that were taught longest ago."""
        while len(self.norms) > MOST_NORMS:
            oldest = min((norm for norm in self.norms.values() if norm.sketch.last is not None), key=lambda norm: norm.sketch.last or 0.0)
            self._forget(oldest)

    def _forget(self, norm: Norm) -> None:
        del self.norms[norm.key]
        if self.current.get(norm.kin) is norm:
            del self.current[norm.kin]
        self._dirty_norms.discard(norm.key)
        self._gone.add(NORM + norm.key.id)

    # how nodes stand

    def standing(self, node: str, now: float) -> NodeStanding:
        """How a node stands at `now`."""
        ratios: list[Ratio] = []
        changes: dict[tuple[str, str], bool] = {}
        for probe, its in sorted(self.nodes.get(node, {}).items()):
            ratios += self._ratios(probe, its, now)
            for kind in KINDS:
                if its.tracker.changed == kind:
                    changes[probe, kind] = True
                elif its.tracker.ended.get(kind, -math.inf) > now - self._interval:
                    changes[probe, kind] = False
        return NodeStanding(tuple(ratios), changes)

    def _ratios(self, probe: str, its: Watched, now: float) -> Iterator[Ratio]:
        if its.figure is None:
            return
        pairs = [pair for pair in its.pairs.values() if pair.at > now - max(self._interval, 1.0)] or list(its.pairs.values())[-1:]
        xs = [pair.x for pair in pairs if pair.x is not None]
        shares = [pair.share for pair in pairs if pair.share is not None]
        peers = self._peers.get(its.group) if its.group is not None else None
        usual = peers.usual() if peers is not None else None
        if xs and its.tracker.samples:  # the tracker only counts runs against a baseline that is learned
            yield Ratio("baseline", probe, its.figure, math.exp(max(xs)))
        if xs and usual is not None:
            yield Ratio("peers", probe, its.figure, math.exp(max(xs) - usual))
        if shares:
            yield Ratio("ceiling", probe, its.figure, max(shares))

    def states(self) -> dict[tuple[str, str], int]:
        """Nodes by probe and state: `learning`, `learned`, `changed`."""
        counts: dict[tuple[str, str], int] = {}
        for probes in self.nodes.values():
            for probe, its in probes.items():
                state = "changed" if its.tracker.changed is not None else "learned" if its.tracker.learned else "learning"
                for name in ("learning", "learned", "changed"):
                    counts[probe, name] = counts.get((probe, name), 0) + (name == state)
        return counts

    def heads(self) -> Iterator[tuple[Norm, float | None]]:
        """The present baselines of main figures, each with the level of its kind (1: as usual; None: too few nodes)."""
        main = {(probe, its.figure) for probes in self.nodes.values() for probe, its in probes.items() if its.figure is not None}
        for norm in self.current.values():
            key = norm.key
            if (key.probe, (key.operation, key.bytes, key.memory, key.kind)) in main:
                peers = self._peers.get(norm.group)
                level = peers.level() if peers is not None else None
                yield norm, math.exp(level) if level is not None else None

    # who is there, and what is kept

    def keep(self, ids: Iterable[str]) -> None:
        """Forget the nodes that are not among `ids`."""
        wanted = frozenset(ids)
        for node in [node for node in {*self.nodes, *self.orders} if node not in wanted]:
            self.forget(node)

    def forget(self, node: str) -> None:
        """Begin anew with a node."""
        for its in self.nodes.pop(node, {}).values():
            if its.group is not None and its.group in self._peers:
                self._peers[its.group].drop(node)
        self.orders.pop(node, None)
        self._dirty_nodes.discard(node)
        self._gone.add(NODE + node)

    def asked_anew(self, node: str, order: str | None) -> None:
        """Begin anew with a node when an operator asked for it: once for each `order`, over restarts as well."""
        if order is None or self.orders.get(node) == order:
            return
        self.forget(node)
        self.orders[node] = order[:ORDER_LENGTH]
        self._gone.discard(NODE + node)
        self._dirty_nodes.add(node)

    def changed_records(self) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Records of the journal that differ since the last call, and keys of those that are gone."""
        records: dict[str, dict[str, Any]] = {}
        for node in self._dirty_nodes:
            records[NODE + node] = {probe: its.dump() for probe, its in self.nodes.get(node, {}).items()}
            if node in self.orders:
                records[NODE + node][ORDER] = {"text": self.orders[node]}
        records |= {NORM + key.id: self.norms[key].dump() for key in self._dirty_norms}
        gone = self._gone - records.keys()
        self._dirty_nodes, self._dirty_norms, self._gone = set(), set(), set()
        return records, gone

    def load(self, nodes: Iterable[tuple[str, Mapping[str, Any]]], norms: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Take back what was kept. Returns what could not be used, in words: those records begin anew, the others are kept."""
        problems: list[str] = []
        for name, record in norms:
            try:
                norm = Norm.load(record, self.settings.half_life)
                if norm.key.id != name or norm.sketch.last is None:
                    raise ValueError("it stands under a wrong name or holds nothing")
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                problems.append(f"baseline {name[:40]!r} cannot be read and is learned anew: {error}")
                self._gone.add(NORM + name)
                continue
            self.norms[norm.key] = norm
            present = self.current.get(norm.kin)
            if present is None or (present.sketch.last or 0.0) < norm.sketch.last:
                self.current[norm.kin] = norm
        self._bound()
        for node, record in nodes:
            try:
                watched = {str(probe): Watched.load(its, self._best_of) for probe, its in record.items() if probe != ORDER}
                order = str(record[ORDER]["text"])[:ORDER_LENGTH] if ORDER in record else None
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                problems.append(f"the baseline of node {node[:40]!r} cannot be read and is learned anew: {error}")
                self._gone.add(NODE + node)
                continue
            self.nodes[node] = watched
            if order is not None:
                self.orders[node] = order
        return problems

    def _keys(self, run: Run, nodes: Mapping[str, Node], figures: Mapping[Figure, float]) -> dict[Figure, NormKey]:
        if self._last[0] is run:
            return self._last[1]
        found = [nodes.get(name) for name in run.spec.nodes]
        there = [node for node in found if node is not None]
        if len(there) < len(found) or not there:
            return {}
        shared = (types_of(there), distance_of(there), shape_of(run.results), software_of(run.results)[0])
        self._last = (run, {figure: NormKey(run.spec.probe, *figure, *shared) for figure in figures})
        return self._last[1]


def figures_of(results: Sequence[Result]) -> dict[Figure, float]:
    """Every bandwidth of a run, of several ranks that measured the same the slowest."""
    found: dict[Figure, float] = {}
    for result in results:
        for row in result.measurements:
            name = f"{row.operation}:{row.variant}" if row.variant else row.operation
            for size, rate in zip(row.bytes, row.bandwidth, strict=True):
                if rate is not None and 0 < rate < 1e18:
                    figure = (name, size, row.memory, row.kind)
                    found[figure] = min(rate, found.get(figure, rate))
    return found


def headline(figures: Iterable[Figure]) -> Figure:
    """The figure that stands for a run: of the first operation the largest size, as in the published bandwidths."""
    ordered = sorted(figures, key=lambda figure: (figure[0], figure[2], figure[3], -figure[1]))
    return ordered[0]


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.10g}") if value > 1e8 else float(f"{value:.6g}")
