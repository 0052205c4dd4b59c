"""The witness's one loop: look once an interval, serve in between, end on SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import probes
from probes.efa.counters import CounterReader
from probes.witness import pages
from probes.witness.history import History
from probes.witness.http import JSON, Response, Server

METRICS = "text/plain; version=0.0.4; charset=utf-8"
STALE_INTERVALS = 5


class Witness:
    """Reads, keeps and answers. `close` gives the port back."""

    def __init__(self, sysfs: Path, host: str, port: int, node: str, interval: float, seconds: float,
                 clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises SysfsError or ListenError."""
        self._sysfs = sysfs
        self._reader = CounterReader(sysfs)
        self._history = History(interval, seconds)
        self._node = node
        self._interval = interval
        self._clock, self._monotonic = clock, monotonic
        self._started = clock()
        self._looked = monotonic()
        self._took = 0.0
        self._late = 0
        self._stop = False
        self._server = Server(host, port, self.answer, clock=monotonic)

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def look(self) -> None:
        """Read all counters once."""
        began, clock = self._clock(), self._monotonic()
        counters = self._reader.read()
        self._history.add(began, self._clock(), clock, counters)
        self._looked = self._monotonic()
        self._took = self._looked - clock

    def run(self) -> None:
        """Look and serve until SIGTERM or SIGINT."""
        wake, signalled = socket.socketpair()
        for end in (wake, signalled):
            end.setblocking(False)
        old = {number: signal.signal(number, self._end) for number in (signal.SIGTERM, signal.SIGINT)}
        before = signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        self._server.watch(wake)
        try:
            due = self._monotonic()
            while not self._stop:
                now = self._monotonic()
                if now >= due:
                    self.look()
                    # A look that was missed is not made up for: the next one is at the next interval.
                    missed = int((self._monotonic() - due) / self._interval)
                    self._late += missed
                    due += self._interval * (missed + 1)
                self._server.step(due - self._monotonic())
        finally:
            signal.set_wakeup_fd(before)
            for number, handler in old.items():
                signal.signal(number, handler)
            for end in (wake, signalled):
                with contextlib.suppress(OSError):
                    end.close()

    def answer(self, target: str) -> Response:
        """The answer to one request."""
        path, _, query = target.partition("?")
        if path == "/metrics":
            return Response(200, pages.metrics(self._history, self._node, self._own(), probes.__version__), METRICS)
        if path == "/window":
            status, body = pages.window_json(self._history, self._node, query, self._reader.lifespan)
            return Response(status, body, JSON)
        if path in ("/-/healthy", "/-/ready"):
            age = self._monotonic() - self._looked
            if not self._history.count or age > STALE_INTERVALS * self._interval:
                return Response(503, f"the last look is {age:.1f} s old\n".encode())
            return Response(200, b"ok\n")
        return Response(404, b"there is /window, /metrics and /-/healthy\n")

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        self._stop = True

    def _own(self) -> dict[str, tuple[str, str, float]]:
        span = self._history.span
        return {
            "start_time_seconds": ("gauge", "When the witness started, Unix seconds.", round(self._started, 3)),
            "sysfs_mounted": ("gauge", "1 when there is a sysfs at the root named.", float((self._sysfs / "class").is_dir())),
            "devices": ("gauge", "EFA devices at the last look.", len(self._history.latest())),
            "looks_total": ("counter", "Times the counters were read.", self._history.count),
            "missed_looks_total": ("counter", "Looks left out because the one before took too long.", self._late),
            "read_errors_total": ("counter", "Counter files that were there and could not be read.", self._reader.errors),
            "look_duration_seconds": ("gauge", "How long the last look took.", round(self._took, 6)),
            "last_look_timestamp_seconds": ("gauge", "When the last look began, Unix seconds.", round(span[1], 3) if span else 0),
            "history_seconds": ("gauge", "How far back the history reaches.", round(span[1] - span[0], 3) if span else 0),
        }
