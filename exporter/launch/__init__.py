"""Starting runs: one `Launcher` protocol, and a local one that starts the workers as processes of this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from exporter.runs import Run, RunSpec

OnFinished = Callable[[Run], None]


class Launcher(Protocol):
    """Starts the workers of a run and reports its end exactly once, whatever happens, through the callback given at construction."""

    def start(self, spec: RunSpec) -> None:
        """Begin; returns at once. The end of the run, also of one that could not be started, comes through the callback."""
        ...

    def cancel(self, run_id: str) -> None:
        """Ask a run to end; its ranks report `cancelled`. Unknown ids are ignored."""
        ...

    def running(self) -> list[str]:
        """Ids of the runs that have not ended."""
        ...

    def close(self, grace: float) -> None:
        """Cancel what runs and return when nothing of it is left, at the latest a little after `grace` seconds."""
        ...
