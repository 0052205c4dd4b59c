"""The published arithmetic of collectives: bandwidth factors, derived ceilings and the bytes that must leave a worker.

Formulas: nccl-tests doc/PERFORMANCE.md and its `*GetBw` functions. Rates are bytes per second, sizes bytes, times seconds. `ranks` is the
number of GPUs in the communicator, `workers` the number of nodes (or of workers, where several share a node).
"""

from __future__ import annotations

import math

# What an upper bound may be passed by before a figure counts as impossible: clocks and rounding, not physics.
CEILING_MARGIN = 1.05

# Every test of nccl-tests, ours are a part of them.
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_SHARE = ("all_gather", "reduce_scatter", "gather", "scatter", "alltoall", "alltoallv", "hypercube")
_WHOLE = ("sendrecv", "broadcast", "reduce")


def bus_factor(operation: str, ranks: int) -> float | None:
    """busbw / algbw. None for an operation nobody published a factor for. 0 for a single rank of a collective: nothing moves."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in _SHARE:
        return (ranks - 1) / ranks
    if operation in _WHOLE:
        return 1.0
    return None


def bandwidths(operation: str, ranks: int, size: int, seconds: float) -> tuple[float, float]:
    """(algbw, busbw) of one operation over `size` bytes, as nccl-tests defines its size column. Raises ValueError on a time of 0."""
    if not seconds > 0:
        raise ValueError(f"{operation}: a time of {seconds} s")
    factor = bus_factor(operation, ranks)
    if factor is None:
        raise ValueError(f"no bandwidth factor is published for {operation}")
    return size / seconds, factor * size / seconds


def ceiling(operation: str, *, ranks: int, nodes: int, node_rate: float | None, gpu_rate: float | None, local_rate: float) -> float | None:
    """The busbw no run of this shape can pass, from wire rates alone (one way). None when a needed rate is not known.

    Between nodes: all_reduce by tree or hierarchy B x N/(N-1) x (n-1)/n, as do all_gather and reduce_scatter; alltoall
    B(n-1)/(g(n-g)); a sendrecv ring is bound by the NICs of one GPU. Inside a node the bound is the GPU's own link, twice for all_reduce
    that the switch reduces (NVLS).
    """
    if ranks < 2 or nodes < 1 or ranks % nodes:
        return None
    inside = local_rate * (2 * (ranks - 1) / ranks if operation == "all_reduce" else 1.0)
    if nodes == 1:
        return inside
    per_node = ranks // nodes
    rate = gpu_rate * per_node if node_rate is None and gpu_rate is not None else node_rate
    if gpu_rate is not None and rate is not None:
        rate = min(rate, gpu_rate * per_node)
    if operation == "sendrecv":
        return gpu_rate if gpu_rate is not None else node_rate
    if rate is None:
        return None
    if operation == "alltoall":
        return rate * (ranks - 1) / (per_node * (ranks - per_node))
    return min(rate * nodes / (nodes - 1) * (ranks - 1) / ranks, inside if per_node > 1 else math.inf)


def leaving_bytes(operation: str, *, size: int, gpus: int, workers: int, railed: bool = False) -> int:
    """The least payload that must leave one worker for one operation, whatever algorithm the library picks.

    `gpus` are those of one worker. all_reduce: 2(N-1)/N x S (tree); all_gather and reduce_scatter: S(N-1)/N, the parts of the others
    that a node must get or give; alltoall: g x S x (n-g)/n; sendrecv ring of neighbouring ranks: S, the one GPU at the boundary, and
    g x S when every GPU has its own partner (`railed`).
    """
    if workers < 2:
        return 0
    if operation == "all_reduce":
        return size * 2 * (workers - 1) // workers
    if operation in {"all_gather", "reduce_scatter"}:
        return size * (workers - 1) // workers
    if operation == "alltoall":
        ranks = gpus * workers
        return gpus * size * (ranks - gpus) // ranks
    if operation == "sendrecv":
        return gpus * size if railed else size
    raise ValueError(f"the bytes of {operation} are not known")
