"""The test data of a collective: what every rank sends, and what every rank must hold afterwards.

An element is a whole number derived from seed, rank and its index by a mixing function, so that a swapped rank, a shifted block, a lost
chunk and stale data of an earlier check all show. Numbers are small enough that sums are exact in any order: below 2^24 in float, up to
256 in bfloat16 (8 significant bits). The GPU does the same arithmetic in `kernels.cu`.
"""

from __future__ import annotations

from dataclasses import dataclass

from probes.nccl.params import Dtype, Operation

ITEM_SIZE: dict[str, int] = {"float": 4, "bf16": 2}
_LARGEST_SUM: dict[str, int] = {"float": 1 << 24, "bf16": 256}
_LARGEST_MASK = 255
_U32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Part:
    """A piece of a receive buffer, in elements: `count` at `at` are the sum of the elements from `index` of `ranks` ranks."""

    at: int
    count: int
    first_rank: int
    ranks: int
    index: int


@dataclass(frozen=True)
class Shape:
    """One operation over one size on `ranks` ranks, in elements: what each rank sends and receives, and the argument NCCL wants."""

    operation: Operation
    ranks: int
    size: int
    dtype: Dtype
    send: int
    receive: int
    count: int

    @property
    def bytes(self) -> int:
        """The size nccl-tests prints for it: the argument rounded down to what the operation can split."""
        total = self.receive if self.operation == "all_gather" else self.send
        return total * ITEM_SIZE[self.dtype]


def shape(operation: Operation, ranks: int, size: int, dtype: Dtype) -> Shape:
    """How `size` bytes, as nccl-tests counts them, spread over `ranks`. Raises ValueError when nothing is left for each rank."""
    item = ITEM_SIZE[dtype]
    elements = size // item
    # nccl-tests rounds the share of a rank down to 16 bytes where a buffer is split.
    share = elements // ranks // (16 // item) * (16 // item)
    count = share if operation in {"alltoall", "all_gather", "reduce_scatter"} else elements
    if count == 0:
        raise ValueError(f"{operation}: {size} bytes cannot be split over {ranks} ranks")
    whole = count * ranks
    send = whole if operation in {"alltoall", "reduce_scatter"} else count
    receive = whole if operation in {"alltoall", "all_gather"} else count
    return Shape(operation, ranks, size, dtype, send, receive, count)


def expected(what: Shape, rank: int, source: int | None = None) -> list[Part]:
    """What `rank` must hold after the operation. `source` is the rank a sendrecv comes from."""
    if what.operation == "all_reduce":
        return [Part(0, what.receive, 0, what.ranks, 0)]
    if what.operation == "reduce_scatter":
        return [Part(0, what.count, 0, what.ranks, rank * what.count)]
    if what.operation == "all_gather":
        return [Part(peer * what.count, what.count, peer, 1, 0) for peer in range(what.ranks)]
    if what.operation == "alltoall":
        return [Part(peer * what.count, what.count, peer, 1, rank * what.count) for peer in range(what.ranks)]
    if source is None:
        raise ValueError("a sendrecv is checked against the rank it comes from")
    return [Part(0, what.count, source, 1, 0)]


def mask_and_stride(dtype: Dtype, summed: int) -> tuple[int, int]:
    """(largest element, every how many ranks one contributes to an element) so that the sum over `summed` ranks is exact."""
    limit = _LARGEST_SUM[dtype]
    stride = -(-summed // limit)
    mask = _LARGEST_MASK
    while mask > 1 and mask * -(-summed // stride) > limit:
        mask >>= 1
    return mask, stride


def value(seed: int, rank: int, index: int, mask: int, stride: int) -> int:
    """One element, as `value` in kernels.cu computes it."""
    if stride > 1 and (rank + index) % (1 << 32) % stride != 0:
        return 0
    mixed = _mix((index & _U32) ^ _mix((rank * 0x9E3779B9 + seed) & _U32))
    return _mix((mixed + (index >> 32)) & _U32) & mask


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & _U32
    x ^= x >> 15
    x = x * 0x846CA68B & _U32
    return x ^ x >> 16
