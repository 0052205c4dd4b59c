"""Says when what is due. APScheduler brings the thread and the store of due times; the ticks go into the control loop's queue.

Nothing runs in the scheduler's thread but the look at the clock: it never waits for a probe, and no failure of one job ends it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import STATE_STOPPED, BaseScheduler
from apscheduler.triggers.base import BaseTrigger

from exporter.config.schedule import When
from exporter.timetable import Cause, Slot, Timetable

HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 60.0
STEP_SECONDS = 2.0
"""A wall clock that moved back by more than this against the monotonic one was set."""

Skip = Literal["overlap", "paused", "queue_full", "error"]
_log = logging.getLogger(__name__)
# APScheduler tells of every job that is added or moved.
_quiet_log = logging.getLogger(__name__ + ".engine")
_quiet_log.setLevel(logging.WARNING)


class Scheduled(Protocol):
    """What the scheduler needs of a job."""

    @property
    def id(self) -> str:
        """Unique name; the offset of the job comes from it."""
        ...

    @property
    def when(self) -> When:
        """Its schedule."""
        ...


@dataclass(frozen=True)
class Tick:
    """A run is due. `due` and `fired` are Unix seconds; `missed` counts further due times that this tick makes up for."""

    job_id: str
    due: float
    fired: float
    cause: Cause = "schedule"
    missed: int = 0

    @property
    def lag(self) -> float:
        """How much too late the scheduler was, seconds."""
        return max(0.0, self.fired - self.due)


@dataclass(frozen=True)
class State:
    """What the scheduler knows about itself. `skipped` counts ticks that were not sent, by job and why; `lag` is that of the last tick."""

    last_tick: float
    paused: bool
    alive: bool
    jobs: int
    lag: float
    ticks: int
    clock_steps: int
    skipped: Mapping[tuple[str, Skip], int]


class _ByHand(BaseTrigger):  # type: ignore[misc]
    """Due times come from the timetable, with the scheduler's own clock."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> None:  # noqa: ARG002
        return None


class _Engine(BackgroundScheduler):  # type: ignore[misc]
    """APScheduler's thread, which takes a turn at least every `HEARTBEAT_SECONDS` whatever happens in it."""

    def __init__(self, turn: Callable[[], float]) -> None:
        self.store = MemoryJobStore()
        super().__init__(timezone=timezone.utc, daemon=True, logger=_quiet_log, jobstores={"default": self.store})
        self._turn = turn
        self._event = threading.Event()
        # The store is in use from now on; the thread comes with `start_thread`.
        BaseScheduler.start(self)

    def start_thread(self) -> None:
        """Take turns from now on."""
        self._thread = threading.Thread(target=self._main_loop, name="scheduler", daemon=True)
        self._thread.start()

    def _main_loop(self) -> None:
        wait = 0.0
        while self.state != STATE_STOPPED:
            self._event.wait(wait)
            self._event.clear()
            if self.state == STATE_STOPPED:
                return
            try:
                wait = self._turn()
            except Exception:  # noqa: BLE001 - a scheduler that stops in silence is the worst that can happen
                _log.exception("a turn of the scheduler failed")
                wait = HEARTBEAT_SECONDS

    def stop(self, timeout: float) -> bool:
        """End the thread, waiting at most `timeout` seconds for it. Whether it has ended."""
        thread: threading.Thread | None = self._thread
        if self.state != STATE_STOPPED:
            # Not BackgroundScheduler.shutdown: that one joins without a limit.
            super(BackgroundScheduler, self).shutdown(wait=False)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        thread: threading.Thread | None = self._thread
        return thread is not None and thread.is_alive()


@dataclass
class _Entry:
    timetable: Timetable
    slot: Slot | None
    busy: bool = False
    last_run: float | None = None


