"""Ten minutes of counters, one look a second, in compact memory, and the differences over a window of it.

Times are Unix seconds of the node's clock, the same that the node's workers stamp their windows with. Each look has two: when it began and
when it had ended; a window is bounded by the last look that had ended before it and the first that began after it, so everything that
happened inside the window is inside the difference.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

ABSENT = 2**64 - 1
CLOCK_STEP = 0.2


@dataclass
class DeviceWindow:
    """One device over one window: difference per counter, counters that were reset, share of the looks in which it was there."""

    counters: dict[str, int] = field(default_factory=dict)
    resets: list[str] = field(default_factory=list)
    coverage: float = 0.0


@dataclass
class Window:
    """Differences between two looks. `start` and `end` are the times actually spanned."""

    start: float
    end: float
    looks: int
    devices: dict[str, DeviceWindow]


class NoWindowError(LookupError):
    """The history has no such window. `pending` is true when it will have it soon."""

    def __init__(self, reason: str, *, pending: bool = False) -> None:
        super().__init__(reason)
        self.pending = pending


class History:
    """A ring of looks. Memory: 8 bytes a counter and look, given back when a device has been gone for the whole ring."""

    def __init__(self, interval: float, seconds: float) -> None:
        self.size = max(2, int(seconds / interval) + 1)
        self._began = array("d", bytes(8 * self.size))
        self._ended = array("d", bytes(8 * self.size))
        self._clock = array("d", bytes(8 * self.size))
        self._series: dict[str, dict[str, array[int]]] = {}
        self._last_seen: dict[str, int] = {}
        self._total_resets: dict[str, int] = {}
        self.count = 0

    def add(self, began: float, ended: float, clock: float, counters: dict[str, dict[str, int]]) -> None:
        """Keep one look: wall-clock times before and after it, the monotonic clock, and what was read."""
        slot = self.count % self.size
        self._began[slot], self._ended[slot], self._clock[slot] = began, ended, clock
        for device, values in counters.items():
            series = self._series.setdefault(device, {})
            self._total_resets.setdefault(device, 0)
            for name, value in values.items():
                if name not in series:
                    series[name] = array("Q", [ABSENT]) * self.size
                elif self.count and value < series[name][(self.count - 1) % self.size] < ABSENT:
                    self._total_resets[device] += 1
                series[name][slot] = value
            self._last_seen[device] = self.count
        for device, series in self._series.items():
            seen = counters.get(device, {})
            for name in series.keys() - seen.keys():
                series[name][slot] = ABSENT
        self.count += 1
        for device in [device for device, seen_at in self._last_seen.items() if self.count - seen_at > self.size]:
            del self._series[device], self._last_seen[device], self._total_resets[device]

    @property
    def first(self) -> int:
        """Number of the oldest look kept."""
        return max(0, self.count - self.size)

    @property
    def span(self) -> tuple[float, float] | None:
        """Times of the oldest and the newest look, or None before the first."""
        if not self.count:
            return None
        return self._ended[self.first % self.size], self._began[(self.count - 1) % self.size]

    @property
    def resets(self) -> dict[str, int]:
        """Counters seen to fall, by device, since it appeared."""
        return self._total_resets

    def latest(self) -> dict[str, dict[str, int]]:
        """The newest value of each counter of each device that was there at the newest look."""
        if not self.count:
            return {}
        slot = (self.count - 1) % self.size
        return {device: {name: values[slot] for name, values in sorted(series.items()) if values[slot] != ABSENT}
                for device, series in sorted(self._series.items()) if self._last_seen[device] == self.count - 1}

    def bounds(self, start: float, end: float, lifespan: float) -> tuple[int, int]:
        """Numbers of the looks that bound a window. `lifespan`: how old the kernel's answer may be. Raises NoWindowError."""
        if not self.count:
            raise NoWindowError("nothing was read yet", pending=True)
        if end < start:
            raise NoWindowError("the window ends before it starts")
        low = self._last_ended_before(start)
        high = self._first_began_after(end + lifespan)
        if low is None:
            raise NoWindowError(f"the history begins at {self._ended[self.first % self.size]:.3f}")
        if high is None:
            raise NoWindowError(f"the newest look is of {self._began[(self.count - 1) % self.size]:.3f}", pending=True)
        return low, high

    def window(self, low: int, high: int) -> Window:
        """Differences between two looks. Raises NoWindowError when they are not kept (any more) or the clock was stepped between them."""
        if low < self.first or high >= self.count:
            raise NoWindowError("the history does not reach that far", pending=high >= self.count)
        step = self._step(low, high)
        if step is not None:
            raise NoWindowError(f"the node's clock was stepped by {step:+.3f} s inside the window")
        devices = {device: self._difference(series, low, high) for device, series in sorted(self._series.items())}
        start, end = self._ended[low % self.size], self._began[high % self.size]
        return Window(start, end, high - low, {name: window for name, window in devices.items() if window.coverage > 0})

    def before(self, until: float, looks: int) -> Window:
        """The latest window of `looks` looks that had ended at `until`. Raises NoWindowError."""
        high = self._last_ended_before(until)
        if high is None or high - looks < self.first:
            raise NoWindowError("the history does not reach that far back")
        return self.window(high - looks, high)

    def after(self, since: float, looks: int) -> Window:
        """The first window of `looks` looks that began at `since` or later. Raises NoWindowError."""
        low = self._first_began_after(since)
        if low is None or low + looks >= self.count:
            raise NoWindowError("the time after the window is not over yet", pending=True)
        return self.window(low, low + looks)

    def _last_ended_before(self, time: float) -> int | None:
        return next((number for number in range(self.count - 1, self.first - 1, -1) if self._ended[number % self.size] <= time), None)

    def _first_began_after(self, time: float) -> int | None:
        found: int | None = None
        for number in range(self.count - 1, self.first - 1, -1):
            if self._began[number % self.size] < time:
                break
            found = number
        return found

    def _step(self, low: int, high: int) -> float | None:
        """Seconds by which the wall clock and the monotonic clock parted between two looks, or None."""
        for number in range(low, high):
            a, b = number % self.size, (number + 1) % self.size
            drift = (self._began[b] - self._began[a]) - (self._clock[b] - self._clock[a])
            if abs(drift) > CLOCK_STEP:
                return drift
        return None

    def _difference(self, series: dict[str, array[int]], low: int, high: int) -> DeviceWindow:
        window = DeviceWindow()
        there = 0
        for number in range(low, high + 1):
            slot = number % self.size
            there += any(values[slot] != ABSENT for values in series.values())
        window.coverage = there / (high - low + 1)
        for name, values in sorted(series.items()):
            if ABSENT in (values[low % self.size], values[high % self.size]):
                continue
            total, previous, reset = 0, values[low % self.size], False
            for number in range(low + 1, high + 1):
                value = values[number % self.size]
                if value == ABSENT:
                    continue
                reset = reset or value < previous
                total += value - previous if value >= previous else value
                previous = value
            window.counters[name] = total
            if reset:
                window.resets.append(name)
        return window
