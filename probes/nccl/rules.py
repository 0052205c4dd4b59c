"""Rules on the shape of a measurement that need no baseline. Pure functions over (bytes, bytes per second) pairs, sizes rising.

Each returns None, or one sentence that says what is wrong with which size. Sources: bandwidth that falls with size is how a sick fabric
looked in Bottlerocket PR 304 (alltoall 1.02, 0.53, 0.37 GB/s at 1, 2 and 4 MiB); figures above the wire come from a wrong rank layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from probes.nccl.factors import CEILING_MARGIN
from probes.units import show_size

# Below this a collective is bound by latency and protocol switches, and dips are healthy.
FALL_FROM = 1 << 20
FALL_RATIO = 0.7
FALL_STEP = 4
TAIL_RATIO = 10.0

Series = Sequence[tuple[int, float]]


def falls_with_size(series: Series, ratio: float = FALL_RATIO) -> str | None:
    """Whether the bandwidth at some size is under `ratio` of that at a size up to 4 times smaller, from 1 MiB on."""
    for index, (size, rate) in enumerate(series):
        for smaller, before in series[:index]:
            if smaller >= FALL_FROM and smaller < size <= FALL_STEP * smaller and rate < ratio * before:
                return f"{rate / 1e9:.2f} GB/s at {show_size(size)} after {before / 1e9:.2f} GB/s at {show_size(smaller)}"
    return None


def long_tail(tails: Sequence[tuple[int, float | None, float | None]], ratio: float = TAIL_RATIO) -> str | None:
    """Whether p99 is more than `ratio` times the fastest iteration at some size. `tails` holds (bytes, fastest, p99) in seconds."""
    for size, fastest, p99 in tails:
        if fastest is not None and p99 is not None and fastest > 0 and p99 > ratio * fastest:
            return f"p99 {p99 * 1e6:.0f} us against {fastest * 1e6:.0f} us at best, at {show_size(size)}"
    return None


def above_ceiling(series: Series, ceiling: float | None) -> str | None:
    """Whether some bandwidth passes what the wires can carry."""
    if ceiling is None:
        return None
    for size, rate in series:
        if rate > ceiling * CEILING_MARGIN:
            return f"{rate / 1e9:.2f} GB/s at {show_size(size)}, the wires carry {ceiling / 1e9:.1f}"
    return None


def intra_node_only(hosts: Sequence[str], ranks: int | None, nodes_wanted: int) -> str | None:
    """Whether a run meant for several nodes had all its ranks on one. An empty list of hosts says nothing."""
    if nodes_wanted > 1 and hosts and len(set(hosts)) == 1 and (ranks or 2) > 1:
        return f"all {ranks or len(hosts)} ranks ran on {hosts[0]}, {nodes_wanted} nodes were meant"
    return None
