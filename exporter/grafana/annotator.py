"""Writes annotations where a verdict changed, from a thread of its own that only reads the status board.

Judged states are compared, not runs: a node that had a bad partner is not marked, nor is a run that could not measure. Changes wait in a
bounded queue; what comes faster than `min_interval` goes out together, and a Grafana that does not answer holds up nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from exporter import log
from exporter.config.base import SecretError
from exporter.config.grafana import Grafana as Settings
from exporter.grafana.client import Grafana, GrafanaError
from exporter.status.board import Snapshot
from exporter.status.document import BAD, state_of

TAG = "efa-pulse"
LOOK_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
MOST_WAITING = 200
"""Changes that wait at most; the oldest go first, and how many went is said."""
LINES = 12
"""Changes that one annotation names."""
LONGEST_PAUSE = 300.0

Key = tuple[str, str]
"""What is judged and by what: a node and a probe, or a canary target and its prompt with `canary/` before it."""


@dataclass(frozen=True)
class Change:
    """One change of a verdict. `at` is Unix seconds."""

    at: float
    key: Key
    bad: bool
    why: str

    def line(self) -> str:
        """For people."""
        return f"{self.key[0]} {'is bad' if self.bad else 'is good again'} ({self.key[1]}): {self.why}"


@dataclass(frozen=True)
class Known:
    """A verdict that stands. `own`: from a run of this process, not from the journal."""

    bad: bool
    why: str
    own: bool


def states(snapshot: Snapshot) -> dict[Key, Known]:
    """What is known to be good or bad now, and by which reason. What is not known, and a mere suspect, is left out."""
    found: dict[Key, Known] = {}
    for (node, probe), entry in snapshot.entries.items():
        state = state_of(snapshot, node, probe)
        if state in BAD - {"explained"} or state == "good":
            found[node, probe] = Known(state in BAD, entry.shown.reason, bool(entry.shown.run_id))
    for (target, prompt), entry in snapshot.canaries.items():
        if entry.conclusive:
            found[target, f"canary/{prompt}"] = Known(entry.shown.bad, entry.shown.reason, own=True)
    return found


def changes(before: Mapping[Key, Known], now: Mapping[Key, Known], at: float) -> Iterator[Change]:
    """What turned bad, what is good again. What is bad the first time it is known has turned bad, unless the journal says so: a restart
    is no news. Nor is the first good verdict."""
    for key, one in now.items():
        was = before.get(key)
        if (was is None and one.bad and one.own) or (was is not None and was.bad != one.bad):
            yield Change(at, key, one.bad, one.why)


class Annotator:
    """See the module. `snapshot` gives what the board shows. `connect` makes the connection; it is made anew for every annotation, so that
    a token that was exchanged is taken."""

    def __init__(self, settings: Settings, snapshot: Callable[[], Snapshot], *, clock: Callable[[], float] = time.time,
                 monotonic: Callable[[], float] = time.monotonic, connect: Callable[[Settings], Grafana] | None = None) -> None:
        self._settings, self._snapshot, self._clock, self._monotonic = settings, snapshot, clock, monotonic
        self._connect = connect or _connect
        self._known: dict[Key, Known] | None = None
        self._waiting: deque[Change] = deque()
        self._dropped = self._failures = 0
        self._not_before = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="annotations", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End within the deadline of one call; what waits is not written any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(TIMEOUT_SECONDS + 1.0)

    @property
    def waiting(self) -> int:
        """Changes that are not written yet."""
        return len(self._waiting)

    def turn(self) -> None:
        """Look once, and write when it is time to."""
        self._look()
        if self._waiting and self._monotonic() >= self._not_before:
            self._write()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self.turn()
            except Exception as error:  # noqa: BLE001 - marks are worth less than the service
                log.get().exception("annotations failed", error=str(error))

    def _look(self) -> None:
        snapshot = self._snapshot()
        if not snapshot.at:
            return
        now = states(snapshot)
        # What the journal or the first look shows was so before: it is no change.
        if self._known is None:
            self._known = now
            return
        for change in changes(self._known, now, self._clock()):
            self._waiting.append(change)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self._dropped += 1
        present = set(snapshot.entries) | {(one, f"canary/{two}") for one, two in snapshot.canaries}
        self._known = {key: value for key, value in (self._known | now).items() if key in present}

    def _write(self) -> None:
        batch, dropped = list(self._waiting), self._dropped
        try:
            self._connect(self._settings).annotate(batch[0].at, [TAG, *self._settings.annotations.tags], _text(batch, dropped))
        except (GrafanaError, SecretError) as error:
            self._failures += 1
            least = self._settings.annotations.min_interval
            self._not_before = self._monotonic() + min(least * 2.0 ** min(self._failures, 10), max(LONGEST_PAUSE, least))
            if self._failures == 1:
                log.get().warning("an annotation could not be written, it is tried again", error=str(error), waiting=len(batch))
            return
        if self._failures:
            log.get().info("annotations are written again", after=self._failures)
        for _ in batch:
            self._waiting.popleft()
        self._dropped -= dropped
        self._failures = 0
        self._not_before = self._monotonic() + self._settings.annotations.min_interval


def _text(batch: list[Change], dropped: int) -> str:
    lines = [change.line() for change in batch[:LINES]]
    more = len(batch) - len(lines) + dropped
    return "\n".join([*lines, *([f"and {more} more changes"] if more else [])])


def _connect(settings: Settings) -> Grafana:
    if settings.url is None or settings.token is None:
        raise SecretError("grafana.url and grafana.token are needed")
    return Grafana(settings.url, settings.token.read(), ca_file=settings.ca_file, timeout=TIMEOUT_SECONDS)
