"""The content of a block, known to both ranks without being sent: a pseudo-random tile repeated through the memory.

The tile's length is a prime above 1 MiB, so that no two blocks, stripes or pages of a transfer hold the same bytes: a piece that lands
at the wrong place is as wrong as one that never came. The poison is the complement of the tile: of a block that was never written, every
byte counts as wrong.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator

TILE = 1_048_583
_COMPLEMENT = bytes(255 - value for value in range(256))


class Pattern:
    """The bytes of one transfer. Equal keys give equal bytes on every Python version (SHAKE-128)."""

    def __init__(self, *key: object) -> None:
        data = hashlib.shake_128("\0".join(map(str, key)).encode()).digest(TILE)
        self._data = ctypes.create_string_buffer(data, TILE)
        self._poison = ctypes.create_string_buffer(data.translate(_COMPLEMENT), TILE)

    def pieces(self, origin: int, length: int, *, poison: bool = False) -> Iterator[tuple[int, int, int]]:
        """The content of `length` bytes from position `origin` on, as (offset from origin, address in this process, length)."""
        base = ctypes.addressof(self._poison if poison else self._data)
        done = 0
        while done < length:
            inside = (origin + done) % TILE
            run = min(TILE - inside, length - done)
            yield done, base + inside, run
            done += run


def count_different(left: bytes, right: bytes) -> int:
    """In how many places two texts of equal length differ."""
    if left == right:
        return 0
    mixed = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
    return len(left) - mixed.to_bytes(len(left), "little").count(0)
