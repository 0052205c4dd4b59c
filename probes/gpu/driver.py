"""The CUDA driver API, as far as the probes need it, through ctypes on libcuda.so.1.

The driver comes with the node and is mounted into every GPU container, its C interface does not change, and it needs no toolkit, no
torch and no compiler. Function names and numbers are those of cuda.h. Device memory comes from cuMemAlloc, never from managed memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from probes.reasons import Reason

OUT_OF_MEMORY = 2
NOT_READY = 600
_NO_DEVICE = 100
_BUSY_CODES = frozenset({OUT_OF_MEMORY, 46})
_LIBRARY = "libcuda.so.1"
_NON_BLOCKING = 1

Argument = ctypes.c_uint32 | ctypes.c_uint64


class CudaError(Exception):
    """A call of the driver failed. `reason` is what that means for a run."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Driver:
    """The driver library, initialised. Raises CudaError: `gpu_missing` without driver or GPU, else `engine_incompatible`."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL(_LIBRARY)
            init = self._lib.cuInit
        except (OSError, AttributeError) as error:
            raise CudaError(Reason.GPU_MISSING, f"no CUDA driver here ({error}): give the pod a GPU and the NVIDIA runtime") from None
        code = init(ctypes.c_uint(0))
        if code:
            reason = Reason.GPU_MISSING if code == _NO_DEVICE else Reason.ENGINE_INCOMPATIBLE
            raise CudaError(reason, f"the CUDA driver does not start: {self.name_of(code)}")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises CudaError with the driver's name of the error."""
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise CudaError(Reason.GPU_BUSY if code in _BUSY_CODES else Reason.ENGINE_ERROR, f"{name}: {self.name_of(code)}")

    def name_of(self, code: int) -> str:
        """`CUDA_ERROR_...` of an error code."""
        text = ctypes.c_char_p()
        if self._lib.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()

    def count(self) -> int:
        """How many GPUs are visible."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def version(self) -> str:
        """The CUDA version the driver supports, such as `13.0`."""
        code = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(code))
        return f"{code.value // 1000}.{code.value % 1000 // 10}"

    def handle(self, index: int) -> ctypes.c_int:
        """The handle of a visible GPU. Raises CudaError (`gpu_missing`) for an index that is not there."""
        visible = self.count()
        if not 0 <= index < visible:
            raise CudaError(Reason.GPU_MISSING, f"GPU {index} is asked for, {visible} {'is' if visible == 1 else 'are'} visible")
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(index))
        return handle

    def bus_id(self, index: int) -> str:
        """The PCI bus id of a visible GPU, such as `0000:53:00.0`: what NVML and the kernel call it."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, ctypes.c_int(len(text)), self.handle(index))
        return text.value.decode()

    def query_stream(self, stream: int) -> bool:
        """Whether everything put on a stream is done. Raises CudaError when the work failed."""
        code: int = self._lib.cuStreamQuery(ctypes.c_void_p(stream))
        if code not in {0, NOT_READY}:
            raise CudaError(Reason.ENGINE_ERROR, f"the GPU reports {self.name_of(code)}")
        return code == 0


class Gpu:
    """One GPU with its primary context made current for this thread: the context that NCCL's CUDA runtime shares."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        self._handle = driver.handle(index)
        self._context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._handle)
        driver.call("cuCtxSetCurrent", self._context)
        stream = ctypes.c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_NON_BLOCKING))
        self.stream = int(stream.value or 0)

    def name(self) -> str:
        """The GPU's product name."""
        text = ctypes.create_string_buffer(128)
        self.driver.call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._handle)
        return text.value.decode(errors="replace")

    def allocate(self, size: int) -> int:
        """Device memory, as an address. Raises CudaError (`gpu_busy`) when there is no room."""
        pointer = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return int(pointer.value)

    def free(self, address: int) -> None:
        """Give memory back."""
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(address))

    def fill_bytes(self, address: int, byte: int, size: int) -> None:
        """Set `size` bytes on the stream."""
        stream = ctypes.c_void_p(self.stream)
        self.driver.call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size), stream)

    def read_u64(self, address: int) -> int:
        """Eight bytes of device memory as an unsigned number. Waits for the copy, not for the stream."""
        value = ctypes.c_uint64()
        self.driver.call("cuMemcpyDtoH_v2", ctypes.byref(value), ctypes.c_uint64(address), ctypes.c_size_t(8))
        return int(value.value)

    def idle(self) -> bool:
        """Whether the stream has nothing left to do."""
        return self.driver.query_stream(self.stream)


class Events:
    """A row of timing events on one GPU. Their resolution is about half a microsecond."""

    def __init__(self, gpu: Gpu, count: int) -> None:
        self._gpu = gpu
        self._events: list[ctypes.c_void_p] = []
        self._stream = ctypes.c_void_p(gpu.stream)
        self._record = gpu.driver._lib.cuEventRecord  # noqa: SLF001 - one call less where every microsecond counts
        for _ in range(count):
            event = ctypes.c_void_p()
            gpu.driver.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
            self._events.append(event)

    def record(self, index: int) -> None:
        """Put event `index` on the stream."""
        if self._record(self._events[index], self._stream):
            raise CudaError(Reason.ENGINE_ERROR, "an event could not be recorded")

    def seconds(self, first: int, last: int) -> float:
        """Time between two events that have both happened."""
        milliseconds = ctypes.c_float()
        function = "cuEventElapsedTime"
        self._gpu.driver.call(function, ctypes.byref(milliseconds), self._events[first], self._events[last])
        return milliseconds.value * 1e-3

    def close(self) -> None:
        """Destroy the events."""
        for event in self._events:
            self._gpu.driver.call("cuEventDestroy_v2", event)
        self._events.clear()


class Module:
    """Kernels from a PTX file, compiled by the driver for the GPU at hand."""

    def __init__(self, gpu: Gpu, ptx: Path) -> None:
        self._gpu = gpu
        self._module = ctypes.c_void_p()
        gpu.driver.call("cuModuleLoadData", ctypes.byref(self._module), ctypes.c_char_p(ptx.read_bytes() + b"\0"))

    def function(self, name: str) -> ctypes.c_void_p:
        """A kernel by its name."""
        function = ctypes.c_void_p()
        self._gpu.driver.call("cuModuleGetFunction", ctypes.byref(function), self._module, ctypes.c_char_p(name.encode()))
        return function

    def launch(self, function: ctypes.c_void_p, arguments: Sequence[Argument], blocks: int, threads: int = 256) -> None:
        """Put a kernel on the GPU's stream. `arguments` are ctypes values in the order of the kernel's parameters."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self._gpu.driver.call("cuLaunchKernel", function, *(ctypes.c_uint(n) for n in (blocks, 1, 1, threads, 1, 1, 0)),
                              ctypes.c_void_p(self._gpu.stream), pointers, None)