class Scheduler:
    """Puts a `Tick` into `events` whenever a job is due. Every method may be called from any thread.

    A job that is `busy` gets no tick: what falls due meanwhile is counted and left out, never made up for. Due times that passed while
    the process was held up become one tick.
    """

    def __init__(self, events: queue.Queue[Any], *, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self._events = events
        self._clock = clock
        self._monotonic = monotonic
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._skipped: Counter[tuple[str, Skip]] = Counter()
        self._paused = False
        self._last_tick = clock()
        self._lag = 0.0
        self._ticks = 0
        self._steps = 0
        self._offset = clock() - monotonic()
        self._engine = _Engine(self.turn)

    def start(self) -> None:
        """Start the thread. Jobs may be applied before and after."""
        self._engine.start_thread()

    def stop(self, timeout: float = 5.0) -> bool:
        """End the thread within `timeout` seconds; no tick is sent afterwards. Whether it has ended."""
        return self._engine.stop(timeout)

    def apply(self, jobs: Iterable[Scheduled], last_runs: Mapping[str, float] | None = None) -> None:
        """Make `jobs` the jobs. Those whose schedule is unchanged keep their next run; others get a new one; the rest go.

        `last_runs` tells for new jobs when they last ran (Unix seconds), so that a restart does not repeat what is fresh.
        """
        wanted = {job.id: job.when for job in jobs}
        with self._lock:
            now = self._clock()
            for job_id in [job_id for job_id in self._entries if job_id not in wanted]:
                del self._entries[job_id]
                self._keep(job_id, None)
            for job_id, when in wanted.items():
                old = self._entries.get(job_id)
                if old is not None and old.timetable.when == when:
                    continue
                timetable = Timetable(job_id, when, self._rng)
                # A changed schedule moves the next run; it is no new start.
                slot = timetable.next(now, old.last_run) if old else timetable.first(now, (last_runs or {}).get(job_id))
                self._entries[job_id] = _Entry(timetable, slot, old.busy if old else False, old.last_run if old else None)
                self._keep(job_id, slot)

    def busy(self, job_id: str, busy: bool) -> None:
        """Say that the target of a job is busy, or no longer."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is not None:
                entry.busy = busy

    def run_now(self, job_id: str) -> bool:
        """Send a tick for this job at once, also in quiet windows and while paused. False when the job is busy or not known."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or entry.busy:
                return False
            now = self._clock()
            sent = self._send(Tick(job_id, now, now, "request"))
            if sent:
                entry.last_run = now
            return sent

    def pause(self) -> None:
        """Send no ticks until `resume`. What falls due meanwhile is counted and left out."""
        with self._lock:
            self._paused = True

    def resume(self) -> None:
        """Send ticks again."""
        with self._lock:
            self._paused = False

    @property
    def paused(self) -> bool:
        """Whether ticks are held back."""
        return self._paused

    @property
    def last_tick(self) -> float:
        """When the scheduler last looked at its clock, Unix seconds: every second, due or not. An old value is a dead scheduler."""
        return self._last_tick

    @property
    def state(self) -> State:
        """A snapshot."""
        with self._lock:
            return State(self._last_tick, self._paused, self._engine.alive, len(self._entries), self._lag, self._ticks, self._steps,
                         dict(self._skipped))

    def next_runs(self) -> dict[str, float | None]:
        """Job id to its next due time, soonest first; None for a schedule that has no further time."""
        with self._lock:
            found = {job_id: entry.slot.due if entry.slot else None for job_id, entry in self._entries.items()}
        return dict(sorted(found.items(), key=lambda item: (item[1] is None, item[1] or 0.0, item[0])))

    def turn(self) -> float:
        """Look at the clock once, send what is due, and say how many seconds may pass until the next look. The thread calls it."""
        with self._lock:
            now = self._clock()
            self._last_tick = now
            self._look_for_a_step(now)
            for job in self._engine.store.get_due_jobs(datetime.fromtimestamp(now, timezone.utc)):
                self._fire(job.id, now)
            following = self._engine.store.get_next_run_time()
            wait = HEARTBEAT_SECONDS if following is None else following.timestamp() - self._clock()
            return min(HEARTBEAT_SECONDS, max(0.0, wait))

    def _fire(self, job_id: str, now: float) -> None:
        entry = self._entries[job_id]
        slot = entry.slot
        try:
            if slot is not None:
                self._tick(job_id, entry, slot, now)
            entry.slot = entry.timetable.after(slot.due if slot else now, now)
        except Exception:  # noqa: BLE001 - one job that cannot be planned must not stop the others
            _log.exception("job %s could not be planned, again in %g s", job_id, RETRY_SECONDS)
            self._skipped[job_id, "error"] += 1
            entry.slot = Slot(now + RETRY_SECONDS)
        self._keep(job_id, entry.slot)

    def _tick(self, job_id: str, entry: _Entry, slot: Slot, now: float) -> None:
        tick = Tick(job_id, slot.due, now, slot.cause, entry.timetable.missed(slot.due, now))
        self._lag = tick.lag
        if self._paused:
            self._skipped[job_id, "paused"] += 1
        elif entry.busy:
            self._skipped[job_id, "overlap"] += 1
        elif self._send(tick):
            entry.last_run = now

    def _send(self, tick: Tick) -> bool:
        try:
            self._events.put_nowait(tick)
        except queue.Full:
            self._skipped[tick.job_id, "queue_full"] += 1
            return False
        self._ticks += 1
        return True

    def _look_for_a_step(self, now: float) -> None:
        """A clock set back leaves every due time far ahead: plan again from now. One set forward shows as missed runs, made up for once."""
        offset = now - self._monotonic()
        step, self._offset = offset - self._offset, offset
        if abs(step) < STEP_SECONDS:
            return
        self._steps += 1
        if step < 0:
            for job_id, entry in self._entries.items():
                entry.slot = entry.timetable.next(now, entry.last_run)
                self._keep(job_id, entry.slot)

    def _keep(self, job_id: str, slot: Slot | None) -> None:
        """Write the next run into APScheduler's store."""
        known = self._engine.store.lookup_job(job_id) is not None
        if slot is None:
            if known:
                self._engine.remove_job(job_id)
            return
        at = datetime.fromtimestamp(slot.due, timezone.utc)
        if known:
            self._engine.modify_job(job_id, next_run_time=at)
        else:
            self._engine.add_job(_nothing, _ByHand(), id=job_id, next_run_time=at)


def _nothing() -> None:
    """What a job does by itself: ticks are sent by `turn`."""
