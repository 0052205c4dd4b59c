"""Quiet windows: over midnight, on some week days, in a time zone, on the days the clocks change."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config.quiet import Quiet, holding, next_open

DAILY = frozenset(range(7))
MONDAY, SATURDAY, SUNDAY = 0, 5, 6


def window(start: str, end: str | None, days: frozenset[int] = DAILY, zone: str = "UTC") -> Quiet:
    return Quiet(days, time.fromisoformat(start), time.fromisoformat(end) if end else None, zone)


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def opens(windows: list[Quiet], moment: datetime, zone: str = "UTC") -> str:
    found = next_open(windows, moment)
    assert found is not None
    return found.astimezone(ZoneInfo(zone)).strftime("%a %H:%M%z")


def test_the_begin_is_quiet_and_the_end_is_not() -> None:
    noon = [window("12:00", "13:00")]
    assert opens(noon, at("2026-01-05T11:59")) == "Mon 11:59+0000"
    assert opens(noon, at("2026-01-05T12:00")) == "Mon 13:00+0000"
    assert opens(noon, at("2026-01-05T13:00")) == "Mon 13:00+0000"


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    monday_night = [window("22:00", "06:00", frozenset({MONDAY}))]
    assert opens(monday_night, at("2026-01-05T23:00")) == "Tue 06:00+0000"
    assert opens(monday_night, at("2026-01-06T05:59")) == "Tue 06:00+0000"
    assert opens(monday_night, at("2026-01-05T05:00")) == "Mon 05:00+0000"
    assert opens(monday_night, at("2026-01-06T23:00")) == "Tue 23:00+0000"


def test_whole_days_and_windows_that_touch_are_one() -> None:
    weekend = [window("00:00", None, frozenset({SATURDAY, SUNDAY})), window("00:00", "06:00", frozenset({MONDAY}))]
    assert opens(weekend, at("2026-01-10T00:00")) == "Mon 06:00+0000"


def test_a_window_from_a_time_to_the_same_time_is_a_whole_day() -> None:
    assert opens([window("08:00", "08:00", frozenset({MONDAY}))], at("2026-01-05T09:00")) == "Tue 08:00+0000"


def test_windows_of_different_zones_are_joined() -> None:
    both = [window("22:00", "23:00"), window("00:00", "01:00", zone="Europe/Berlin")]
    assert opens(both, at("2026-01-05T22:30")) == "Tue 00:00+0000"


def test_the_window_that_holds_is_named() -> None:
    night, noon = window("22:00", "06:00"), window("12:00", "13:00")
    assert holding([night, noon], at("2026-01-05T12:30")) is noon
    assert holding([night, noon], at("2026-01-05T14:30")) is None


def test_windows_that_cover_the_week_leave_nothing() -> None:
    assert next_open([window("00:00", None)], at("2026-01-05T12:00")) is None


@pytest.mark.parametrize(("fold", "offset"), [(0, "+0200"), (1, "+0100")])
def test_an_hour_that_is_repeated_is_quiet_both_times(fold: int, offset: str) -> None:
    inside = at("2026-10-25T02:15", "Europe/Berlin", fold)
    assert inside.strftime("%z") == offset
    assert opens([window("02:00", "02:30", zone="Europe/Berlin")], inside, "Europe/Berlin") == "Sun 02:30+0100"


def test_a_night_is_as_long_as_the_clock_says_when_the_clocks_change() -> None:
    night = [window("22:00", "06:00", zone="Europe/Berlin")]
    for evening, hours in (("2026-03-28T22:00", 7), ("2026-10-24T22:00", 9), ("2026-06-01T22:00", 8)):
        begin = at(evening, "Europe/Berlin").astimezone(timezone.utc)
        end = next_open(night, begin)
        assert end is not None
        assert end - begin == timedelta(hours=hours)


def test_a_window_inside_the_hour_that_is_skipped_is_none_at_all() -> None:
    moment = at("2026-03-29T03:30", "Europe/Berlin")
    assert opens([window("02:15", "02:45", zone="Europe/Berlin")], moment, "Europe/Berlin") == "Sun 03:30+0200"


@settings(max_examples=300, deadline=None)
@given(start=st.times(), end=st.none() | st.times(), days=st.frozensets(st.integers(0, 6), min_size=1, max_size=6),
       zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]),
       moment=st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)))  # noqa: DTZ001 - UTC is added below
def test_the_next_opening_is_open_and_everything_before_it_is_quiet(start: time, end: time | None, days: frozenset[int], zone: str,
                                                                    moment: datetime) -> None:
    one, now = Quiet(days, start, end, zone), moment.replace(tzinfo=timezone.utc)
    found = next_open([one], now)
    assert found is not None
    assert found >= now
    assert holding([one], found) is None
    if found > now:
        assert holding([one], now) is one
        assert holding([one], found - timedelta(microseconds=1)) is one
        assert holding([one], now + (found - now) / 2) is one
