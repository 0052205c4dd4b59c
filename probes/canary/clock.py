"""The clocks of one request: the kernel's arrival times where they can be trusted, our own otherwise.

The kernel stamps arrivals with CLOCK_REALTIME. NTP slews that clock and CLOCK_MONOTONIC alike, so their difference changes only when the
wall clock is set: such a step inside a request makes its kernel times useless, and the request falls back to our own monotonic reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ClockName = Literal["kernel", "user"]

STEP_NS = 100_000
"""A difference between the clocks above this counts as a step: half of the accuracy that is promised."""

_TRIES = 4
_GOOD_BRACKET_NS = 5_000


@dataclass(frozen=True)
class Clocks:
    """Where time comes from, in nanoseconds. Tests pass their own."""

    real: Callable[[], int] = time.time_ns
    monotonic: Callable[[], int] = time.monotonic_ns


@dataclass(frozen=True)
class Moment:
    """When one read of the socket happened: `kernel` arrival of its last segment (CLOCK_REALTIME ns, None without a stamp), `user` our
    own time after the read (CLOCK_MONOTONIC ns), `woken` the arrival of its first segment where it is known (CLOCK_REALTIME ns, a little
    late; see `probes.canary.wake`)."""

    kernel: int | None
    user: int
    woken: int | None = None

    def begin(self) -> Moment:
        """The moment of what came first in the read."""
        if self.kernel is None or self.woken is None:
            return self
        return Moment(min(self.kernel, self.woken), self.user)


class Stopwatch:
    """Times one request from its write.

    `start` comes right before the write, `stop` after each read. `seconds` turns a moment into seconds since the start by the clock that
    holds for the whole request, so it is for use after the last read, except for deadlines.
    """

    def __init__(self, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._stepped = False
        self._unstamped = False
        self._lag_ns = 0
        self._offset, self._bracket = self._difference()
        self.started_real = self._clocks.real()
        self.started_user = self._clocks.monotonic()

    def start(self) -> None:
        """Set the zero: the last thing before the request is written. What was read before, a TLS handshake for instance, is forgotten."""
        self._stepped = self._unstamped = False
        self._lag_ns = 0
        self._offset, self._bracket = self._difference()
        self.started_user = self._clocks.monotonic()
        self.started_real = self._clocks.real()

    def stop(self, kernel: int | None, woken: int | None = None) -> Moment:
        """The moment of a read that just returned; `kernel` is the stamp it brought, `woken` when the wait for it ended."""
        offset, bracket = self._difference()
        user = self._clocks.monotonic()
        if abs(offset - self._offset) > STEP_NS + bracket + self._bracket:
            self._stepped = True
        if kernel is None:
            self._unstamped = True
        else:
            self._lag_ns = max(self._lag_ns, user + offset - kernel)
        return Moment(kernel, user, woken)

    def now(self) -> Moment:
        """This very moment, for what brings no stamp: the end of a connection."""
        return Moment(self._clocks.real(), self._clocks.monotonic())

    @property
    def clock(self) -> ClockName:
        """Which clock holds: `user` after a step, or when a read came without a stamp."""
        return "user" if self._stepped or self._unstamped else "kernel"

    @property
    def lag(self) -> float | None:
        """Seconds from arrival to our read at worst: how late a client without kernel times would have been. None without kernel times."""
        return self._lag_ns / 1e9 if self.clock == "kernel" else None

    def seconds(self, moment: Moment) -> float:
        """Seconds from the start to `moment`."""
        if self.clock == "kernel" and moment.kernel is not None:
            return (moment.kernel - self.started_real) / 1e9
        return (moment.user - self.started_user) / 1e9

    def _difference(self) -> tuple[int, int]:
        """Wall clock less monotonic clock, and how far that may be off; repeated when something came between the reads."""
        best = (0, 1 << 62)
        for _ in range(_TRIES):
            before = self._clocks.monotonic()
            real = self._clocks.real()
            bracket = self._clocks.monotonic() - before
            if bracket < best[1]:
                best = (real - before - bracket // 2, bracket)
            if bracket <= _GOOD_BRACKET_NS:
                break
        return best
