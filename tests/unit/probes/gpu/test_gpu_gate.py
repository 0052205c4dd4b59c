"""The gate before a GPU, and what happens on a machine without one."""

from __future__ import annotations

import ctypes.util

import pytest

from probes.gpu.driver import CudaError, Driver
from probes.gpu.gate import driver_version, judge
from probes.gpu.nvml import Usage
from probes.reasons import Reason

GIB = 1 << 30


def usage(*, used: float = 0.5, free: float = 139.0, pids: tuple[int, ...] = ()) -> Usage:
    return Usage("NVIDIA H200", "GPU-1", "0000:53:00.0", 141 * GIB, int(free * GIB), int(used * GIB), pids)


def test_an_idle_gpu_with_room_may_be_used() -> None:
    assert judge(usage(), index=0, need=10 * GIB) is None


def test_a_gpu_that_somebody_uses_is_busy() -> None:
    refusal = judge(usage(used=40, free=100, pids=(4711, 4712)), index=3, need=GIB)
    assert refusal is not None
    assert refusal.reason is Reason.GPU_BUSY
    assert refusal.message == "GPU 3 (NVIDIA H200, 0000:53:00.0) is used by process 4711, 4712, 40.0 GiB in use"


def test_memory_in_use_speaks_where_no_process_can_be_seen() -> None:
    refusal = judge(usage(used=40, free=100), index=0, need=GIB)
    assert refusal is not None
    assert "not to be seen from here" in refusal.message


def test_too_little_memory_is_busy_even_when_company_is_allowed() -> None:
    refusal = judge(usage(used=139, free=2, pids=(1,)), index=0, need=3 * GIB, allow_busy=True)
    assert refusal is not None
    assert "2.0 GiB free, 3.0 GiB are needed" in refusal.message


def test_company_may_be_allowed() -> None:
    assert judge(usage(used=40, free=100, pids=(1,)), index=0, need=GIB, allow_busy=True) is None


def test_our_own_processes_are_no_strangers() -> None:
    assert judge(usage(pids=(77,)), index=0, need=GIB, mine=lambda pid: pid == 77) is None


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a CUDA driver")
def test_without_a_driver_the_gpu_is_missing() -> None:
    with pytest.raises(CudaError, match="no CUDA driver here") as caught:
        Driver()
    assert caught.value.reason is Reason.GPU_MISSING
    assert driver_version() is None
