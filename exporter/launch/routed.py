"""Two launchers as one: canary requests start beside the service, probes where their nodes are."""

from __future__ import annotations

from exporter.launch import Launcher
from exporter.runs import RunSpec

CANARY = "canary"


class RoutedLauncher:
    """See `Launcher`. Runs of the `canary` probe go to `canaries`, all others to `probes`."""

    def __init__(self, probes: Launcher, canaries: Launcher) -> None:
        self._probes, self._canaries = probes, canaries

    def start(self, spec: RunSpec) -> None:
        """See `Launcher.start`."""
        (self._canaries if spec.probe == CANARY else self._probes).start(spec)

    def cancel(self, run_id: str) -> None:
        """See `Launcher.cancel`."""
        self._probes.cancel(run_id)
        self._canaries.cancel(run_id)

    def running(self) -> list[str]:
        """See `Launcher.running`."""
        return sorted([*self._probes.running(), *self._canaries.running()])

    def close(self, grace: float) -> None:
        """See `Launcher.close`."""
        self._canaries.close(grace)
        self._probes.close(grace)
