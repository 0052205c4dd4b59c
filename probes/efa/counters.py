"""The hardware counters of EFA devices, read from the host's sysfs.

Only the witness may use this reader. Port counters exist only in the machine's first network namespace, and on kernels before the fix of
2025-02-27 reading a device's `hw_counters` inside another namespace crashes the node. So a reader refuses this process's own `/sys`: it
wants the host's, mounted elsewhere (hostPath `/sys` at `/host/sys`; on a bare host `mount --bind /sys /host/sys`).

A file that is missing is absent from the answer, never 0: older drivers and devices without a feature do not have it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from probes.efa.devices import is_efa

MAX_DEVICES = 64
MAX_COUNTERS = 96
LIFESPAN = "lifespan"
DEFAULT_LIFESPAN = 0.010
OWN_SYSFS = Path("/sys")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VALUE_BYTES = 32
_LARGEST = 2**64 - 2

DATA_OUT = ("send_bytes", "rdma_write_bytes", "rdma_read_resp_bytes")
"""Payload that left the node: two-sided sends, writes it began, answers to reads of its peers."""
DATA_IN = ("recv_bytes", "rdma_read_bytes", "rdma_write_recv_bytes")
"""Payload that reached the node: two-sided receives, reads it began, writes of its peers."""
RDMA_OUT = ("rdma_write_bytes", "rdma_read_resp_bytes")
RDMA_IN = ("rdma_read_bytes", "rdma_write_recv_bytes")


class SysfsError(ValueError):
    """The sysfs root may not or cannot be used. The text says what to do."""


class CounterReader:
    """Reads every counter of every EFA device below one sysfs root. Not thread-safe."""

    def __init__(self, sysfs: Path) -> None:
        """`sysfs` is the host's sysfs, mounted somewhere else than at /sys. Raises SysfsError."""
        if sysfs.resolve() == OWN_SYSFS or OWN_SYSFS in sysfs.resolve().parents:
            raise SysfsError(f"{sysfs} is this process's own sysfs; reading counters there can crash the node. "
                             f"Mount the host's /sys elsewhere (such as /host/sys) and name that")
        self._folder = sysfs / "class" / "infiniband"
        self.lifespan = DEFAULT_LIFESPAN
        """Longest time in which the kernel may answer with an older value, seconds, of the devices read last."""
        self.errors = 0
        """Files that were there and could not be read, so far."""

    def read(self) -> dict[str, dict[str, int]]:
        """Counters by device, in sorted order. A device that vanishes while it is read is left out. Port and device level are merged."""
        try:
            names = sorted(os.listdir(self._folder))  # noqa: PTH208 - names only, once a second
        except OSError:
            return {}
        self.lifespan = DEFAULT_LIFESPAN
        found: dict[str, dict[str, int]] = {}
        for name in names:
            entry = self._folder / name
            if len(found) < MAX_DEVICES and is_efa(entry):
                counters = {**self._level(entry / "hw_counters"), **self._level(entry / "ports" / "1" / "hw_counters")}
                if entry.exists():
                    found[name] = counters
        return found

    def _level(self, folder: Path) -> dict[str, int]:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return {}
        values: dict[str, int] = {}
        try:
            for name in sorted(os.listdir(handle)):  # noqa: PTH208 - a thousand names, once a second
                if not _NAME.fullmatch(name) or len(values) >= MAX_COUNTERS:
                    continue
                value = self._value(name, handle)
                if value is None:
                    continue
                if name == LIFESPAN:
                    self.lifespan = max(self.lifespan, min(value, 60_000) / 1e3)
                else:
                    values[name] = value
        except OSError:
            self.errors += 1
        finally:
            os.close(handle)
        return values

    def _value(self, name: str, folder: int) -> int | None:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError:
            self.errors += 1
            return None
        try:
            value = int(os.read(handle, _VALUE_BYTES))
        except (OSError, ValueError):
            self.errors += 1
            return None
        finally:
            os.close(handle)
        return value if 0 <= value <= _LARGEST else None
