"""What a supervisor sees of its child from outside: TCP bytes of its sockets, pressure on its cgroup, known lines in its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probes.efa import devices, markers
from probes.efa.pressure import Pressure
from probes.efa.sockets import SocketBytes
from probes.result import Marker, Throttling

STACKS = {"mooncake": "mooncake", "nixl": "nixl", "nccl": "nccl", "uccl-ep": "uccl_ep"}
MARKER_LIMIT = 12


class Observer:
    """Watches one child through one measure window. Everything it cannot see stays None."""

    def __init__(self, pid: int, log_start: int = 0) -> None:
        """`log_start` is how much of the log was there before this child: an older run's lines prove nothing."""
        self._log_start = log_start
        self._sockets = SocketBytes(pid)
        self._pressure = Pressure(pid)
        self._tcp: tuple[int, int] | None = None
        self._throttling: Throttling | None = None
        self._open = False

    def begin(self) -> None:
        """The measure window opens: take the reference values."""
        self._sockets.mark()
        self._pressure.mark()
        self._open = True

    def sample(self) -> None:
        """Look at the sockets, so that what is closed before the end is not lost."""
        self._sockets.sample()

    def end(self) -> None:
        """The window closes. The child waits meanwhile, so its sockets are still there unless it died."""
        if self._open:
            self._tcp = self._sockets.since_mark()
            self._throttling = self._pressure.since_mark()
            self._open = False

    def throttling(self) -> Throttling | None:
        """Pressure inside the window."""
        return self._throttling

    def evidence(self, probe: str, reported: dict[str, Any] | None, log_path: Path) -> dict[str, Any] | None:
        """The probe's own evidence joined with TCP bytes and markers. None for a probe that says nothing of a transport."""
        stack = STACKS.get(probe) or (reported or {}).get("stack")
        if stack is None:
            return reported
        evidence: dict[str, Any] = {"stack": stack, **(reported or {})}
        if self._tcp is not None:
            evidence["tcp_bytes"] = self._tcp
        if evidence.get("nics_allocated") is None and (allocated := devices.allocated(devices.discover())):
            evidence["nics_allocated"] = len(allocated)
        seen = list(evidence.get("markers") or [])
        known = {marker["id"] for marker in seen}
        seen += [m.model_dump(mode="json") for m in self._scan(stack, log_path) if m.id not in known]
        evidence["markers"] = seen[:MARKER_LIMIT]
        return evidence

    def _scan(self, stack: str, log_path: Path) -> list[Marker]:
        return markers.scan(stack, log_path, limit=MARKER_LIMIT, start=self._log_start)
