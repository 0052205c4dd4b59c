"""When something runs: interval or cron, jitter, stagger, quiet windows. Times of day are local to a named time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timezone
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from exporter.config.base import Line, Model
from exporter.config.cron import CronError, parse_cron
from exporter.config.quiet import Quiet, next_open
from probes.units import Duration, parse_duration, show_duration

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
A_MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
SHORTEST_INTERVAL = 1.0


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {value!r}: use a name of the IANA data base such as UTC or Europe/Berlin") from None
    return value


def _as_tuple(value: Any) -> Any:
    # Below a validator that runs first, pydantic's strict mode sees Python values and takes no list for a tuple.
    return tuple(value) if isinstance(value, list) else value


def _cron(value: str) -> str:
    try:
        parsed = parse_cron(value)
    except CronError as error:
        raise ValueError(str(error)) from None
    if parsed.next_after(A_MONDAY) is None:
        raise ValueError(f"the cron expression {value!r} names a day that never comes: correct day of month or month")
    return value


Zone = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_zone), Field(examples=["Europe/Berlin"])]
"""Name of a time zone."""
Cron = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_cron), Field(examples=["0 3 * * mon-fri"])]
"""A cron expression: minute, hour, day of month, month, day of week."""
TimeOfDay = Annotated[str, Field(pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$", examples=["22:00"])]
"""A time of day, `HH:MM`."""


class QuietWindow(Model):
    """A part of the week in which nothing is started. Runs that are due in it move to its end."""

    days: Annotated[tuple[Day, ...], BeforeValidator(_as_tuple), Field(min_length=1, max_length=7)] = DAYS
    """Days on which the window begins."""
    start: TimeOfDay = Field(alias="from")
    """Local time at which the window begins."""
    end: TimeOfDay = Field(alias="to")
    """Local time at which the window ends; before or at `from` it ends on the next day."""
    time_zone: Zone | None = None
    """Time zone of `from` and `to`; default: that of the schedule."""
    reason: Line | None = None
    """Why, for those who read the status."""


def _some_time_is_left(windows: tuple[QuietWindow, ...]) -> tuple[QuietWindow, ...]:
    if next_open([_quiet(window, "UTC") for window in windows], A_MONDAY) is None:
        raise ValueError("these windows leave no time of the week in which anything could run: shorten one of them")
    return windows


QuietWindows = Annotated[tuple[QuietWindow, ...], BeforeValidator(_as_tuple), AfterValidator(_some_time_is_left), Field(max_length=64)]
"""Quiet windows that do not cover the whole week."""


@dataclass(frozen=True)
class When:
    """A schedule with everything filled in, seconds. Exactly one of `interval` and `cron` is set. `jitter` is the longest added delay."""

    interval: float | None
    cron: str | None
    zone: str
    jitter: float
    stagger: bool
    run_at_start: bool
    start_spread: float
    quiet: tuple[Quiet, ...]


class Schedules(Model):
    """What holds for every schedule that does not say otherwise."""

    time_zone: Zone = "UTC"
    """Time zone of cron expressions and quiet windows."""
    run_at_start: bool = True
    """Run everything once soon after the start, unless it ran less than one interval ago."""
    start_spread: Annotated[Duration, Field(le=86400)] = 10.0
    """Time over which the first round after the start is spread."""
    quiet_windows: QuietWindows = ()
    """Parts of the week in which nothing is started."""


class Schedule(Model):
    """When one probe or canary runs. Exactly one of `interval` and `cron`."""

    interval: Annotated[Duration, Field(ge=SHORTEST_INTERVAL, le=366 * 86400)] | None = None
    """Time between two runs of the same target."""
    cron: Cron | None = None
    """Times as a cron expression (crontab(5): weekday 0 and 7 are Sunday) or @hourly, @daily, @weekly, @monthly."""
    time_zone: Zone | None = None
    """Time zone of `cron` and of quiet windows; default: `schedule.time_zone`."""
    jitter: Annotated[Duration, Field(le=86400)] | None = None
    """Longest random delay of each run; default: a tenth of the interval, at most 60 s, and none for cron."""
    stagger: bool = True
    """Give each target its own fixed offset within the interval, so that targets do not run in step. Cron times are never moved by it."""
    run_at_start: bool | None = None
    """Default: `schedule.run_at_start`."""
    quiet_windows: QuietWindows | None = None
    """Default: `schedule.quiet_windows`; an empty list turns them off."""

    @model_validator(mode="after")
    def _one_kind(self) -> Schedule:
        if (self.interval is None) == (self.cron is None):
            raise ValueError("a schedule needs exactly one of interval and cron")
        if self.interval is not None and self.jitter is not None and self.jitter > self.interval / 2:
            raise ValueError(f"jitter {show_duration(self.jitter)} is more than half of the interval {show_duration(self.interval)}")
        return self

    def when(self, defaults: Schedules) -> When:
        """This schedule with `defaults` filled in."""
        jitter = self.jitter if self.jitter is not None else min(60.0, (self.interval or 0.0) / 10)
        zone = self.time_zone or defaults.time_zone
        windows = defaults.quiet_windows if self.quiet_windows is None else self.quiet_windows
        return When(
            interval=self.interval, cron=self.cron, zone=zone, jitter=jitter, stagger=self.stagger,
            run_at_start=defaults.run_at_start if self.run_at_start is None else self.run_at_start,
            start_spread=defaults.start_spread, quiet=tuple(_quiet(window, zone) for window in windows),
        )


def every(interval: str) -> Any:
    """A validator for a field of type Schedule: a mapping with neither `interval` nor `cron` gets this interval."""
    seconds = parse_duration(interval)

    def fill(value: Any) -> Any:
        if isinstance(value, dict) and "interval" not in value and "cron" not in value:
            return {**value, "interval": seconds}
        return value

    return BeforeValidator(fill)


def _quiet(window: QuietWindow, zone: str) -> Quiet:
    end = None if window.end in ("24:00", "00:00") else time.fromisoformat(window.end)
    return Quiet(frozenset(DAYS.index(day) for day in window.days), time.fromisoformat(window.start), end,
                 window.time_zone or zone, window.reason or "quiet window")
