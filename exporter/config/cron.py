"""Cron expressions with the meaning of crontab(5), evaluated by APScheduler.

APScheduler differs from crontab(5) in two ways that are corrected here: it counts weekdays from Monday, and it joins day of month and
day of week with "and" where cron joins them with "or".
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

MACROS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")
# Eight years hold every 29 February, the century rule included.
_HORIZON = timedelta(days=366 * 9)
_NEAR = timedelta(hours=26)
UTC = timezone.utc


class CronError(ValueError):
    """An expression that is not cron. The text names the field and what to write."""


class Cron:
    """One expression in one time zone.

    On the day the clocks go forward, times with a fixed hour that are skipped become one run at the moment of the change; on the day they
    go back, those that are repeated run the first time only. `*` and `*/n` hours follow the clock on the wall through both.
    """

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """Raises CronError for a wrong expression, ZoneInfoNotFoundError for an unknown zone."""
        self.expression = expression
        self._zone = ZoneInfo(zone)
        text = MACROS.get(expression.strip(), expression).lower()
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise CronError(f"a cron expression has 5 fields (minute hour day month weekday) or is one of {', '.join(MACROS)}; "
                            f"got {len(parts)} fields")
        minute, hour, day, month, weekday = parts
        weekday = _weekdays(weekday)
        self._fixed_hour = not hour.startswith("*")
        either = not day.startswith("*") and not weekday.startswith("*")
        days = [(day, "*"), ("*", weekday)] if either else [(day, weekday)]
        self._triggers = [self._trigger(minute, hour, day, month, weekday) for day, weekday in days]

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time the expression matches after `moment` (aware), in UTC; None when it never does."""
        after = moment.astimezone(UTC)
        found = [due for due in (self._next(trigger, after) for trigger in self._triggers) if due is not None]
        return min(found, default=None)

    def _next(self, trigger: CronTrigger, after: datetime) -> datetime | None:
        """Walk the wall clock's times, which know no change of clocks, and ask of each when it really is."""
        # Near a change, a time that reads earlier on the wall may still lie ahead.
        shift = self._shift_near(after)
        wall = after.astimezone(self._zone).replace(tzinfo=UTC) - shift
        limit = wall + _HORIZON
        found: datetime | None = None
        while found is None or wall <= found.astimezone(self._zone).replace(tzinfo=UTC) + shift:
            match = trigger.get_next_fire_time(None, wall)
            if match is None or match > limit:
                break
            ahead = [moment for moment in self._moments(match.replace(tzinfo=None)) if moment > after]
            found = min([*ahead, *([found] if found else [])], default=None)
            wall = match + timedelta(microseconds=1)
        return found

    def _moments(self, wall: datetime) -> list[datetime]:
        """When the wall clock reads `wall`, in UTC: once, or as the rules above say on a day the clocks change."""
        first, second = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first == second:
            return [first]
        if first < second:
            return [first] if self._fixed_hour else [first, second]
        return [self._change_between(second, first)] if self._fixed_hour else []

    def _change_between(self, low: datetime, high: datetime) -> datetime:
        """The moment at which the clocks change, to the second, which is what zones know."""
        before = low.astimezone(self._zone).utcoffset()
        while high - low > timedelta(seconds=1):
            middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
            low, high = (middle, high) if middle.astimezone(self._zone).utcoffset() == before else (low, middle)
        return high.replace(microsecond=0)

    def _shift_near(self, moment: datetime) -> timedelta:
        """By how much the clocks change within a day of `moment`; zero nearly always."""
        offsets = [(moment + step).astimezone(self._zone).utcoffset() or timedelta(0) for step in (-_NEAR, timedelta(0), _NEAR)]
        return max(offsets) - min(offsets)

    def _trigger(self, minute: str, hour: str, day: str, month: str, weekday: str) -> CronTrigger:
        values = (minute, hour, day, month, weekday)
        try:
            return CronTrigger(minute=minute, hour=hour, day=day, month=month, day_of_week=weekday, second=0, timezone=UTC)
        except (ValueError, TypeError) as error:
            for name, key, value in zip(_FIELDS, ("minute", "hour", "day", "month", "day_of_week"), values, strict=True):
                try:
                    CronTrigger(timezone=UTC, **{key: value})
                except (ValueError, TypeError):
                    raise CronError(f"{value!r} is no {name} in a cron expression") from None
            raise CronError(str(error)) from None


def _weekdays(field: str) -> str:
    """The weekday field by names: 0 and 7 are Sunday, a range may wrap, `*/n` counts from Sunday."""
    if field == "*":
        return field
    chosen: set[int] = set()
    for part in field.split(","):
        span, _, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        if (step_text and not step_text.isdigit()) or step_text == "0" or (not step_text and "/" in part):
            raise CronError(f"{part!r} is no day of week in a cron expression")
        first, last = (0, 6) if span == "*" else (_weekday(first_text, part), _weekday(last_text if dash else first_text, part))
        if step_text and not dash and span != "*":
            last = 6
        last += 7 if last < first else 0
        chosen.update(day % 7 for day in range(first, last + 1, int(step_text or 1)))
    return ",".join(_DAYS[day] for day in sorted(chosen, key=lambda day: (day - 1) % 7))


def _weekday(text: str, part: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text.isdigit() and 0 <= int(text) <= 7:
        return int(text)
    raise CronError(f"{part!r} is no day of week in a cron expression: use 0 to 7 (0 and 7 are Sunday) or sun, mon, ..., sat")


@lru_cache(maxsize=256)
def parse_cron(expression: str, zone: str = "UTC") -> Cron:
    """The expression, parsed once. Raises as `Cron` does."""
    return Cron(expression, zone)
