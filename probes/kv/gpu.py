"""GPU memory that an engine moves: allocated, filled and read through the CUDA driver, in the context that the engines share."""

from __future__ import annotations

import ctypes

from probes.gpu.driver import Driver, Gpu
from probes.kv.memory import check_inside
from probes.kv.pattern import TILE, count_different

_SYNC_MEMOPS = 6


class GpuRegion:
    """Memory on one GPU. Raises CudaError: `gpu_missing`, or `gpu_busy` when it has no room."""

    def __init__(self, size: int, device: int) -> None:
        self._driver = Driver()
        gpu = Gpu(self._driver, device)
        self._context = ctypes.c_void_p()
        self._driver.call("cuCtxGetCurrent", ctypes.byref(self._context))
        self.address = gpu.allocate(size)
        self.size = size
        self.device = device
        self.gpus = [gpu.name()]
        self._bounce = ctypes.create_string_buffer(TILE)
        # Without it a copy may still be under way on the device when the call returns, and a NIC would read what was there before.
        on = ctypes.c_uint(1)
        self._driver.call("cuPointerSetAttribute", ctypes.byref(on), ctypes.c_int(_SYNC_MEMOPS), ctypes.c_uint64(self.address))

    def put(self, offset: int, source: int, length: int) -> None:
        """Copy from the host to the GPU."""
        check_inside(self.size, offset, length)
        self._driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address + offset), ctypes.c_void_p(source), ctypes.c_size_t(length))

    def different(self, offset: int, source: int, length: int) -> int:
        """Copy back to the host, one tile at a time, and count differing bytes there."""
        check_inside(self.size, offset, length)
        wrong = 0
        for done in range(0, length, TILE):
            run = min(TILE, length - done)
            self._driver.call("cuMemcpyDtoH_v2", self._bounce, ctypes.c_uint64(self.address + offset + done), ctypes.c_size_t(run))
            wrong += count_different(ctypes.string_at(self._bounce, run), ctypes.string_at(source + done, run))
        return wrong

    def settle(self) -> None:
        """Return when every copy has reached the GPU's memory."""
        self._driver.call("cuCtxSynchronize")

    def bind_thread(self) -> None:
        """Make the GPU's context the calling thread's own."""
        self._driver.call("cuCtxSetCurrent", self._context)
