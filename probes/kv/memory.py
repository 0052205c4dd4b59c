"""The memory that an engine moves: one region a rank, in the host or on a GPU, filled and checked by content."""

from __future__ import annotations

import ctypes
import mmap
from typing import Protocol

from probes.kv.pattern import Pattern, count_different

_LIBC = ctypes.CDLL(None)
_LIBC.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_LIBC.memcmp.restype = ctypes.c_int


class Region(Protocol):
    """A piece of memory that can be registered with an engine."""

    address: int
    size: int
    device: int
    """CUDA device, 0 for the host's memory."""
    gpus: list[str]
    """Names of the GPUs it lives on."""

    def put(self, offset: int, source: int, length: int) -> None:
        """Copy `length` bytes from host address `source` to `offset`."""
        ...

    def different(self, offset: int, source: int, length: int) -> int:
        """In how many bytes the region at `offset` differs from the host memory at `source`."""
        ...

    def settle(self) -> None:
        """Return when everything put is where a device would read it."""
        ...

    def bind_thread(self) -> None:
        """Make the memory usable in the calling thread."""
        ...


class HostRegion:
    """Anonymous page-aligned host memory. Raises MemoryError when there is not enough."""

    def __init__(self, size: int) -> None:
        try:
            self._map = mmap.mmap(-1, size)
        except OSError as error:
            raise MemoryError(f"{size} bytes of host memory: {error.strerror}") from None
        self._view = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._view)
        self.size = size
        self.device = 0
        self.gpus: list[str] = []

    def put(self, offset: int, source: int, length: int) -> None:
        """Copy in."""
        check_inside(self.size, offset, length)
        ctypes.memmove(self.address + offset, source, length)

    def different(self, offset: int, source: int, length: int) -> int:
        """Count differing bytes; equal memory costs one memcmp."""
        check_inside(self.size, offset, length)
        if _LIBC.memcmp(self.address + offset, source, length) == 0:
            return 0
        return count_different(ctypes.string_at(self.address + offset, length), ctypes.string_at(source, length))

    def settle(self) -> None:
        """Host memory is where it is."""

    def bind_thread(self) -> None:
        """Host memory is usable everywhere."""


def check_inside(size: int, offset: int, length: int) -> None:
    """Raise ValueError unless `length` bytes at `offset` are inside a region of `size`: beyond it lies somebody else's memory."""
    if offset < 0 or length < 0 or offset + length > size:
        raise ValueError(f"{length} bytes at {offset} are outside of a region of {size}")


def fill(region: Region, offset: int, length: int, pattern: Pattern, origin: int, *, poison: bool = False) -> None:
    """Write the pattern's content from position `origin` on into the region."""
    for start, source, run in pattern.pieces(origin, length, poison=poison):
        region.put(offset + start, source, run)


def wrong_bytes(region: Region, offset: int, length: int, pattern: Pattern, origin: int) -> int:
    """How many bytes of the region are not what the pattern has from position `origin` on."""
    return sum(region.different(offset + start, source, run) for start, source, run in pattern.pieces(origin, length))
