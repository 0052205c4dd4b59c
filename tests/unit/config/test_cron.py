"""Cron expressions mean what crontab(5) says, in the named time zone, on the days the clocks change too."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config.cron import Cron, CronError

UTC = timezone.utc
BERLIN = "Europe/Berlin"


def following(expression: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    """The next `count` times in local time with offset, from `start` (local)."""
    cron, moment = Cron(expression, zone), datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    found = []
    for _ in range(count):
        after = cron.next_after(moment)
        assert after is not None
        assert after > moment
        moment = after
        found.append(moment.astimezone(ZoneInfo(zone)).strftime("%a %d %H:%M%z"))
    return found


def test_weekday_numbers_count_from_sunday() -> None:
    assert following("0 3 * * 0", "2026-01-01", 2) == ["Sun 04 03:00+0000", "Sun 11 03:00+0000"]
    assert following("0 3 * * 7", "2026-01-01", 1) == ["Sun 04 03:00+0000"]
    assert following("0 3 * * 1-5", "2026-01-02", 3) == ["Fri 02 03:00+0000", "Mon 05 03:00+0000", "Tue 06 03:00+0000"]


def test_weekday_names_ranges_that_wrap_and_steps() -> None:
    assert following("0 3 * * fri-mon", "2026-01-05T12:00", 4) == [
        "Fri 09 03:00+0000", "Sat 10 03:00+0000", "Sun 11 03:00+0000", "Mon 12 03:00+0000"]
    assert following("0 3 * * MON,wed", "2026-01-05T12:00", 2) == ["Wed 07 03:00+0000", "Mon 12 03:00+0000"]
    assert following("0 3 * * */3", "2026-01-04", 3) == ["Sun 04 03:00+0000", "Wed 07 03:00+0000", "Sat 10 03:00+0000"]
    assert following("0 3 * * 5/2", "2026-01-04", 1) == ["Fri 09 03:00+0000"]


def test_day_of_month_and_day_of_week_are_joined_by_or() -> None:
    assert following("0 0 13 * fri", "2026-01-05", 3) == ["Fri 09 00:00+0000", "Tue 13 00:00+0000", "Fri 16 00:00+0000"]


def test_macros() -> None:
    assert following("@weekly", "2026-01-01", 1) == ["Sun 04 00:00+0000"]
    assert following("@hourly", "2026-01-01T00:30", 1) == ["Thu 01 01:00+0000"]


def test_a_fixed_hour_that_the_clocks_skip_runs_at_the_change_once() -> None:
    assert following("30 2 * * *", "2026-03-28T12:00", 2, BERLIN) == ["Sun 29 03:00+0200", "Mon 30 02:30+0200"]
    assert following("*/20 2 * * *", "2026-03-28T12:00", 2, BERLIN) == ["Sun 29 03:00+0200", "Mon 30 02:00+0200"]


def test_a_fixed_hour_that_the_clocks_repeat_runs_once() -> None:
    assert following("30 2 * * *", "2026-10-24T12:00", 2, BERLIN) == ["Sun 25 02:30+0200", "Mon 26 02:30+0100"]


def test_every_half_hour_follows_the_clock_through_both_changes() -> None:
    assert following("*/30 * * * *", "2026-10-25T01:45", 5, BERLIN) == [
        "Sun 25 02:00+0200", "Sun 25 02:30+0200", "Sun 25 02:00+0100", "Sun 25 02:30+0100", "Sun 25 03:00+0100"]
    assert following("*/30 * * * *", "2026-03-29T01:15", 2, BERLIN) == ["Sun 29 01:30+0100", "Sun 29 03:00+0200"]


def test_a_leap_day_is_found_over_a_century_without_one() -> None:
    found = Cron("0 0 29 2 *").next_after(datetime(2096, 3, 1, tzinfo=UTC))
    assert found == datetime(2104, 2, 29, tzinfo=UTC)


def test_a_day_that_never_comes_is_none() -> None:
    assert Cron("0 0 31 4 *").next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(("expression", "says"), [
    ("* * * *", "got 4 fields"), ("61 * * * *", "'61' is no minute"), ("* 24 * * *", "'24' is no hour"),
    ("* * 0 * *", "'0' is no day of month"),
    ("* * * 13 *", "'13' is no month"), ("* * * * 8", "'8' is no day of week"), ("* * * * x", "'x' is no day of week"),
    ("* * * * 1/0", "no day of week"), ("*/0 * * * *", "no minute"), ("5-1 * * * *", "no minute"), ("", "got 0 fields"),
    ("@yearly", "got 1 fields"),
])
def test_what_is_no_cron_expression(expression: str, says: str) -> None:
    with pytest.raises(CronError, match=says):
        Cron(expression)


@settings(max_examples=150, deadline=None)
@given(minute=st.sampled_from(["*", "*/7", "0", "15,45", "10-20"]), hour=st.sampled_from(["*", "*/5", "0", "2", "2-4", "23"]),
       day=st.sampled_from(["*", "1", "15", "31"]), weekday=st.sampled_from(["*", "0", "1-5", "sat,sun"]),
       zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Apia"]),
       start=st.datetimes(datetime(2025, 1, 1), datetime(2027, 12, 31)))  # noqa: DTZ001 - the zone is added below
def test_the_next_time_is_later_stable_and_leaves_none_out(minute: str, hour: str, day: str, weekday: str, zone: str,
                                                           start: datetime) -> None:
    cron, moment = Cron(f"{minute} {hour} {day} * {weekday}", zone), start.replace(tzinfo=UTC)
    found = cron.next_after(moment)
    assert found is not None
    assert found > moment
    # Seen from any moment before it, it is still the next one.
    assert cron.next_after(moment + (found - moment) / 2) == found
    assert cron.next_after(found - timedelta(microseconds=1)) == found


CHANGES = [(BERLIN, "2026-03-29"), (BERLIN, "2026-10-25"), ("America/New_York", "2026-03-08"), ("America/New_York", "2026-11-01"),
           ("Australia/Lord_Howe", "2025-10-05"), ("Australia/Lord_Howe", "2026-04-05")]
MINUTES = {"*/7": range(0, 60, 7), "0": [0], "15,45": [15, 45]}
HOURS = {"*": range(24), "*/5": range(0, 24, 5), "0": [0], "1": [1], "2": [2], "1-3": [1, 2, 3]}


def by_counting(minute: str, hour: str, zone: str, start: datetime, hours: int) -> list[datetime]:
    """Every minute of some hours looked at one by one, with the rules for the days on which the clocks change written out."""
    found: list[datetime] = []
    before = start.astimezone(ZoneInfo(zone))
    for step in range(1, hours * 60):
        moment = start + timedelta(minutes=step)
        local = moment.astimezone(ZoneInfo(zone))
        skipped = local.replace(tzinfo=None) - before.replace(tzinfo=None) - timedelta(minutes=1)
        gap = [before.replace(tzinfo=None) + timedelta(minutes=late) for late in range(1, 1 + int(skipped.total_seconds() // 60))]
        wanted = local.minute in MINUTES[minute] and local.hour in HOURS[hour] and not (local.fold and not hour.startswith("*"))
        made_up_for = not hour.startswith("*") and any(wall.minute in MINUTES[minute] and wall.hour in HOURS[hour] for wall in gap)
        if wanted or made_up_for:
            found.append(moment)
        before = local
    return found


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize("hour", HOURS)
@pytest.mark.parametrize("minute", MINUTES)
def test_on_the_days_the_clocks_change_no_run_is_lost_or_made_twice(minute: str, hour: str, zone: str, day: str) -> None:
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=12)
    cron, moment, found = Cron(f"{minute} {hour} * * *", zone), start, list[datetime]()
    while (following_one := cron.next_after(moment)) is not None and following_one < start + timedelta(hours=48):
        moment = following_one
        found.append(moment)
    assert found == by_counting(minute, hour, zone, start, 48)
