"""When a job is due: a fixed grid with the job's own offset, jitter, quiet windows, never two runs too close."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, time, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.config.quiet import Quiet, holding
from exporter.config.schedule import When
from exporter.timetable import AFTER_QUIET_SECONDS, Slot, Timetable, share

EVERY_10_MINUTES = When(interval=600.0, cron=None, zone="UTC", jitter=0.0, stagger=True, run_at_start=False, start_spread=0.0, quiet=())
NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc).timestamp()
NIGHT = Quiet(frozenset(range(7)), time(22), time(6), "UTC")


def timetable(when: When = EVERY_10_MINUTES, name: str = "nixl/a--b", seed: int = 1) -> Timetable:
    return Timetable(name, when, random.Random(seed))


def due(slot: Slot | None) -> float:
    assert slot is not None
    return slot.due


def at(hour: int, minute: int = 0, day: int = 5) -> float:
    return datetime(2026, 1, day, hour, minute, tzinfo=timezone.utc).timestamp()


def test_due_times_do_not_depend_on_when_the_service_started() -> None:
    one, other = due(timetable().next(NOON)), due(timetable(seed=2).next(NOON + 599.0))
    assert (other - one) % 600.0 == pytest.approx(0.0, abs=1e-3)


def test_each_job_has_its_own_place_in_the_interval_and_they_are_spread() -> None:
    places = [(due(timetable(name=f"nixl/n{index}").next(NOON)) - NOON) / 600.0 for index in range(1000)]
    assert all(0 <= place < 1 for place in places)
    tenths = [sum(index / 10 <= place < (index + 1) / 10 for place in places) for index in range(10)]
    assert min(tenths) > 60
    assert max(tenths) < 150


def test_without_stagger_the_grid_is_that_of_the_clock() -> None:
    assert due(timetable(replace(EVERY_10_MINUTES, stagger=False)).next(NOON + 1)) == NOON + 600.0


def test_jitter_is_a_delay_that_does_not_add_up() -> None:
    table = timetable(replace(EVERY_10_MINUTES, jitter=60.0))
    offset = share("nixl/a--b") * 600.0
    moment = NOON
    delays: list[float] = []
    for _ in range(500):
        slot = table.after(moment, moment) if delays else table.next(moment)
        moment = due(slot)
        delays.append((moment - offset) % 600.0)
    assert 0 <= min(delays) < 3
    assert 57 < max(delays) <= 60
    assert moment - NOON == pytest.approx(500 * 600.0, abs=660.0)


def test_a_start_soon_and_then_never_before_half_an_interval() -> None:
    table = timetable(replace(EVERY_10_MINUTES, run_at_start=True, start_spread=30.0))
    first = table.first(NOON)
    assert first is not None
    assert first.cause == "start"
    assert NOON <= first.due < NOON + 30.0
    second = table.after(first.due, first.due)
    assert second is not None
    assert second.cause == "schedule"
    assert 300.0 <= second.due - first.due < 900.0


@pytest.mark.parametrize(("age", "cause"), [(None, "start"), (601.0, "start"), (599.0, "schedule"), (-3600.0, "start")])
def test_a_restart_repeats_only_what_is_older_than_an_interval(age: float | None, cause: str) -> None:
    table = timetable(replace(EVERY_10_MINUTES, run_at_start=True))
    slot = table.first(NOON, None if age is None else NOON - age)
    assert slot is not None
    assert slot.cause == cause
    if cause == "schedule":
        assert slot.due >= NOON - 599.0 + 300.0


def test_a_restart_does_not_repeat_a_cron_run_that_was_made() -> None:
    daily = replace(EVERY_10_MINUTES, interval=None, cron="0 3 * * *", run_at_start=True)
    fresh, stale = timetable(daily).first(NOON, at(3)), timetable(daily).first(NOON, at(3) - 60.0)
    assert fresh == Slot(at(3, day=6), "schedule")
    assert stale == Slot(NOON, "start")


def test_missed_runs_are_counted_and_made_up_for_by_one() -> None:
    table = timetable(replace(EVERY_10_MINUTES, stagger=False))
    late = NOON + 3600.0 + 5.0
    assert table.missed(NOON, NOON + 1.0) == 0
    assert table.missed(NOON, late) == 6
    assert due(table.after(NOON, late)) >= late + 300.0
    cron = timetable(replace(EVERY_10_MINUTES, interval=None, cron="*/10 * * * *"))
    assert cron.missed(NOON, late) == 6
    assert due(cron.after(NOON, late)) == NOON + 4200.0


def test_what_is_due_in_a_quiet_window_moves_to_its_end_and_is_spread() -> None:
    quiet = replace(EVERY_10_MINUTES, quiet=(NIGHT,))
    ends = [due(timetable(quiet, f"nixl/n{index}").next(at(23))) for index in range(100)]
    assert all(at(6, day=6) <= end < at(6, day=6) + AFTER_QUIET_SECONDS for end in ends)
    assert len(set(ends)) == 100


def test_all_runs_of_a_quiet_window_become_one() -> None:
    table = timetable(replace(EVERY_10_MINUTES, quiet=(NIGHT,)))
    first = due(table.next(at(22)))
    second = due(table.after(first, first))
    assert first >= at(6, day=6)
    assert second - first >= 300.0


def test_a_cron_run_in_a_quiet_window_is_not_lost() -> None:
    table = timetable(replace(EVERY_10_MINUTES, interval=None, cron="0 3 * * *", quiet=(NIGHT,)))
    first = due(table.next(at(12)))
    assert at(6, day=6) <= first < at(6, day=6) + AFTER_QUIET_SECONDS
    assert due(table.after(first, first)) >= at(6, day=7)


def test_a_schedule_that_never_opens_has_no_next_run() -> None:
    always = Quiet(frozenset(range(7)), time(0), None, "UTC")
    assert timetable(replace(EVERY_10_MINUTES, quiet=(always,))).next(NOON) is None


def test_the_share_of_a_name_is_always_the_same() -> None:
    assert share("nixl/a--b") == share("nixl/a--b")
    assert share("nixl/a--b") != share("nixl/a--c")
    assert 0 <= share("") < 1


@settings(max_examples=200, deadline=None)
@given(interval=st.floats(1.0, 1e6), jitter=st.floats(0.0, 0.5), name=st.text(max_size=8), start=st.floats(1.7e9, 1.9e9),
       late=st.floats(0.0, 3.0), quiet=st.booleans())
def test_the_next_run_is_in_the_future_open_and_at_least_half_an_interval_away(interval: float, jitter: float, name: str, start: float,
                                                                              late: float, quiet: bool) -> None:
    when = replace(EVERY_10_MINUTES, interval=interval, jitter=jitter * interval, quiet=(NIGHT,) if quiet else ())
    table = Timetable(name, when, random.Random(0))
    first = due(table.next(start))
    now = first + late * interval
    second = due(table.after(first, now))
    slack = 1e-5 * interval + 1e-6
    assert first >= start - slack
    assert second >= first + interval / 2 - slack
    assert second >= now - slack if late <= 0.5 else second >= now + interval / 2 - slack
    assert holding(when.quiet, datetime.fromtimestamp(second, timezone.utc)) is None
