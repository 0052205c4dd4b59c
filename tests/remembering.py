"""A launcher that only remembers what it was asked to start: for tests that turn the control loop by hand."""

from __future__ import annotations

from exporter.runs import RunSpec


class RememberingLauncher:
    """See `exporter.launch.Launcher`."""

    def __init__(self) -> None:
        self.started: list[RunSpec] = []

    def start(self, spec: RunSpec) -> None:
        self.started.append(spec)

    def cancel(self, run_id: str) -> None: ...

    def running(self) -> list[str]:
        return []

    def close(self, grace: float) -> None: ...
