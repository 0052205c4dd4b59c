"""Quiet windows: parts of the week, in a time zone, in which nothing is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

LONGEST = timedelta(days=8)
"""Windows that leave no gap for this long leave none at all: they repeat every week."""


@dataclass(frozen=True)
class Quiet:
    """A quiet window with everything filled in.

    `days` are those on which it begins, 0 for Monday to 6 for Sunday. `end` at or before `start` is on the next day; None is midnight at
    the end of the day. An hour that the clocks repeat is quiet both times when it belongs to the window.
    """

    days: frozenset[int]
    start: time
    end: time | None
    zone: str
    reason: str = ""

    def span(self, day: date) -> tuple[datetime, datetime]:
        """Begin and end, in UTC, of the window that begins on `day`; end at or before begin when the clocks skip all of it."""
        overnight = self.end is None or self.end <= self.start
        last = day + timedelta(days=1) if overnight else day
        zone = ZoneInfo(self.zone)
        begin = datetime.combine(day, self.start, zone).replace(fold=0)
        end = datetime.combine(last, self.end or time(0), zone).replace(fold=1)
        return begin.astimezone(timezone.utc), end.astimezone(timezone.utc)

    def end_of(self, moment: datetime) -> datetime | None:
        """When the window that holds `moment` (aware) ends, in UTC; None when none of them holds it."""
        today = moment.astimezone(ZoneInfo(self.zone)).date()
        ends = []
        for day in (today - timedelta(days=1), today):
            begin, end = self.span(day)
            if day.weekday() in self.days and begin <= moment < end:
                ends.append(end)
        return max(ends, default=None)


def holding(windows: Iterable[Quiet], moment: datetime) -> Quiet | None:
    """The first of `windows` that holds `moment`."""
    return next((window for window in windows if window.end_of(moment) is not None), None)


def next_open(windows: Iterable[Quiet], moment: datetime) -> datetime | None:
    """The first time from `moment` (aware) on that no window holds, in UTC; None when there is none."""
    windows = tuple(windows)
    found = moment.astimezone(timezone.utc)
    limit = found + LONGEST
    while found <= limit:
        ends = [end for end in (window.end_of(found) for window in windows) if end is not None]
        if not ends:
            return found
        found = max(ends)
    return None
