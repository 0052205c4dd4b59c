"""A process and everything it started, also what was left behind by a parent that died."""

from __future__ import annotations

import os
from pathlib import Path

from probes.processes import descendants

MAX_PROCESSES = 4096


class ProcessTree:
    """The living processes below and including `pid`. One that was seen once stays in it when its parent dies."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._pid = pid
        self._births: dict[int, str] = {}

    def alive(self) -> list[int]:
        """Look now: their pids, no order. What was born and orphaned since the last look is not found."""
        queue = [self._pid, *self._births]
        alive: dict[int, str] = {}
        while queue and len(alive) < MAX_PROCESSES:
            pid = queue.pop()
            if pid in alive:
                continue
            birth = _birth(self._proc, pid)
            if birth is None or self._births.get(pid, birth) != birth:
                continue  # gone, or its number was given to somebody else
            alive[pid] = birth
            queue.extend(_children(self._proc, pid))
        self._births = alive
        return list(alive)


def _birth(proc: Path, pid: int) -> str | None:
    """The start time of a living process, in the kernel's ticks: with it, a pid names one process for ever. None for a dead one."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    return fields[19].decode() if len(fields) > 19 and fields[0] not in b"ZX" else None


def _children(proc: Path, pid: int) -> list[int]:
    """Processes started by any thread of `pid`. Kernels without that list are asked for every process instead."""
    found: list[int] = []
    listed = False
    try:
        with os.scandir(proc / str(pid) / "task") as tasks:
            for task in tasks:
                try:
                    with open(task.path + "/children", "rb") as file:  # noqa: PTH123 - hundreds of threads, four times a second
                        found += [int(word) for word in file.read().split()]
                    listed = True
                except OSError:
                    continue
    except OSError:
        return []
    return found if listed else descendants(pid)
