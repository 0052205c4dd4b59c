"""What is published of pairs: the latest pair of each node, and every pair of a suspect; the newest `limit` of them.

A node is in one pair of a round, so its latest pair is that of the latest round. Which node of a pair is bad, the pair does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from exporter.publish import families as f
from exporter.publish import render
from exporter.publish.family import Family
from exporter.publish.nodes import Figure
from exporter.publish.render import Piece

LIMIT = 500
"""Pairs that are shown at most, over all probes. The oldest goes first, those of suspects last."""
ROWS = 4
"""Bandwidths that are shown of one pair at most, in the order of their operations."""

Key = tuple[str, str, str]
"""Probe, node of rank 0, node of rank 1."""


@dataclass
class _Pair:
    finished: float
    healthy: bool
    figures: tuple[Figure, ...]


class Pairs:
    """The pairs and their pieces. `interval` is how long a pair of a suspect is kept, in seconds."""

    def __init__(self, *, interval: float, limit: int = LIMIT) -> None:
        self._interval = interval
        self._limit = limit
        self._pairs: dict[Key, _Pair] = {}
        self._latest: dict[tuple[str, str], Key] = {}
        self._suspects: Set[str] = frozenset()
        self._dirty: set[str] = set()

    def record(self, probe: str, nodes: tuple[str, str], *, finished: float, healthy: bool, figures: Iterable[Figure]) -> None:
        """Take in one conclusive run of two different nodes, in the order of their ranks."""
        key = (probe, *nodes)
        rows = {one.key: one for one in sorted(figures, key=lambda one: one.value) if one.family is f.NODE_BANDWIDTH}
        self._pairs.pop(key, None)  # so that the order of the dictionary is that of the runs
        self._pairs[key] = _Pair(finished, healthy, tuple(rows[one] for one in sorted(rows)[:ROWS]))
        self._dirty.add(nodes[0])
        before = {self._latest.get((probe, node)) for node in nodes} - {None, key}
        for node in nodes:
            self._latest[probe, node] = key
        for old in before:
            if old is not None and not self._wanted(old, finished):
                self._drop(old)
        while len(self._pairs) > self._limit:
            self._drop(next((one for one in self._pairs if not self._suspect(one)), next(iter(self._pairs))))

    def suspects(self, nodes: Iterable[str], now: float) -> None:
        """These nodes are suspects now, and no others."""
        fresh = frozenset(nodes)
        if fresh == self._suspects and not fresh:
            return
        self._suspects = fresh
        for key in [key for key in self._pairs if not self._wanted(key, now)]:
            self._drop(key)

    def remove(self, node: str) -> None:
        """Forget a node that left."""
        for key in [key for key in self._pairs if node in key[1:]]:
            self._drop(key)
        for place in [place for place in self._latest if place[1] == node]:
            del self._latest[place]

    def rendered(self) -> Iterator[tuple[Family, str, Piece | None]]:
        """What changed since the last call, by node of rank 0; None where nothing is left."""
        if not self._dirty:
            return
        mine: dict[str, list[tuple[Key, _Pair]]] = {node: [] for node in sorted(self._dirty)}
        for key, pair in self._pairs.items():
            if key[1] in mine:
                mine[key[1]].append((key, pair))
        for node, pairs in mine.items():
            pairs.sort(key=lambda item: item[0])
            verdicts: list[tuple[Sequence[str], float]] = [(key, float(pair.healthy)) for key, pair in pairs]
            rates: list[tuple[Sequence[str], float]] = [((*key, *one.labels), one.value) for key, pair in pairs for one in pair.figures]
            for family, samples in ((f.PAIR_HEALTHY, verdicts), (f.PAIR_BANDWIDTH, rates)):
                yield family, node, render.gauges(family, samples) if samples else None
        self._dirty.clear()

    def _wanted(self, key: Key, now: float) -> bool:
        latest = any(self._latest.get((key[0], node)) == key for node in key[1:])
        return latest or (self._suspect(key) and self._pairs[key].finished > now - self._interval)

    def _suspect(self, key: Key) -> bool:
        return key[1] in self._suspects or key[2] in self._suspects

    def _drop(self, key: Key) -> None:
        if self._pairs.pop(key, None) is not None:
            self._dirty.add(key[1])
