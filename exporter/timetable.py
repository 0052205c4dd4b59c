"""When one job is due: pure arithmetic over its schedule. Times are Unix seconds."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from exporter.config.cron import Cron, parse_cron
from exporter.config.quiet import next_open
from exporter.config.schedule import When

Cause = Literal["schedule", "start", "request"]
AFTER_QUIET_SECONDS = 300.0
"""Most time over which runs that waited for the end of a quiet window are spread."""
MOST_MISSED = 1000


@dataclass(frozen=True)
class Slot:
    """One due run."""

    due: float
    cause: Cause = "schedule"


class Timetable:
    """The due times of one job.

    Interval jobs lie on a grid that starts at the epoch plus the job's own offset, so that a restart or another instance finds the same
    times, and targets do not run in step. Two runs are never closer than half an interval.
    """

    def __init__(self, job_id: str, when: When, rng: random.Random) -> None:
        self.when = when
        self._rng = rng
        self._place = share(job_id)
        self._cron: Cron | None = parse_cron(when.cron, when.zone) if when.cron is not None else None

    def first(self, now: float, last_run: float | None = None) -> Slot | None:
        """The first run from `now` on: soon, when the schedule runs at start and the last run is not younger than an interval."""
        if self.when.run_at_start and (last_run is None or self._is_old(last_run, now)):
            return self._open(now + self._place * self.when.start_spread, "start")
        return self.next(now, last_run)

    def next(self, now: float, last_run: float | None = None) -> Slot | None:
        """The first regular run from `now` on that is not too close to the last one."""
        earliest = now
        if self.when.interval is not None and last_run is not None and last_run <= now:
            earliest = max(now, last_run + self.when.interval / 2)
        return self._open(self._regular(earliest), "schedule")

    def after(self, due: float, now: float) -> Slot | None:
        """The run that follows one that was due at `due` and fired at `now`; None when the schedule has no further time."""
        interval = self.when.interval
        if interval is None:
            return self._open(self._regular(max(due, now)), "schedule")
        late = now - due > interval / 2
        return self._open(self._regular((now if late else due) + interval / 2), "schedule")

    def missed(self, due: float, now: float) -> int:
        """How many further runs were due after `due` and up to `now`; they are made up for by one. Cron counts up to `MOST_MISSED`."""
        if self.when.interval is not None:
            return max(0, math.floor((now - due) / self.when.interval))
        count, moment = 0, due
        while count < MOST_MISSED:
            following = self._next_cron(moment)
            if following is None or following > now:
                break
            count, moment = count + 1, following
        return count

    def _is_old(self, last_run: float, now: float) -> bool:
        if self.when.interval is not None:
            # A last run in the future is a clock that was wrong: it says nothing.
            return now - last_run >= self.when.interval or last_run > now
        following = self._next_cron(last_run)
        return following is not None and following <= now

    def _regular(self, earliest: float) -> float | None:
        """The next regular time: on the grid at or after `earliest`, or of the cron expression after it; jitter comes on top."""
        if self.when.interval is None:
            nominal = self._next_cron(earliest)
        else:
            offset = self._place * self.when.interval if self.when.stagger else 0.0
            nominal = math.ceil((earliest - offset) / self.when.interval) * self.when.interval + offset
        return None if nominal is None else nominal + self._rng.uniform(0.0, self.when.jitter)

    def _open(self, due: float | None, cause: Cause) -> Slot | None:
        """`due`, or the end of the quiet windows that hold it."""
        if due is None or not self.when.quiet:
            return None if due is None else Slot(due, cause)
        opens = self._next_open(due)
        if opens is not None and opens > due:
            spread = min(self.when.interval or AFTER_QUIET_SECONDS, AFTER_QUIET_SECONDS)
            later = opens + self._place * spread
            return Slot(later if self._next_open(later) == later else opens, cause)
        return None if opens is None else Slot(due, cause)

    def _next_open(self, due: float) -> float | None:
        moment = datetime.fromtimestamp(due, timezone.utc)
        opens = next_open(self.when.quiet, moment)
        return None if opens is None else due if opens == moment else opens.timestamp()

    def _next_cron(self, after: float) -> float | None:
        assert self._cron is not None  # noqa: S101 - a schedule has an interval or a cron expression
        found = self._cron.next_after(datetime.fromtimestamp(after, timezone.utc))
        return None if found is None else found.timestamp()


def share(name: str) -> float:
    """A number in [0, 1) that belongs to the name: the same everywhere and always."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") / 2**56
