"""The page for people: what it shows, that nothing of a cluster gets out of its place, and that it stays small."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from verdicts import canary, pair

from exporter.status import Looked, StatusBoard
from exporter.status.page import policy, render
from exporter.status.trails import SAMPLES, Sample, Trails
from exporter.status.view import HEIGHT, MATRIX, WIDTH, sparkline, view

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


def job(target: str = "chat") -> dict[str, object]:
    return {"id": f"canary/{target}/short", "probe": "canary", "target": target, "nodes": (), "next": 160.0, "prompt": "short"}


def board(*nodes: str, target: str = "chat", bad: str = "") -> StatusBoard:
    made = StatusBoard(clock=lambda: 100.0, pace=0.0)
    for index, (one, other) in enumerate(zip(nodes[::2], nodes[1::2], strict=True)):
        reason = "tcp_fallback" if bad in (one, other) and bad else "ok"
        made.verdict(pair(f"nixl-{index}", nodes=(one, other), reason=reason, at=100.0))
    made.verdict(canary(target=target))
    made.turn(lambda: Looked(150.0, "1.2.3", jobs=(job(target),), nodes=frozenset(nodes)))
    return made


def page(made: StatusBoard, now: float = 151.0) -> str:
    return render(view(made.snapshot, now)).decode()


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    VOID = frozenset({"meta", "br", "img", "rect", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(text: str) -> Balance:
    found = Balance()
    found.feed(text)
    assert found.open == []
    return found


def test_bad_and_good_nodes_pairs_and_canaries_are_there() -> None:
    text = page(board("node-a", "node-b", "node-c", "node-d", bad="node-a"))
    parsed(text)
    assert '<span class="badge bad">bad</span>' in text
    assert "nixl: 1 of 2 pairs bad" in text
    assert text.count('<polyline class="trace"') == 1
    for part in ("tcp_fallback", "node-a and node-b: tcp_fallback", "canary/chat/short", "in 9 s"):
        assert part in text


def test_nothing_yet_says_so() -> None:
    empty = StatusBoard(clock=lambda: 100.0, pace=0.0)
    empty.turn(lambda: Looked(150.0, "1.2.3"))
    text = page(empty)
    parsed(text)
    assert "Nothing is measured yet" in text
    assert '<span class="badge unknown">' in text


def test_a_page_before_the_first_turn_is_no_error() -> None:
    text = page(StatusBoard())
    parsed(text)
    assert "not yet" in text


def test_what_other_parts_cannot_do_is_told() -> None:
    made = StatusBoard(clock=lambda: 100.0, pace=0.0)
    made.turn(lambda: Looked(150.0, troubles=("the archive cannot write: <disk full>",)))
    assert "the archive cannot write: &lt;disk full&gt;" in page(made)


def test_a_loop_that_stands_still_is_told() -> None:
    assert "The control loop last told of itself" in page(board("a", "b"), now=1000.0)


@pytest.mark.parametrize("hostile", [HOSTILE, "</style><script>alert(1)</script>", "a\" onmouseover=\"alert(1)", "javascript:alert(1)"])
def test_names_of_a_cluster_stay_text(hostile: str) -> None:
    text = page(board(hostile, "b", target=hostile, bad=hostile))
    found = parsed(text)
    assert not found.tags & {"script", "img", "iframe", "object", "form"}
    assert not {name for name in found.attributes if name.startswith("on")} | found.attributes & {"src", "style"}
    assert all(link.startswith(("/api/", "/metrics")) for link in re.findall(r'href="([^"]*)"', text))
    assert "49" not in re.findall(r"&\{\{.{0,10}", text)


def test_nothing_is_loaded_and_nothing_runs() -> None:
    text = page(board("a", "b"))
    assert "http" not in text.replace("http-equiv", "")
    assert "script-src" not in policy()
    assert policy().startswith("default-src 'none'; style-src 'sha256-")


def test_a_large_fleet_has_a_bounded_page_with_the_bad_first() -> None:
    names = [f"node-{index:05d}" for index in range(3000)]
    made = board(*names, bad="node-02999")
    shown = view(made.snapshot, 151.0)
    (matrix,) = shown["matrices"]
    assert matrix["side"] == MATRIX
    assert {"node-02998", "node-02999"} <= set(matrix["nodes"])
    assert matrix["more"] == 3000 - MATRIX
    assert shown["squares"]["more"] == 1000
    assert len(render(shown)) < 600_000


class TestSparkline:
    """TTFT of the last requests."""

    def test_none_without_samples(self) -> None:
        assert sparkline([]) is None

    def test_a_gap_where_a_request_gave_no_figure_and_a_mark_where_it_failed(self) -> None:
        line = sparkline([Sample(1, "ok", "ok", 0.1), Sample(2, "failed", "timeout_header", None), Sample(3, "ok", "ok", 0.2),
                          Sample(4, "unknown", "shed", None)])
        assert line is not None
        assert len(line["lines"]) == 2
        assert [(mark["colour"], mark["reason"]) for mark in line["marks"]] == [("bad", "timeout_header"), ("unknown", "shed")]
        assert line["top"] == "200 ms"

    @pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1e-9, 5.0], [0.2] * 60])
    def test_it_stays_within_its_frame(self, values: list[float]) -> None:
        line = sparkline([Sample(index, "ok", "ok", value) for index, value in enumerate(values)])
        assert line is not None
        points = [tuple(map(float, point.split(","))) for part in line["lines"] for point in part.split(" ")]
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)


class TestTrails:
    """What is kept for the page, and for how long."""

    def test_an_unknown_run_does_not_change_the_square_of_a_pair(self) -> None:
        made = StatusBoard(clock=lambda: 100.0, pace=0.0)
        made.verdict(pair("one", nodes=("b", "a"), reason="tcp_fallback"))
        made.verdict(pair("two", nodes=("a", "b"), reason="unscheduled"))
        made.turn(lambda: Looked(150.0))
        assert {key: brief.run_id for key, brief in made.snapshot.seen.pairs.items()} == {("nixl", "a", "b"): "one"}

    def test_pairs_of_nodes_that_left_and_canaries_that_are_not_configured_go(self) -> None:
        made = board("a", "b", "c", "d")
        assert len(made.snapshot.seen.pairs) == 2
        made.turn(lambda: Looked(160.0, jobs=(), nodes=frozenset({"c", "d"})))
        assert [key[1:] for key in made.snapshot.seen.pairs] == [("c", "d")]
        assert made.snapshot.seen.canaries == {}

    def test_samples_and_pairs_are_bounded(self) -> None:
        made = board("a", "b")
        for _ in range(SAMPLES + 5):
            made.verdict(canary())
        made.turn(lambda: Looked(150.0, jobs=(job(),)))
        assert len(made.snapshot.seen.canaries["chat", "short"]) == SAMPLES
        few = Trails(max_pairs=2)
        for brief in (made.snapshot.seen.pairs["nixl", "a", "b"],):
            for name in "cde":
                few.pair(type(brief)(**{**{slot: getattr(brief, slot) for slot in brief.__slots__}, "nodes": ("a", name)}))
        assert [key[2] for key in few.seen().pairs] == ["d", "e"]
