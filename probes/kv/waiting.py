"""How to wait for what an engine's own threads bring about: fast where there are CPUs, without taking theirs where there are few."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from probes.contract import allowed_cpus

_MANY_CPUS = 4


def usable_cpus(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """CPUs of this process: its affinity, or less where the cgroup has a quota."""
    cpus = float(allowed_cpus())
    with contextlib.suppress(OSError, ValueError):
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            return min(cpus, int(quota) / int(period))
    return cpus


class Patience:
    """Pauses between two looks at something: none while it is young, then 2 % of its age.

    NIXL's progress threads burn a CPU per agent. On two CPUs a caller that polls without pause halves the bandwidth of 1 MiB blocks.
    """

    def __init__(self, cpus: float) -> None:
        self.spin = 10e-3 if cpus >= _MANY_CPUS else 50e-6

    def pause(self, age: float) -> None:
        """Sleep as long as something of this age (seconds) deserves."""
        if age > self.spin:
            time.sleep(min(1e-3, max(20e-6, age / 50)))
