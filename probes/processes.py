"""Process keeping on Linux: nobody outlives whoever started him.

Parent-death signals and the child subreaper come from prctl(2); the rest is /proc. Without them (another system) the calls do nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(sig: signal.Signals, parent: int) -> None:
    """Ask the kernel for `sig` when the thread that started this process ends. Ends at once when `parent` is gone already."""
    _prctl(_PR_SET_PDEATHSIG, int(sig))
    if os.getppid() != parent:
        os._exit(143)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, nearest first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += below
    return found


def kill_descendants(pid: int, seconds: float = 2.0) -> list[int]:
    """Kill everything below `pid` and reap what is ours. Returns those still alive after `seconds` (in uninterruptible sleep)."""
    until = time.monotonic() + seconds
    while True:
        alive = [p for p in descendants(pid) if not _is_zombie(p)]
        for process in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
