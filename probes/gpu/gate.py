"""The gate before a GPU: production wins, so a probe keeps off a GPU that somebody uses, and off one without room for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from probes.gpu.driver import Driver
from probes.gpu.nvml import Nvml, NvmlError, Usage
from probes.reasons import Reason

# A GPU nobody uses still holds some memory of the driver's, where NVML does not set it apart.
IDLE_BYTES = 1 << 30
GIB = 1 << 30


@dataclass(frozen=True)
class Refusal:
    """Why a GPU may not be used, as a reason of the closed list and a sentence."""

    reason: Reason
    message: str


def judge(usage: Usage, *, index: int, need: int, allow_busy: bool = False,
          mine: Callable[[int], bool] = lambda _: False) -> Refusal | None:
    """Whether a GPU in this state may be used for `need` bytes. None: it may.

    `mine` tells which process ids belong to this run. In a container NVML may list no processes at all: then memory in use speaks.
    """
    strangers = [pid for pid in usage.pids if not mine(pid)]
    where = f"GPU {index} ({usage.name}, {usage.bus_id})"
    if not allow_busy and strangers:
        who = ", ".join(map(str, strangers[:4]))
        return Refusal(Reason.GPU_BUSY, f"{where} is used by process {who}, {usage.used / GIB:.1f} GiB in use")
    if not allow_busy and usage.used > IDLE_BYTES:
        return Refusal(Reason.GPU_BUSY, f"{where} has {usage.used / GIB:.1f} GiB in use by a process not to be seen from here")
    if usage.free < need:
        return Refusal(Reason.GPU_BUSY, f"{where} has {usage.free / GIB:.1f} GiB free, {need / GIB:.1f} GiB are needed")
    return None


def look(driver: Driver, index: int) -> Usage | None:
    """The state of a visible GPU, None where NVML is not there: then the allocation itself decides. Raises CudaError (`gpu_missing`)."""
    bus_id = driver.bus_id(index)
    with suppress(NvmlError), Nvml() as nvml:
        return nvml.usage(bus_id)
    return None


def driver_version() -> str | None:
    """The NVIDIA kernel driver's version, None without NVML."""
    with suppress(NvmlError), Nvml() as nvml:
        return nvml.driver_version()
    return None
