"""What goes on in a cluster while a command waits: each rank's state in words."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from exporter.launch.flight import Stage
from exporter.runs import RunSpec

WORDS = {Stage.CREATING.value: "its Job is being made", Stage.FLYING.value: "waiting for its pod", Stage.CANCELLING.value: "stopping",
         "pending": "waiting for its node"}
"""What stands where a rank has no pod yet, or its pod no node."""


class Progress:
    """Each rank's state in words: one live line on a terminal, a line for every change elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._specs: dict[str, RunSpec] = {}
        self._said: dict[str, dict[int, str]] = {}
        self._notes: dict[str, str] = {}
        self._status: Status | None = None
        self._since = 0.0

    def said(self, run_id: str, ranks: dict[int, str]) -> None:
        """Take in the ranks' new states. Called from the launcher's thread."""
        ranks = {rank: WORDS.get(words, words) for rank, words in ranks.items()}
        with self._lock:
            before = self._said.get(run_id, {})
            self._said[run_id] = ranks
            spec = self._specs.get(run_id)
        if spec is not None and not self._console.is_terminal:
            for rank, words in ranks.items():
                if before.get(rank) != words:
                    self._console.print(f"{spec.probe} {spec.target}: rank {rank} {words}", markup=False)

    def note(self, run_id: str, text: str) -> None:
        """What goes on beside the ranks."""
        with self._lock:
            self._notes[run_id] = text

    @contextlib.contextmanager
    def shown(self, specs: Sequence[RunSpec]) -> Iterator[None]:
        """Show these runs while the block lasts."""
        with self._lock:
            self._specs, self._said, self._notes, self._since = {spec.run_id: spec for spec in specs}, {}, {}, time.monotonic()
        with status(self._console, "starting") as self._status:
            yield
        self._status = None

    def refresh(self) -> None:
        """Bring the live line up to date."""
        if self._status is not None:
            self._status.update(self.line())

    def line(self) -> str:
        """All runs in one text, with the seconds that have passed."""
        with self._lock:
            parts = [f"{spec.probe} {spec.target}: " + (self._notes.get(run_id) or _ranks(self._said.get(run_id, {})))
                     for run_id, spec in self._specs.items()]
        return escape("\n".join([*parts, f"{time.monotonic() - self._since:.0f} s"]))


def status(console: Console, text: str) -> AbstractContextManager[Status | None]:
    """A live line with a spinner on a terminal, nothing elsewhere."""
    return console.status(escape(text)) if console.is_terminal else nullcontext()


def _ranks(said: dict[int, str]) -> str:
    return ", ".join(f"rank {rank} {words}" for rank, words in sorted(said.items())) or "waiting for a place"
