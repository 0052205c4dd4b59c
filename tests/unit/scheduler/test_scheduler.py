"""The scheduler sends a tick when a job is due, and only then: nothing overlaps, nothing is sent twice, nothing stops it in silence."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import pytest

from exporter.config import Config
from exporter.config.quiet import Quiet
from exporter.config.schedule import When
from exporter.scheduler import HEARTBEAT_SECONDS, RETRY_SECONDS, Scheduler, Tick
from exporter.timetable import Timetable

MINUTELY = When(interval=60.0, cron=None, zone="UTC", jitter=0.0, stagger=False, run_at_start=False, start_spread=0.0, quiet=())
NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc).timestamp()


@dataclass
class Clock:
    """Two clocks that a test moves: the wall and the monotonic one."""

    wall: float = NOON + 1.0
    monotonic: float = 1000.0

    def forward(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@dataclass(frozen=True)
class Job:
    id: str
    when: When = MINUTELY


class Bench:
    """A scheduler without its thread; the test takes the turns."""

    def __init__(self, *jobs: Job, size: int = 0) -> None:
        self.clock = Clock()
        self.events: queue.Queue[Tick] = queue.Queue(size)
        self.scheduler = Scheduler(self.events, clock=lambda: self.clock.wall, monotonic=lambda: self.clock.monotonic, rng=random.Random(1))
        self.scheduler.apply(jobs)

    def ticks(self) -> list[Tick]:
        found = []
        while not self.events.empty():
            found.append(self.events.get_nowait())
        return found

    def run(self, seconds: float) -> list[Tick]:
        """Let time pass as the thread would, taking a turn whenever one is due."""
        end = self.clock.wall + seconds
        while self.clock.wall < end:
            self.clock.forward(min(max(self.scheduler.turn(), 1e-3), end - self.clock.wall))
        self.scheduler.turn()
        return self.ticks()


def test_a_job_is_ticked_once_for_each_due_time_and_without_lag() -> None:
    ticks = Bench(Job("a")).run(600.0)
    assert [tick.due for tick in ticks] == [NOON + 60.0 * count for count in range(1, 11)]
    assert all(tick.lag < 2e-3 and tick.cause == "schedule" and tick.missed == 0 for tick in ticks)


def test_the_thread_is_told_to_look_again_soon_enough_and_at_least_every_heartbeat() -> None:
    bench = Bench(Job("a"))
    assert bench.scheduler.turn() == HEARTBEAT_SECONDS
    bench.clock.wall = NOON + 59.75
    assert bench.scheduler.turn() == pytest.approx(0.25)


def test_the_heartbeat_moves_when_nothing_is_due_and_when_there_is_nothing_at_all() -> None:
    for bench in (Bench(), Bench(Job("a"))):
        bench.clock.forward(5.0)
        bench.scheduler.turn()
        assert bench.scheduler.last_tick == bench.clock.wall


def test_a_due_tick_of_a_busy_target_is_counted_and_left_out() -> None:
    bench = Bench(Job("a"), Job("b"))
    bench.scheduler.busy("a", True)
    assert [tick.job_id for tick in bench.run(120.0)] == ["b", "b"]
    assert bench.scheduler.state.skipped == {("a", "overlap"): 2}
    bench.scheduler.busy("a", False)
    assert sorted(tick.job_id for tick in bench.run(60.0)) == ["a", "b"]


def test_runs_missed_while_the_process_was_held_up_become_one_tick_with_its_lag() -> None:
    bench = Bench(Job("a"))
    bench.clock.forward(59.0 + 300.0)
    bench.scheduler.turn()
    (tick,) = bench.ticks()
    assert tick == Tick("a", NOON + 60.0, NOON + 360.0, "schedule", missed=5)
    assert tick.lag == 300.0
    assert bench.scheduler.state.lag == 300.0
    assert [later.due for later in bench.run(120.0)] == [NOON + 420.0, NOON + 480.0]


def test_paused_ticks_are_counted_and_not_made_up_for() -> None:
    bench = Bench(Job("a"))
    bench.scheduler.pause()
    assert bench.run(300.0) == []
    assert bench.scheduler.state.skipped == {("a", "paused"): 5}
    assert bench.scheduler.paused
    bench.scheduler.resume()
    assert len(bench.run(60.0)) == 1


def test_unchanged_jobs_keep_their_next_run_changed_ones_move_and_removed_ones_go() -> None:
    jittered = replace(MINUTELY, jitter=30.0)
    bench = Bench(Job("kept", jittered), Job("changed"), Job("removed"))
    before = bench.scheduler.next_runs()
    bench.scheduler.apply([Job("kept", jittered), Job("changed", replace(MINUTELY, interval=3600.0)), Job("new")])
    after = bench.scheduler.next_runs()
    assert after.keys() == {"kept", "changed", "new"}
    assert after["kept"] == before["kept"]
    assert after["changed"] == NOON + 3600.0
    assert {tick.job_id for tick in bench.run(120.0)} == {"kept", "new"}


def test_a_busy_job_stays_busy_over_a_changed_schedule() -> None:
    bench = Bench(Job("a"))
    bench.scheduler.busy("a", True)
    bench.scheduler.apply([Job("a", replace(MINUTELY, interval=30.0))])
    assert bench.run(60.0) == []


def test_a_changed_schedule_does_not_repeat_a_run_that_just_was() -> None:
    bench = Bench(Job("a"))
    assert len(bench.run(59.5)) == 1
    bench.scheduler.apply([Job("a", replace(MINUTELY, interval=9.0, run_at_start=True))])
    # The grid of 9 s has a time at 63 s, only 3 s after the run at 60 s.
    assert bench.scheduler.next_runs()["a"] == NOON + 72.0


def test_the_first_round_is_soon_and_a_fresh_result_is_not_measured_again() -> None:
    starting = replace(MINUTELY, interval=3600.0, run_at_start=True, start_spread=10.0)
    bench = Bench()
    bench.scheduler.apply([Job("new", starting), Job("fresh", starting), Job("old", starting)],
                          {"fresh": NOON - 60.0, "old": NOON - 7200.0})
    assert {(tick.job_id, tick.cause) for tick in bench.run(11.0)} == {("new", "start"), ("old", "start")}


def test_run_now_sends_a_tick_at_once_unless_the_job_is_busy() -> None:
    bench = Bench(Job("a"))
    bench.scheduler.pause()
    assert bench.scheduler.run_now("a")
    assert bench.ticks() == [Tick("a", NOON + 1.0, NOON + 1.0, "request")]
    bench.scheduler.busy("a", True)
    assert not bench.scheduler.run_now("a")
    assert not bench.scheduler.run_now("unknown")
    assert bench.ticks() == []


def test_next_runs_are_listed_soonest_first_and_never_last() -> None:
    never = replace(MINUTELY, quiet=(Quiet(frozenset(range(7)), datetime.min.time(), None, "UTC"),))
    bench = Bench(Job("never", never), Job("late", replace(MINUTELY, interval=3600.0)), Job("soon"))
    assert list(bench.scheduler.next_runs().items()) == [("soon", NOON + 60.0), ("late", NOON + 3600.0), ("never", None)]


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    bench = Bench(Job("a"))
    bench.run(120.0)
    bench.clock.wall -= 86400.0
    ticks = bench.run(130.0)
    assert len(ticks) >= 2
    assert all(tick.lag < 1.0 for tick in ticks)
    assert bench.scheduler.state.clock_steps == 1


def test_a_clock_that_is_set_forward_makes_one_run_and_no_flood() -> None:
    bench = Bench(Job("a"))
    bench.clock.wall += 86400.0
    ticks = bench.run(30.0)
    assert [tick.missed for tick in ticks] == [1439]
    assert bench.scheduler.state.clock_steps == 1


def test_a_full_queue_is_counted_and_holds_nobody_up() -> None:
    bench = Bench(Job("a"), Job("b"), size=1)
    assert len(bench.run(60.0)) == 1
    assert sum(bench.scheduler.state.skipped.values()) == 1
    assert {why for _, why in bench.scheduler.state.skipped} == {"queue_full"}


def test_a_job_that_cannot_be_planned_is_tried_again_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Job("bad"), Job("good"))
    plan = Timetable.after

    def fails_once(self: Timetable, due: float, now: float) -> object:
        if now < NOON + 61.0 and self is bench.scheduler._entries["bad"].timetable:
            raise OverflowError("a due time beyond all calendars")
        return plan(self, due, now)

    monkeypatch.setattr(Timetable, "after", fails_once)
    ticks = bench.run(60.0 + RETRY_SECONDS)
    assert [tick.job_id for tick in ticks if tick.job_id == "good"] == ["good", "good"]
    assert [tick.due for tick in ticks if tick.job_id == "bad"][1] == pytest.approx(NOON + 60.0 + RETRY_SECONDS, abs=0.01)
    assert bench.scheduler.state.skipped == {("bad", "error"): 1}


def test_a_day_with_a_quiet_night_has_every_run_of_the_day_and_one_after_the_night() -> None:
    night = Quiet(frozenset(range(7)), datetime(2026, 1, 1, 22).time(), datetime(2026, 1, 1, 6).time(), "UTC")  # noqa: DTZ001 - only times
    bench = Bench(Job("a", replace(MINUTELY, interval=3600.0, quiet=(night,))))
    ticks = bench.run(86400.0)
    hours = [datetime.fromtimestamp(tick.due, timezone.utc).hour for tick in ticks]
    assert hours == [13, 14, 15, 16, 17, 18, 19, 20, 21, 6, 7, 8, 9, 10, 11, 12]


def test_the_jobs_of_a_configuration_can_be_applied_as_they_are() -> None:
    bench = Bench()
    jobs = Config().jobs()
    bench.scheduler.apply(jobs)
    assert {tick.job_id for tick in bench.run(11.0)} == {job.id for job in jobs}


@pytest.fixture
def running() -> Iterator[tuple[Scheduler, queue.Queue[Tick]]]:
    events: queue.Queue[Tick] = queue.Queue()
    scheduler = Scheduler(events)
    scheduler.start()
    yield scheduler, events
    assert scheduler.stop(2.0)


def test_the_real_thread_sends_real_ticks_within_milliseconds(running: tuple[Scheduler, queue.Queue[Tick]]) -> None:
    scheduler, events = running
    scheduler.apply([Job("a", replace(MINUTELY, interval=1.0, run_at_start=True, start_spread=0.2))])
    tick = events.get(timeout=2.0)
    assert tick.cause == "start"
    assert tick.lag < 0.25
    assert scheduler.state.alive


def test_stopping_ends_the_thread_at_once_and_no_tick_comes_after(running: tuple[Scheduler, queue.Queue[Tick]]) -> None:
    scheduler, events = running
    scheduler.apply([Job(f"j{index}", replace(MINUTELY, interval=1.0)) for index in range(20)])
    started = time.monotonic()
    assert scheduler.stop(2.0)
    assert time.monotonic() - started < 0.5
    assert not scheduler.state.alive
    assert not any(thread.name == "scheduler" and thread.is_alive() for thread in threading.enumerate())
    while not events.empty():
        events.get_nowait()
    assert not scheduler.run_now("unknown")
    assert events.empty()


def test_a_turn_that_fails_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    events: queue.Queue[Tick] = queue.Queue()
    failed = threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "scheduler" and not failed.is_set():
            failed.set()
            raise OSError("no clock")
        return time.time()

    scheduler = Scheduler(events, clock=clock)
    monkeypatch.setattr("exporter.scheduler.HEARTBEAT_SECONDS", 0.05)
    scheduler.start()
    try:
        assert failed.wait(2.0)
        scheduler.apply([Job("a", replace(MINUTELY, run_at_start=True))])
        assert events.get(timeout=2.0).job_id == "a"
        assert "a turn of the scheduler failed" in caplog.text
    finally:
        assert scheduler.stop(2.0)
