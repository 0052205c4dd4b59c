"""How much the kernel kept a worker from running: throttling and pressure of its cgroup, and how long one of its threads had to wait.

Sources: `cpu.stat` (`nr_periods`, `nr_throttled`, `throttled_usec`) and `cpu.pressure` (`some ... total=`, microseconds) of the cgroup,
version 2 or the `cpu` controller of version 1; `/proc/PID/task/*/schedstat` (second field: nanoseconds on a run queue).
"""

from __future__ import annotations

from pathlib import Path

from probes.efa.process_tree import ProcessTree
from probes.result import Throttling


class Pressure:
    """Before and after of one window of process `pid` and its descendants. Never raises: what the kernel does not tell is None."""

    def __init__(self, pid: int, cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._cgroups = cgroups
        self._tree = ProcessTree(pid, proc)
        self._folder: Path | None = None
        self._stat: dict[str, float] = {}
        self._stalled: float | None = None
        self._waits: dict[tuple[int, int], int] | None = None
        self._marked = False

    def mark(self) -> None:
        """Start of the window."""
        self._folder = _cgroup_of(self._proc, self._pid, self._cgroups)
        self._stat = _cpu_stat(self._folder)
        self._stalled = _stalled(self._folder)
        self._waits = self._waiting()
        self._marked = True

    def since_mark(self) -> Throttling | None:
        """What happened since `mark`. None without a mark or when the kernel tells nothing at all."""
        if not self._marked:
            return None
        stat, stalled, waits = _cpu_stat(self._folder), _stalled(self._folder), self._waiting()
        waited: float | None = None
        if self._waits is not None and waits:
            # The most starved thread, not the sum: sixty helper threads that wait a little each do not slow the one that matters.
            waited = max(value - self._waits.get(thread, 0) for thread, value in waits.items()) / 1e9
        periods, throttled, seconds = (_gain(self._stat, stat, name) for name in ("nr_periods", "nr_throttled", "throttled_seconds"))
        found = Throttling(
            periods=None if periods is None else int(periods),
            throttled_periods=None if throttled is None else int(throttled),
            throttled_seconds=seconds,
            cpu_pressure_seconds=None if stalled is None or self._stalled is None or stalled < self._stalled else stalled - self._stalled,
            wait_seconds=waited,
        )
        return None if found == Throttling() else found

    def _waiting(self) -> dict[tuple[int, int], int] | None:
        """Nanoseconds on a run queue per (process, thread). None where the kernel keeps no such count."""
        waits: dict[tuple[int, int], int] = {}
        for pid in self._tree.alive():
            try:
                tasks = list((self._proc / str(pid) / "task").iterdir())
            except OSError:
                continue
            for task in tasks:
                try:
                    waits[pid, int(task.name)] = int((task / "schedstat").read_text().split()[1])
                except (OSError, ValueError, IndexError):
                    continue
        return waits or None


def _cgroup_of(proc: Path, pid: int, cgroups: Path) -> Path | None:
    """The folder with the `cpu` files of a process: version 2, or the `cpu` controller of version 1. None when there is none."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (cgroups / controllers, cgroups / "cpu") if controllers else (cgroups,):
            # In a cgroup namespace of its own the path may lead out of what is mounted: then the mount is the group.
            for candidate in (folder / path.lstrip("/"), folder):
                if ".." not in candidate.parts and (candidate / "cpu.stat").is_file():
                    return candidate
    return None


def _cpu_stat(folder: Path | None) -> dict[str, float]:
    """`cpu.stat` with the throttled time in seconds under `throttled_seconds`. Empty when it cannot be read."""
    if folder is None:
        return {}
    try:
        pairs = [line.split() for line in (folder / "cpu.stat").read_text().splitlines()]
        stat = {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}
    if "throttled_usec" in stat:
        stat["throttled_seconds"] = stat["throttled_usec"] / 1e6
    elif "throttled_time" in stat:
        stat["throttled_seconds"] = stat["throttled_time"] / 1e9
    return stat


def _stalled(folder: Path | None) -> float | None:
    """Seconds in which some task of the group waited for a CPU, ever. None without pressure information."""
    if folder is None:
        return None
    try:
        for line in (folder / "cpu.pressure").read_text().splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None
    return None


def _gain(before: dict[str, float], after: dict[str, float], name: str) -> float | None:
    if name not in before or name not in after or after[name] < before[name]:
        return None
    return after[name] - before[name]
