"""Reading the configuration again: on request, and when it or a file it names has changed. The last good one stays in use."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from exporter.config.base import read_file
from exporter.config.load import load
from exporter.config.problems import ConfigError
from exporter.config.root import Config

POLL_SECONDS = 5.0
SETTLE_SECONDS = 1.0
EMPTY_FACTOR = 5
"""An empty file is valid and is also what an editor leaves for a moment: it must stay that much longer."""
READ_LIMIT = 8 << 20

_log = logging.getLogger(__name__)

Report = Callable[[Config | None, str | None, float], None]
"""Called with the new configuration, or None and why it was refused, and the Unix time."""


@dataclass(frozen=True)
class Outcome:
    """How one reload ended: the configuration or why there is none, when (Unix seconds), and which files had changed."""

    config: Config | None
    error: str | None
    at: float
    changed: tuple[Path, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is a new configuration."""
        return self.config is not None


@dataclass(frozen=True)
class _Look:
    """A file as it stands: identity and times of what its name leads to, symbolic links followed. None where there is no file."""

    stamp: tuple[int, int, int, int, int] | None

    @property
    def empty(self) -> bool:
        return self.stamp is not None and self.stamp[2] == 0


class Reloader:
    """Watches a configuration file in a thread of its own.

    Looks at the file every `poll` seconds, and at every secret, certificate and web configuration that it names. A changed file is read
    when it has not changed further for `settle` seconds, so that one being written is not taken for whole; a Kubernetes ConfigMap is
    seen when its `..data` link moves. Files whose bytes are what they were are not read again. Errors are reported once for each change.

    `current` is the configuration in use: when the file says something else at the start, that is reported at once.
    `changed` is called with the files whose bytes changed, secrets included, before the report.
    """

    def __init__(self, path: Path | str, report: Report, *, current: Config | None = None,
                 changed: Callable[[tuple[Path, ...]], None] | None = None, poll: float = POLL_SECONDS, settle: float = SETTLE_SECONDS,
                 clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(path)
        self._report = report
        self._on_changed = changed
        self._poll = poll
        self._settle = settle
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        # A SimpleQueue may be used in a signal handler; an Event may not.
        self._wishes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._watched: tuple[Path, ...] = (self._path,)
        self._known: dict[Path, _Look] = {}
        self._digests: dict[Path, str | None] = {}
        self._pending: tuple[dict[Path, _Look], float] | None = None
        self._watch_from(current)

    def start(self) -> None:
        """Start watching."""
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 5.0) -> bool:
        """Stop watching, waiting at most `timeout` seconds. Whether the thread has ended."""
        self._wishes.put("stop")
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def request(self) -> None:
        """Ask for a reload and return. May be called from any thread and from a signal handler."""
        self._wishes.put("reload")

    def reload(self) -> Outcome:
        """Read the file now, in this thread, and report."""
        with self._lock:
            return self._load(self._looks())

    def check(self) -> float:
        """Look once, reload what has changed and settled, and say after how many seconds to look again. The thread calls it."""
        with self._lock:
            looks = self._looks()
            if looks == self._known:
                self._pending = None
                return self._poll
            now = self._monotonic()
            if self._pending is None or self._pending[0] != looks:
                self._pending = (looks, now)
                return self._settle
            left = self._pending[1] + self._settle * (EMPTY_FACTOR if looks[self._path].empty else 1) - now
            if left > 0:
                return left
            if {path: _digest(path) for path in self._watched} == self._digests:
                self._known, self._pending = looks, None
                return self._poll
            self._load(looks)
            return self._poll

    def _run(self) -> None:
        wait = 0.0
        while True:
            try:
                wish = self._wishes.get(timeout=wait) if wait > 0 else self._wishes.get_nowait()
            except queue.Empty:
                wish = "look"
            if wish == "stop":
                return
            try:
                if wish == "reload":
                    self.reload()
                    wait = self._poll
                else:
                    wait = self.check()
            except Exception:  # noqa: BLE001 - a watcher that stops in silence is worse than one that complains
                _log.exception("looking at %s failed", self._path)
                wait = self._poll

    def _load(self, looks: dict[Path, _Look]) -> Outcome:
        before = self._digests
        config: Config | None = None
        error: str | None = None
        named: Iterable[Path] = ()
        try:
            config = load(self._path)
            named = _named(config)
        except ConfigError as problem:
            error = str(problem)
            named = self._named_anyway()
        self._watch((*named, *(self._watched if config is None else ())))
        # What was seen before reading counts: a change during the reading is then a new one.
        self._known = {path: looks[path] if path in looks else _look(path) for path in self._watched}
        self._digests = {path: _digest(path) for path in self._watched}
        self._pending = None
        changed = tuple(path for path, digest in self._digests.items() if path in before and before[path] != digest)
        outcome = Outcome(config, error, self._clock(), changed)
        if changed and self._on_changed is not None:
            self._on_changed(changed)
        self._report(config, error, outcome.at)
        return outcome

    def _named_anyway(self) -> tuple[Path, ...]:
        """What a refused file names: it may be refused only because one of these is not there yet."""
        try:
            return _named(load(self._path, references=False))
        except ConfigError:
            return ()

    def _watch_from(self, current: Config | None) -> None:
        try:
            found: Config | None = load(self._path)
        except ConfigError:
            found = None
        known = found or current
        self._watch(_named(known) if known is not None else self._named_anyway())
        if current is None or found == current:
            self._known = self._looks()
            self._digests = {path: _digest(path) for path in self._watched}

    def _watch(self, named: Iterable[Path]) -> None:
        self._watched = tuple(dict.fromkeys((self._path, *named)))

    def _looks(self) -> dict[Path, _Look]:
        return {path: _look(path) for path in self._watched}


def _named(config: Config) -> tuple[Path, ...]:
    return tuple(path for path in (reference.watched for reference in config.references()) if path is not None)


def _look(path: Path) -> _Look:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return _Look(None)
    return _Look((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(read_file(path, READ_LIMIT)).hexdigest()
    except (OSError, ValueError):
        return None
