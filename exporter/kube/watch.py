"""Following a collection of the Kubernetes API: list once, then watch from there for as long as it goes.

Every object is reduced to what is needed the moment it is read. A watch that ends, is cut or falls silent is resumed from the last seen
resource version (bookmarks keep that fresh); when the server no longer has that version (410), everything is listed again and what
vanished in between is reported as gone. Nothing is ever reported twice for the same version of an object.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from exporter.kube.api import Answer, Api, ApiError, Json

log = logging.getLogger(__name__)

T = TypeVar("T")

PAGE = 250
SILENCE_SECONDS = 75.0
"""A bookmark comes about every minute: a connection silent for longer may be dead, and resuming costs one request."""
SERVER_SECONDS = 300
"""How long the server is asked to keep one watch open; jittered, so that watches do not end together."""
LIST_SECONDS = 60.0
OPEN_SECONDS = 15.0
SHORT_SECONDS = 1.0
FIRST_WAIT = 0.2
LONGEST_WAIT = 15.0
JOIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object's new state; `gone` with its last known state when it no longer exists (or no longer matches)."""

    key: str
    value: T
    gone: bool = False


class Watch(Generic[T]):
    """A thread that follows one collection.

    `reduce` turns an object into what is kept of it, or None to ignore it; it runs in the watch's thread, as does `on_change`. An object's
    key is its uid. `items` is a consistent copy at any time.
    """

    def __init__(self, api: Api, path: str, reduce: Callable[[Json], T | None], *, query: Mapping[str, str] | None = None,
                 on_change: Callable[[list[Change[T]]], None] | None = None, absent_is_empty: bool = False, page: int = PAGE,
                 silence: float = SILENCE_SECONDS) -> None:
        self.path = path
        self._api = api
        self._reduce = reduce
        self._query = dict(query or {})
        self._on_change = on_change
        self._absent_is_empty = absent_is_empty
        self._page = page
        self._silence = silence
        self._items: dict[str, T] = {}
        self._version: str | None = None
        self._lock = threading.Lock()
        self._synced = threading.Event()
        self._stop = threading.Event()
        self._answer: Answer | None = None
        self._contact = self._lived = 0.0
        self._error = "not yet read"
        self.lists = 0
        self.resumes = 0
        self._thread = threading.Thread(target=self._run, name=f"watch {path}", daemon=True)

    def start(self) -> Watch[T]:
        """Begin to follow."""
        self._thread.start()
        return self

    def items(self) -> dict[str, T]:
        """What there is now, by uid."""
        with self._lock:
            return dict(self._items)

    def wait(self, seconds: float) -> bool:
        """Wait until everything was listed once. Returns whether it was."""
        return self._synced.wait(seconds)

    @property
    def synced(self) -> bool:
        """Whether everything was listed at least once."""
        return self._synced.is_set()

    @property
    def age(self) -> float:
        """Seconds since the server was last known to tell us everything: near zero while a watch is open, growing while none can be."""
        return 0.0 if self._answer is not None else (time.monotonic() - self._contact if self._contact else float("inf"))

    @property
    def error(self) -> str:
        """Why the collection cannot be followed now; empty when it is."""
        return self._error

    def close(self) -> None:
        """End the thread, whatever it waits for."""
        self._stop.set()
        answer = self._answer
        if answer is not None:
            answer.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._lived = 0.0
            try:
                if self._version is None:
                    self._list()
                self._follow()
                failures = 0
            except ApiError as error:
                # A watch that was open for a while and was cut is no sign of trouble: only failures in a row slow us down.
                failures = self._failed(error, 0 if self._lived > SHORT_SECONDS else failures)
            except Exception:
                # A watch that dies silently is the worst of all: the world would look frozen.
                log.exception("watch of %s: unexpected error, listing again", self.path)
                self._version, failures = None, failures + 1
                self._pause(failures, None)

    def _failed(self, error: ApiError, failures: int) -> int:
        if self._stop.is_set():
            return failures
        if error.gone or _version_unknown(error):
            log.info("watch of %s: version %s is no longer there, listing again", self.path, self._version)
            self._version = None
            if failures == 0:
                return 1
        elif error.not_found and self._absent_is_empty:
            self._error = ""
            self._contact = time.monotonic()
            self._replace({})
            self._version = None
            self._stop.wait(LONGEST_WAIT * 4)
            return 0
        else:
            if not error.passing and str(error) != self._error:
                log.warning("watch of %s: %s", self.path, error)
            self._error = str(error)
        self._pause(failures + 1, error.retry_after)
        return failures + 1

    def _pause(self, failures: int, wished: float | None) -> None:
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(failures, 10))
        self._stop.wait(max(min(wished or 0.0, 60.0), wait * random.uniform(0.5, 1.0)))  # noqa: S311 - jitter

    def _list(self) -> None:
        """Everything, page by page, reduced page by page."""
        found: dict[str, T] = {}
        query: dict[str, Any] = {**self._query, "limit": self._page}
        self.lists += 1
        while True:
            answer = self._api.get(self.path, query, timeout=LIST_SECONDS)
            for one in answer.get("items") or []:
                if (value := self._reduce(one)) is not None:
                    found[str(one["metadata"]["uid"])] = value
            meta = answer.get("metadata") or {}
            if not meta.get("continue"):
                break
            query["continue"] = meta["continue"]
            if self._stop.is_set():
                raise ApiError(0, "stopped")
        self._version = str(meta["resourceVersion"])
        self._contact = time.monotonic()
        self._error = ""
        self._replace(found)

    def _replace(self, found: dict[str, T]) -> None:
        with self._lock:
            old, self._items = self._items, found
        changes = [Change(key, value) for key, value in found.items() if old.get(key) != value]
        changes += [Change(key, value, gone=True) for key, value in old.items() if key not in found]
        self._tell(changes)
        self._synced.set()

    def _follow(self) -> None:
        """Watch until the server ends it. Raises ApiError."""
        seconds = int(SERVER_SECONDS * random.uniform(0.8, 1.0))  # noqa: S311 - jitter
        query: dict[str, str | int | bool] = {**self._query, "watch": True, "allowWatchBookmarks": True, "timeoutSeconds": seconds,
                                              "resourceVersion": str(self._version)}
        self.resumes += 1
        opened = time.monotonic()
        with self._api.open("GET", self.path, query=query, timeout=OPEN_SECONDS) as answer:
            self._answer, self._error = answer, ""
            try:
                if self._stop.is_set():
                    return
                for line in answer.lines(self._silence):
                    if line.strip():
                        self._take(line)
            finally:
                self._answer = None
                self._contact = time.monotonic()
                self._lived = self._contact - opened
        if time.monotonic() - opened < SHORT_SECONDS and not self._stop.is_set():
            raise ApiError(503, f"the watch of {self.path} ended at once")

    def _take(self, line: bytes) -> None:
        try:
            event = json.loads(line)
            kind, one = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(0, f"watch of {self.path}: not an event: {error}") from None
        if kind == "ERROR":
            raise ApiError(int(one.get("code") or 0), str(one.get("message")), str(one.get("reason") or ""))
        meta = one["metadata"]
        if kind != "BOOKMARK":
            self._apply(str(meta["uid"]), self._reduce(one), gone=kind == "DELETED")
        self._version = str(meta["resourceVersion"])

    def _apply(self, key: str, value: T | None, *, gone: bool) -> None:
        with self._lock:
            known = self._items.get(key)
            if value is None or gone:
                self._items.pop(key, None)
            else:
                self._items[key] = value
        last = value if value is not None else known
        if last is not None and (gone or value is None or value != known):
            self._tell([Change(key, last, gone=gone or value is None)])

    def _tell(self, changes: list[Change[T]]) -> None:
        if changes and self._on_change is not None:
            try:
                self._on_change(changes)
            except Exception:
                log.exception("watch of %s: whoever takes its changes failed", self.path)


def _version_unknown(error: ApiError) -> bool:
    """A server restored from a backup does not know our version yet: waiting for it could take for ever."""
    causes = error.details.get("causes") or []
    named = any(isinstance(one, dict) and one.get("reason") == "ResourceVersionTooLarge" for one in causes)
    return error.status == 504 and (named or "Too large resource version" in error.message)
