"""GPU memory through the CUDA driver library alone: it is there wherever a GPU is visible, whatever toolkit or torch the image has.

Function names and numbers are those of cuda.h. The device's primary context is used, which the CUDA runtime inside the engines shares.
"""

from __future__ import annotations

import ctypes

from probes.kv.pattern import TILE, count_different
from probes.reasons import Reason
from probes.worker import ProbeFailure

_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
_DEVICE_UNAVAILABLE = 46
_SYNC_MEMOPS = 6


class Cuda:
    """The driver library, initialised. Raises ProbeFailure: `gpu_missing` without a GPU, `engine_incompatible` with an unusable driver."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
            self._lib.cuInit.argtypes = [ctypes.c_uint]
        except (OSError, AttributeError) as error:
            raise ProbeFailure(Reason.GPU_MISSING, f"no CUDA driver here: {error}") from None
        code = self._lib.cuInit(0)
        if code:
            reason = Reason.GPU_MISSING if code == _NO_DEVICE else Reason.ENGINE_INCOMPATIBLE
            raise ProbeFailure(reason, f"the CUDA driver does not start: {self.name_of(code)}")

    def __getattr__(self, name: str) -> object:
        return getattr(self._lib, name)

    def call(self, name: str, *args: object) -> None:
        """Call a driver function. Raises ProbeFailure with the driver's name of the error."""
        code = getattr(self._lib, name)(*args)
        if code:
            reason = Reason.GPU_BUSY if code in {_OUT_OF_MEMORY, _DEVICE_UNAVAILABLE} else Reason.ENGINE_ERROR
            raise ProbeFailure(reason, f"{name}: {self.name_of(code)}")

    def name_of(self, code: int) -> str:
        """`CUDA_ERROR_...` of an error code."""
        text = ctypes.c_char_p()
        if self._lib.cuGetErrorName(code, ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()

    def devices(self) -> int:
        """How many GPUs are visible."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value


class GpuRegion:
    """Memory on one GPU. Raises ProbeFailure: `gpu_missing`, `gpu_busy` when it has no room."""

    def __init__(self, size: int, device: int, cuda: Cuda | None = None) -> None:
        self._cuda = cuda or Cuda()
        visible = self._cuda.devices()
        if device >= visible:
            raise ProbeFailure(Reason.GPU_MISSING, f"GPU {device} is asked for and {visible} are visible")
        handle = ctypes.c_int()
        self._cuda.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        name = ctypes.create_string_buffer(128)
        self._cuda.call("cuDeviceGetName", name, ctypes.c_int(len(name)), handle)
        self._context = ctypes.c_void_p()
        self._cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.bind_thread()
        pointer = ctypes.c_uint64()
        self._cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        # Without it a copy may still be under way on the device when the call returns, and a NIC would read what was there before.
        self._cuda.call("cuPointerSetAttribute", ctypes.byref(ctypes.c_int(1)), ctypes.c_int(_SYNC_MEMOPS), pointer)
        self.address = int(pointer.value)
        self.size = size
        self.device = device
        self.gpus = [name.value.decode(errors="replace")]
        self._bounce = ctypes.create_string_buffer(TILE)

    def put(self, offset: int, source: int, length: int) -> None:
        """Copy from the host to the GPU."""
        self._inside(offset, length)
        self._cuda.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address + offset), ctypes.c_void_p(source), ctypes.c_size_t(length))

    def different(self, offset: int, source: int, length: int) -> int:
        """Copy back to the host and count differing bytes there. At most one tile at a time."""
        self._inside(offset, length)
        if length > TILE:
            raise ValueError(f"{length} bytes are more than one tile")
        self._cuda.call("cuMemcpyDtoH_v2", self._bounce, ctypes.c_uint64(self.address + offset), ctypes.c_size_t(length))
        return count_different(ctypes.string_at(self._bounce, length), ctypes.string_at(source, length))

    def settle(self) -> None:
        """Return when every copy has reached the GPU's memory."""
        self._cuda.call("cuCtxSynchronize")

    def bind_thread(self) -> None:
        """Make the GPU's context the calling thread's own."""
        self._cuda.call("cuCtxSetCurrent", self._context)

    def _inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(f"{length} bytes at {offset} are outside of a region of {self.size}")
