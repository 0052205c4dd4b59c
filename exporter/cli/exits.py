"""Exit statuses of every command, and the one way a command ends badly."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from probes.reasons import Outcome


class Exit(IntEnum):
    """0 ok, 1 bad, 2 could not measure, 64 usage (sysexits.h EX_USAGE)."""

    OK = 0
    BAD = 1
    UNKNOWN = 2
    USAGE = 64


class UsageError(Exception):
    """A mistake of the user. The text says what, where and what to do; no traceback is shown."""


def of_outcomes(outcomes: Iterable[Outcome]) -> Exit:
    """Bad if anything is failed or degraded, else 2 if anything is unknown, or nothing was measured at all."""
    seen = set(outcomes)
    if seen & {Outcome.FAILED, Outcome.DEGRADED}:
        return Exit.BAD
    return Exit.OK if seen == {Outcome.OK} else Exit.UNKNOWN


class NotMeasuredError(Exception):
    """Nothing could be measured, and no run of a probe says so. The text says why; the status is 2."""
