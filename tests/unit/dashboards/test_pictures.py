"""The renderer: values in words, variables filled and tables joined as Grafana does, and a page of every kind of panel."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from dashboards.pictures.page import _merged, page
from dashboards.pictures.source import Series, Source, SourceError, fill
from dashboards.pictures.units import decades, show, ticks
from dashboards.store import shipped


@pytest.mark.parametrize(("value", "unit", "shown"), [
    (0.0, "short", "0"), (1.0, "short", "1"), (15300.0, "short", "15.3 k"), (0.000047, "s", "47 us"), (0.25, "s", "250 ms"),
    (0.0, "s", "0 s"), (59.0, "s", "59 s"),
    (7200.0, "s", "2 h"), (172800.0, "s", "2 d"), (0.995, "percentunit", "99.5 %"), (6.0e10, "Bps", "60 GB/s"),
    (1e6, "bytes", "1 MB"), (3.0, "suffix:/h", "3/h"), (math.nan, "s", "NaN"), (math.inf, "Bps", "inf"), (-math.inf, "s", "-inf"),
    (-0.5, "percentunit", "-50 %"), (2.0, "reqps", "2 req/s")])
def test_values_are_shown_as_people_read_them(value: float, unit: str, shown: str) -> None:
    assert show(value, unit) == shown


def test_decimals_are_taken_where_they_are_given() -> None:
    assert show(0.98765, "percentunit", 1) == "98.8 %"


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 1e-9), (-5.0, 5.0), (3.0, 3.0), (0.0, 7.3e10)])
def test_ticks_are_few_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 <= one <= high + abs(high) * 1e-9 for one in found)


def test_decades() -> None:
    assert decades(1e-5, 1e-2) == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2])


class TestFill:
    """Variables."""

    def test_all_forms(self) -> None:
        values = {"node": "a.b", "window": "1h", "__range": "60s"}
        assert fill('x{node=~"$node"}[$window] ${node} ${node:raw} [$__range]', values) == 'x{node=~"a.b"}[1h] a.b a.b [60s]'

    def test_an_unknown_one_is_an_error(self) -> None:
        with pytest.raises(KeyError, match="nobody"):
            fill("$nobody", {})


class Canned(Source):
    """A source of one answer for everything."""

    def __init__(self, series: list[Series]) -> None:
        super().__init__("http://127.0.0.1:9", 600.0)
        self._series = series

    def instant(self, expr: str) -> list[Series]:
        return self._series

    def range(self, expr: str) -> list[Series]:
        return self._series

    def _get(self, path: str, **parameters: str) -> Any:
        return ["<b>a</b>"]


class Checked(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def points(*values: float) -> tuple[tuple[float, float], ...]:
    return tuple((1.7e9 + 60.0 * index, value) for index, value in enumerate(values))


@pytest.mark.parametrize("uid", shipped())
@pytest.mark.parametrize("series", [
    [], [Series({}, points(1.0))], [Series({"node": "<script>alert(1)</script>", "le": "0.1"}, points(1.0, math.nan, math.inf, 2.0))],
    [Series({"node": f"n{index}", "le": bound}, points(0.0, 1.0, 2.0)) for index, bound in enumerate(("0.1", "1.0", "+Inf"))],
    [Series({"node": "a"}, points(0.0, 0.0)), Series({"node": "b"}, points(-1.0, 1e300))]],
    ids=["none", "one", "hostile", "buckets", "odd"])
def test_every_board_can_be_drawn_whatever_comes(uid: str, series: list[Series]) -> None:
    text, height = page(shipped()[uid], Canned(series), {})
    found = Checked()
    found.feed(text)
    assert "script" not in found.tags
    assert "b" not in found.tags or "<b>a</b>" not in text
    assert 400 < height < 10_000
    assert found.tags.count("h2") == sum(panel["type"] != "row" for panel in shipped()[uid]["panels"])


def test_a_source_that_is_not_there_is_told() -> None:
    with pytest.raises(SourceError, match="does not answer"):
        Source("http://127.0.0.1:9", 60.0).instant("up")


def test_rows_of_a_table_are_joined_by_the_labels_they_share() -> None:
    def one(value: float, **labels: str) -> Series:
        return Series(labels, ((1.0, value),))

    rows = _merged([("A", [one(0.0, node="a"), one(1.0, node="b")]), ("B", [one(7.0, node="a", transport="tcp")]),
                    ("C", [one(9.0, node="c")])])
    assert rows == [{"node": "a", "Value #A": 0.0, "Value #B": 7.0, "transport": "tcp"}, {"node": "b", "Value #A": 1.0},
                    {"node": "c", "Value #C": 9.0}]
