"""The pause switch: what its ConfigMap means, and what a person may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.cli.exits import UsageError
from exporter.cli.pause import end_of, one_line
from exporter.kube.pause import Pause, parse, parse_time, show_time

NOW = parse_time("2026-11-30T00:00:00Z")


def switch(**data: str) -> Pause | None:
    return parse({"metadata": {"name": "efa-pulse-control"}, "data": data})


@pytest.mark.parametrize("one", [{}, {"data": None}, {"data": {}}, {"data": {"paused": "false"}}, {"data": {"paused": " No "}},
                                 {"data": {"paused": "0", "reason": "old"}}, {"data": []}])
def test_a_switch_that_asks_for_nothing_does_not_pause(one: dict[str, Any]) -> None:
    assert parse(one) is None


@pytest.mark.parametrize("text", ["true", "True", "yes", "1", "until monday"])
def test_everything_else_pauses_since_somebody_wanted_something(text: str) -> None:
    assert switch(paused=text) is not None


def test_a_pause_says_who_why_and_until_when() -> None:
    found = switch(paused="true", reason="switch upgrade", by="alice@laptop", until="2026-12-01T20:00:00+02:00")
    assert found is not None
    assert str(found) == "paused by alice@laptop: switch upgrade, until 2026-12-01T18:00:00Z"


def test_a_pause_ends_by_itself() -> None:
    found = switch(paused="true", until="2026-11-30T01:00:00Z")
    assert found is not None
    assert found.holds(NOW)
    assert found.holds(NOW + 3599)
    assert not found.holds(NOW + 3600)


def test_an_end_that_is_no_time_does_not_end_the_pause_and_is_told() -> None:
    found = switch(paused="true", reason="x", until="tomorrow")
    assert found is not None
    assert found.holds(NOW + 1e9)
    assert "'tomorrow' is no time" in str(found)


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_time("2026-11-30 00:00") == NOW
    assert show_time(NOW) == "2026-11-30T00:00:00Z"


@pytest.mark.parametrize(("text", "end"), [("2026-11-30T02:00:00Z", 7200.0), ("2h", 7200.0), ("90m", 5400.0), ("2026-12-01", 86400.0)])
def test_until_takes_a_time_or_a_duration(text: str, end: float) -> None:
    assert end_of(text, NOW) == NOW + end


@pytest.mark.parametrize(("text", "says"), [("2026-11-29T23:00:00Z", "is past"), ("soon", "no time such as"), ("0s", "is past"),
                                            ("", "no time"), ("2028-01-01", "at most a year"),
                                            ("9999-12-31T23:59:59-23:59", "too far away|at most a year")])
def test_until_refuses_what_makes_no_sense(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        end_of(text, NOW)


def test_a_reason_is_one_printable_line() -> None:
    assert one_line("  disk\n swap \x1b[31m ") == "disk swap [31m"
    assert one_line("\n") == "no reason given"
    assert len(one_line("x" * 9999)) == 500
