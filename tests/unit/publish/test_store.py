"""The cached pages: what was put is what is shown, whatever the order of events."""

from __future__ import annotations

import gzip
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.publish import render
from exporter.publish.deflate import GZIP_HEADER, gzip_trailer
from exporter.publish.family import Attribution, Cardinality, Family, Kind
from exporter.publish.render import Exemplar, Piece
from exporter.publish.store import CHUNK, Page, Snapshot, Store


def node_family(name: str, drop: int = 0) -> Family:
    return Family(name, Kind.GAUGE, "Help.", ("node", "x"), Attribution.NODE, Cardinality.PER_NODE, drop=drop)


A, B, C = node_family("efapulse_a", 20), node_family("efapulse_b", 10), node_family("efapulse_c")
HISTOGRAM = Family("efapulse_h_seconds", Kind.HISTOGRAM, "Help.", ("target",), Attribution.ENDPOINT, Cardinality.PER_TARGET, unit="seconds",
                   buckets=(1.0,), exemplars=True)
FAMILIES = (A, B, C)


def piece(family: Family, owner: str, count: int, value: float = 1.0, width: int = 1) -> Piece:
    return render.gauges(family, [((owner, f"{i:0{width}d}"), value) for i in range(count)])


def text(page: Page) -> bytes:
    return b"".join(segment.text for segment in page.segments)


def gunzipped(page: Page) -> bytes:
    return gzip.decompress(GZIP_HEADER + b"".join(segment.deflated for segment in page.segments) + gzip_trailer(page.sums))


def expected(families: tuple[Family, ...], pieces: dict[tuple[str, str], Piece]) -> bytes:
    out = []
    for family in families:
        mine = sorted((owner, piece) for (name, owner), piece in pieces.items() if name == family.name)
        if mine:
            out.append(render.classic_header(family) + b"".join(piece.text for _, piece in mine))
    return b"".join(out)


