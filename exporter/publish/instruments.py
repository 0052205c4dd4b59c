"""Counters and histograms of the control loop: plain arrays per label set, rendered per owner when they changed.

One thread writes them. Nothing here is read by a scrape: a scrape reads what was rendered.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from exporter.publish import render
from exporter.publish.family import Family, Kind
from exporter.publish.render import Exemplar, Piece

Labels = tuple[str, ...]


class Counters:
    """All counters of one family. Label values come in the declared order."""

    def __init__(self, family: Family) -> None:
        if family.kind is not Kind.COUNTER:
            raise ValueError(f"{family.name} is a {family.kind.value}, not a counter")
        self.family = family
        self._owners: dict[str, dict[Labels, float]] = {}
        self._dirty: set[str] = set()

    def start(self, labels: Iterable[Labels]) -> None:
        """Show these label sets with 0 where they have not counted yet: a rate sees the first event only if a 0 came before it."""
        for values in labels:
            self.add(values, 0)

    def add(self, values: Labels, amount: float = 1) -> None:
        """Count. Raises ValueError for a negative amount or a wrong number of labels."""
        if amount < 0:
            raise ValueError(f"{self.family.name} cannot count {amount}")
        owner = owner_of(self.family, values)
        mine = self._owners.setdefault(owner, {})
        if amount or values not in mine:
            mine[values] = mine.get(values, 0) + amount
            self._dirty.add(owner)

    def raise_to(self, values: Labels, total: float) -> None:
        """Make the count `total`, which somebody else counts; a total below the present count changes nothing."""
        self.add(values, max(0.0, total - self.value(values)))

    def value(self, values: Labels) -> float:
        """The present count, 0 for a label set never seen."""
        return self._owners.get(owner_of(self.family, values), {}).get(values, 0)

    def forget(self, owner: str) -> None:
        """Drop everything of one owner."""
        if self._owners.pop(owner, None) is not None:
            self._dirty.add(owner)

    def rendered(self) -> list[tuple[str, Piece | None]]:
        """What changed since the last call, by owner; None where an owner is gone."""
        out = [(owner, self._piece(owner)) for owner in sorted(self._dirty)]
        self._dirty.clear()
        return out

    def _piece(self, owner: str) -> Piece | None:
        mine = self._owners.get(owner)
        return render.gauges(self.family, sorted(mine.items())) if mine else None


class _Cells:
    __slots__ = ("counts", "exemplars", "lines", "piece", "total")

    def __init__(self, family: Family, values: Labels) -> None:
        self.lines = render.histogram_lines(family, values)
        self.counts = [0] * (len(family.buckets) + 1)
        self.total = 0.0
        self.exemplars: list[Exemplar | None] = [None] * len(self.counts) if family.exemplars else []
        self.piece: Piece | None = None


class Histograms:
    """All histograms of one family, with the family's fixed buckets."""

    def __init__(self, family: Family) -> None:
        if family.kind is not Kind.HISTOGRAM:
            raise ValueError(f"{family.name} is a {family.kind.value}, not a histogram")
        self.family = family
        self._owners: dict[str, dict[Labels, _Cells]] = {}
        self._dirty: set[str] = set()

    def start(self, labels: Iterable[Labels]) -> None:
        """Show these label sets with empty buckets."""
        for values in labels:
            self._cells(values)

    def observe(self, values: Labels, value: float, run_id: str | None = None, timestamp: float = 0.0) -> None:
        """Count `value` in its bucket. A `run_id` becomes the bucket's exemplar where the family has them."""
        if math.isnan(value):  # it has no bucket and would spoil the sum
            raise ValueError(f"{self.family.name} cannot observe NaN")
        cells = self._cells(values)
        i = bisect_left(self.family.buckets, value)
        cells.counts[i] += 1
        cells.total += value
        cells.piece = None
        if run_id is not None and cells.exemplars:
            cells.exemplars[i] = Exemplar(run_id, value, timestamp)
        self._dirty.add(owner_of(self.family, values))

    def count(self, values: Labels) -> int:
        """Observations so far, 0 for a label set never seen."""
        cells = self._owners.get(owner_of(self.family, values), {}).get(values)
        return sum(cells.counts) if cells else 0

    def forget(self, owner: str) -> None:
        """Drop everything of one owner."""
        if self._owners.pop(owner, None) is not None:
            self._dirty.add(owner)

    def rendered(self) -> list[tuple[str, Piece | None]]:
        """What changed since the last call, by owner; None where an owner is gone."""
        out = [(owner, self._piece(owner)) for owner in sorted(self._dirty)]
        self._dirty.clear()
        return out

    def _cells(self, values: Labels) -> _Cells:
        owner = owner_of(self.family, values)
        mine = self._owners.setdefault(owner, {})
        cells = mine.get(values)
        if cells is None:
            cells = mine[values] = _Cells(self.family, values)
            self._dirty.add(owner)
        return cells

    def _piece(self, owner: str) -> Piece | None:
        mine = self._owners.get(owner)
        if not mine:
            return None
        pieces = []
        for _, cells in sorted(mine.items()):
            if cells.piece is None:
                cells.piece = render.histogram(cells.lines, cells.counts, cells.total, cells.exemplars)
            pieces.append(cells.piece)
        return render.together(pieces)


def owner_of(family: Family, values: Sequence[str]) -> str:
    """The owner of a label set: a node, a target, a probe, or "" where there is none. Raises ValueError for a wrong number of values."""
    if len(values) != len(family.labels):
        raise ValueError(f"{family.name} has the labels {', '.join(family.labels) or '(none)'}, got {len(values)} values")
    label = family.owner_label
    return "" if label is None else values[family.labels.index(label)]
