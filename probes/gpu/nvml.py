"""NVML through ctypes on libnvidia-ml.so.1: who uses a GPU, and how much of its memory. Numbers are those of nvml.h."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_INSUFFICIENT_SIZE = 7
_MAX_PROCESSES = 1024
_V2_MEMORY = 2


class NvmlError(Exception):
    """NVML is not there, or a call failed: then nothing is known about the GPU's users."""


class _Memory(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong))


class _OldMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint))


@dataclass(frozen=True)
class Usage:
    """State of one GPU. Memory in bytes; `pids` are as NVML sees them, host numbers inside a container."""

    name: str
    uuid: str
    bus_id: str
    total: int
    free: int
    used: int
    pids: tuple[int, ...]


class Nvml:
    """The library, initialised. Use as a context manager. Raises NvmlError when it is not there."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NvmlError(f"no NVML here: {error}") from None
        self._call("nvmlInit_v2")

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.nvmlShutdown()

    def driver_version(self) -> str:
        """The kernel driver's version, such as `580.159.04`."""
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return text.value.decode(errors="replace")

    def usage(self, bus_id: str) -> Usage:
        """The state of the GPU with this PCI bus id. Raises NvmlError."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p(bus_id.encode()), ctypes.byref(handle))
        name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
        self._call("nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
        self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(len(uuid)))
        total, free, used = self._memory(handle)
        texts = [text.value.decode(errors="replace") for text in (name, uuid)]
        return Usage(texts[0], texts[1], bus_id, total, free, used, self._pids(handle))

    def _memory(self, handle: ctypes.c_void_p) -> tuple[int, int, int]:
        memory = _Memory(version=ctypes.sizeof(_Memory) | _V2_MEMORY << 24)
        # Only the second version tells what the driver keeps for itself from what somebody uses.
        if hasattr(self._lib, "nvmlDeviceGetMemoryInfo_v2") and self._lib.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) == 0:
            return memory.total, memory.free, memory.used
        old = _OldMemory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old))
        return old.total, old.free, old.used

    def _pids(self, handle: ctypes.c_void_p) -> tuple[int, ...]:
        count = ctypes.c_uint(_MAX_PROCESSES)
        processes = (_Process * _MAX_PROCESSES)()
        code = self._lib.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
        if code == _INSUFFICIENT_SIZE:
            return tuple(process.pid for process in processes)
        if code:
            raise NvmlError(f"nvmlDeviceGetComputeRunningProcesses_v3: {self._text(code)}")
        return tuple(process.pid for process in processes[: count.value] if process.pid != os.getpid())

    def _call(self, name: str, *arguments: object) -> None:
        try:
            code = getattr(self._lib, name)(*arguments)
        except AttributeError:
            raise NvmlError(f"this NVML has no {name}") from None
        if code:
            raise NvmlError(f"{name}: {self._text(code)}")

    def _text(self, code: int) -> str:
        self._lib.nvmlErrorString.restype = ctypes.c_char_p
        text: bytes | None = self._lib.nvmlErrorString(ctypes.c_int(code))
        return text.decode(errors="replace") if text else f"error {code}"