EVENT = st.tuples(st.sampled_from(FAMILIES), st.integers(0, 12).map(lambda i: f"node-{i}"), st.integers(0, 3), st.floats(0, 9),
                  st.sampled_from([1, CHUNK // 2]))


@settings(max_examples=60)
@given(st.lists(st.lists(EVENT, max_size=12), max_size=6))
def test_the_page_is_what_was_put_in_family_and_owner_order(rounds: list[list[tuple[Family, str, int, float, int]]]) -> None:
    store = Store(FAMILIES)
    model: dict[tuple[str, str], Piece] = {}
    for events in rounds:
        for family, owner, count, value, width in events:
            put = piece(family, owner, count, value, width) if count else None
            store.put(family, owner, put)
            if put is None:
                model.pop((family.name, owner), None)
            else:
                model[family.name, owner] = put
        snapshot = store.commit()
        assert text(snapshot.classic) == expected(FAMILIES, model)
        assert gunzipped(snapshot.classic) == text(snapshot.classic)
        assert gunzipped(snapshot.openmetrics) == text(snapshot.openmetrics)
        assert snapshot.series == sum(one.series for one in model.values())


def test_nothing_is_visible_before_the_commit() -> None:
    store = Store(FAMILIES)
    store.put(A, "n", piece(A, "n", 1))
    assert store.snapshot == Snapshot()
    store.commit()
    assert store.snapshot.series == 1


def test_a_snapshot_never_changes() -> None:
    store = Store(FAMILIES)
    store.put(A, "n", piece(A, "n", 1, 1.0))
    first = store.commit()
    before = text(first.classic)
    store.put(A, "n", piece(A, "n", 1, 2.0))
    store.put(A, "m", piece(A, "m", 1, 2.0))
    assert store.commit() is not first
    assert text(first.classic) == before


def test_a_commit_without_change_keeps_the_snapshot() -> None:
    store = Store(FAMILIES)
    store.put(A, "n", piece(A, "n", 1))
    first = store.commit()
    store.put(A, "n", piece(A, "n", 1))
    store.put(A, "nobody", None)
    assert store.commit() is first


def test_only_the_chunk_that_changed_is_deflated_again() -> None:
    store = Store(FAMILIES)
    for i in range(2000):
        store.put(A, f"node-{i:04d}", piece(A, f"node-{i:04d}", 5))
    before = store.commit().classic.segments
    store.put(A, "node-1000", piece(A, "node-1000", 5, 7.0))
    after = store.commit().classic.segments
    assert len(before) > 4
    assert sum(new is not old for new, old in zip(after, before, strict=True)) == 1


def test_chunks_stay_of_one_size_while_nodes_come_and_go() -> None:
    store = Store(FAMILIES)
    for i in range(3000):
        store.put(A, f"node-{i:04d}", piece(A, f"node-{i:04d}", 5))
    grown = store.commit().classic.segments[1:]
    assert max(len(segment.text) for segment in grown) <= 2 * CHUNK
    assert min(len(segment.text) for segment in grown) >= CHUNK // 3
    for i in range(3000):
        if i % 10:
            store.put(A, f"node-{i:04d}", None)
    shrunk = store.commit().classic.segments[1:]
    assert len(shrunk) <= len(grown) // 4


def test_an_owner_larger_than_a_chunk_is_a_chunk() -> None:
    store = Store(FAMILIES)
    store.put(A, "n", piece(A, "n", 3, width=CHUNK))
    store.put(A, "o", piece(A, "o", 1))
    assert gunzipped(store.commit().classic).count(b"\nefapulse_a{") == 4


def test_a_family_without_series_has_no_header() -> None:
    store = Store(FAMILIES)
    store.put(A, "n", piece(A, "n", 1))
    store.put(B, "n", piece(B, "n", 1))
    store.commit()
    store.put(A, "n", None)
    assert b"efapulse_a" not in text(store.commit().classic)


def test_formats_share_a_segment_unless_there_is_an_exemplar() -> None:
    store = Store((A, HISTOGRAM))
    store.put(A, "n", piece(A, "n", 1))
    store.put(HISTOGRAM, "t", render.histogram(render.histogram_lines(HISTOGRAM, ("t",)), [1, 0], 0.5, [Exemplar("run-1", 0.5, 1.0), None]))
    snapshot = store.commit()
    assert [one is other for one, other in zip(snapshot.classic.segments, snapshot.openmetrics.segments, strict=True)] == [
        False, True, False, False]
    assert b"run-1" in text(snapshot.openmetrics)
    assert b"run-1" not in text(snapshot.classic)


class TestCap:
    """Above the cap whole families go, in their order."""

    def filled(self, nodes: int, cap: int = 100) -> Store:
        store = Store(FAMILIES, cap)
        for i in range(nodes):
            for family in FAMILIES:
                store.put(family, f"node-{i:03d}", piece(family, f"node-{i:03d}", 1))
        store.commit()
        return store

    def dropped(self, store: Store) -> list[str]:
        return [name for name, _ in store.commit().dropped]

    def test_at_the_cap_nothing_is_dropped(self) -> None:
        assert self.filled(33).snapshot.dropped == ()

    def test_the_family_with_the_lowest_place_goes_first(self) -> None:
        store = self.filled(34)
        assert store.snapshot.dropped == (("efapulse_b", 34),)
        assert store.snapshot.series == 68
        assert b"efapulse_b" not in text(store.snapshot.classic)

    def test_further_families_follow_until_the_rest_fits(self) -> None:
        assert self.filled(60).snapshot.dropped == (("efapulse_a", 60), ("efapulse_b", 60))

    def test_a_family_without_a_place_is_shown_whatever_the_cap(self) -> None:
        store = self.filled(150)
        assert store.snapshot.series == 150
        assert b"efapulse_c" in text(store.snapshot.classic)

    def test_a_family_comes_back_only_well_below_the_cap(self) -> None:
        store = self.filled(34)
        store.put(C, "node-000", None)
        store.put(C, "node-001", None)
        assert self.dropped(store) == ["efapulse_b"]
        for i in range(2, 7):
            store.put(C, f"node-{i:03d}", None)
        assert self.dropped(store) == []
        assert store.snapshot.series == 95

    def test_what_is_dropped_is_kept_up_to_date(self) -> None:
        store = self.filled(34)
        store.put(B, "node-000", piece(B, "node-000", 1, 42.0))
        for i in range(10):
            store.put(A, f"node-{i:03d}", None)
        assert b'efapulse_b{node="node-000",x="0"} 42.0' in text(store.commit().classic)


def test_readers_see_whole_snapshots_while_one_writer_commits() -> None:
    store = Store(FAMILIES)
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        while not stop.is_set():
            page = store.snapshot.classic
            values = {line.rpartition(b" ")[2] for line in gunzipped(page).splitlines() if not line.startswith(b"#")}
            if len(values) > 1:
                problems.append(f"values of two commits in one page: {values}")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for value in range(100):
        for i in range(30):
            store.put(A, f"node-{i}", piece(A, f"node-{i}", 3, float(value)))
        store.commit()
    stop.set()
    for reader in readers:
        reader.join(10)
    assert problems == []
