"""The pages that scrapes get, kept ready.

Text is rendered once per family and owner (`Piece`), pieces are kept in chunks of some 48 KiB, and a chunk is deflated once when a piece
in it changed. A page is the list of its chunks: a scrape writes them one after the other. `Snapshot` never changes after it was made;
the one writer swaps `Store.snapshot` by reference and any number of threads read it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from exporter.publish import render
from exporter.publish.deflate import NOTHING, Segment, Sums, add, segment
from exporter.publish.family import Family
from exporter.publish.render import Piece

CHUNK = 48 * 1024
COME_BACK = 0.95
"""A dropped family returns when the page with it stays below this share of the cap, so that it does not flap at the cap."""


@dataclass(frozen=True)
class Page:
    """One format of one snapshot: its segments in order, and their sums."""

    segments: tuple[Segment, ...] = ()
    sums: Sums = NOTHING


@dataclass(frozen=True)
class Snapshot:
    """What is published at one moment. `series` counts what is shown, `dropped` what the cap leaves out, by family name."""

    classic: Page = Page()
    openmetrics: Page = Page()
    series: int = 0
    dropped: tuple[tuple[str, int], ...] = ()


class _Chunk:
    """Owners in order, their pieces, and the segments made of them."""

    __slots__ = ("classic", "openmetrics", "owners", "pieces", "size")

    def __init__(self, owners: list[str], pieces: dict[str, Piece]) -> None:
        self.owners = owners
        self.pieces = pieces
        self.size = sum(len(piece.text) for piece in pieces.values())
        self.classic: Segment | None = None
        self.openmetrics: Segment | None = None

    def put(self, owner: str, piece: Piece) -> None:
        old = self.pieces.get(owner)
        if old is None:
            insort(self.owners, owner)
        self.size += len(piece.text) - (len(old.text) if old else 0)
        self.pieces[owner] = piece
        self.classic = None

    def remove(self, owner: str) -> None:
        self.size -= len(self.pieces.pop(owner).text)
        self.owners.remove(owner)
        self.classic = None

    def halves(self) -> tuple[_Chunk, _Chunk]:
        middle = len(self.owners) // 2
        left, right = self.owners[:middle], self.owners[middle:]
        return _Chunk(left, {o: self.pieces[o] for o in left}), _Chunk(right, {o: self.pieces[o] for o in right})

    def segments(self) -> tuple[Segment, Segment]:
        if self.classic is None or self.openmetrics is None:
            pieces = [self.pieces[owner] for owner in self.owners]
            self.classic = segment(b"".join(piece.text for piece in pieces))
            self.openmetrics = self.classic
            if any(piece.openmetrics is not None for piece in pieces):
                self.openmetrics = segment(b"".join(piece.text if piece.openmetrics is None else piece.openmetrics for piece in pieces))
        return self.classic, self.openmetrics


class _Shelf:
    """All pieces of one family, in chunks ordered by owner."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.headers = (segment(render.classic_header(family)), segment(render.openmetrics_header(family)))
        self.chunks: list[_Chunk] = []
        self.series = 0

    def put(self, owner: str, piece: Piece) -> bool:
        """Store a piece. False when it is the same as before."""
        if not self.chunks:
            self.chunks.append(_Chunk([], {}))
        i = self._find(owner)
        chunk = self.chunks[i]
        old = chunk.pieces.get(owner)
        if old == piece:
            return False
        chunk.put(owner, piece)
        self.series += piece.series - (old.series if old else 0)
        if chunk.size > 2 * CHUNK and len(chunk.owners) > 1:
            self.chunks[i : i + 1] = chunk.halves()
        return True

    def remove(self, owner: str) -> bool:
        """Drop an owner's piece. False when there is none."""
        if not self.chunks:
            return False
        i = self._find(owner)
        chunk = self.chunks[i]
        old = chunk.pieces.get(owner)
        if old is None:
            return False
        chunk.remove(owner)
        self.series -= old.series
        if not chunk.owners:
            del self.chunks[i]
        elif chunk.size < CHUNK // 2:
            self._join(i)
        return True

    def segments(self) -> Iterator[tuple[Segment, Segment]]:
        if self.series:
            yield self.headers
            for chunk in self.chunks:
                yield chunk.segments()

    def _find(self, owner: str) -> int:
        return max(0, bisect_right(self.chunks, owner, key=lambda chunk: chunk.owners[0] if chunk.owners else "") - 1)

    def _join(self, i: int) -> None:
        other = i - 1 if i else i + 1
        if not 0 <= other < len(self.chunks):
            return
        low, high = sorted((i, other))
        a, b = self.chunks[low], self.chunks[high]
        if a.size + b.size <= CHUNK:
            self.chunks[low : high + 1] = [_Chunk(a.owners + b.owners, {**a.pieces, **b.pieces})]


class Store:
    """Pieces by family and owner. `put` and `remove` change nothing that is visible; `commit` swaps the snapshot.

    Above `max_series` families are left out whole in the order of their `drop`; the others are always shown. `on_plan` is called in every
    commit with the series of each family and the names of those dropped, before the page is made, so that it may still `put`
    into families of constant size.
    """

    def __init__(self, families: Sequence[Family], max_series: int = 50_000,
                 on_plan: Callable[[dict[str, int], frozenset[str]], None] | None = None) -> None:
        self._shelves = {family.name: _Shelf(family) for family in families}
        self._droppable = sorted((family for family in families if family.drop), key=lambda family: family.drop)
        self._max_series = max_series
        self._on_plan = on_plan
        self._dropped: frozenset[str] = frozenset()
        self._dirty = True
        self.snapshot = Snapshot()

    def put(self, family: Family, owner: str, piece: Piece | None) -> None:
        """Replace what `owner` has in `family`; None removes it."""
        shelf = self._shelves[family.name]
        changed = shelf.remove(owner) if piece is None or not piece.series else shelf.put(owner, piece)
        self._dirty = self._dirty or changed

    def commit(self) -> Snapshot:
        """Make what was put visible, in one swap. Cheap when nothing changed."""
        if not self._dirty:
            return self.snapshot
        counts = {name: shelf.series for name, shelf in self._shelves.items()}
        self._dropped = self._plan(counts)
        if self._on_plan is not None:
            self._on_plan(counts, self._dropped)
        shown = [shelf for name, shelf in self._shelves.items() if name not in self._dropped]
        pairs = [pair for shelf in shown for pair in shelf.segments()]
        classic, openmetrics = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        self.snapshot = Snapshot(
            classic=Page(classic, add(NOTHING, classic)),
            openmetrics=Page(openmetrics, add(NOTHING, openmetrics)),
            series=sum(shelf.series for shelf in shown),
            dropped=tuple((name, shelf.series) for name, shelf in self._shelves.items() if name in self._dropped),
        )
        self._dirty = False
        return self.snapshot

    def _plan(self, counts: dict[str, int]) -> frozenset[str]:
        total = sum(counts.values())
        dropped = set()
        for family in self._droppable:
            limit = self._max_series * (COME_BACK if family.name in self._dropped else 1)
            if total <= limit:
                break
            if counts[family.name]:
                dropped.add(family.name)
                total -= counts[family.name]
        return frozenset(dropped)
