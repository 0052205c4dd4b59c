"""What the EFA devices of a run could carry at their line rate, as the figure that the probe reports.

With `m` nodes, `n` ranks, `k = n / m` of them on a node, and `L` the bytes per second of one node's devices in one direction:

    KV (goodput), sendrecv          L               one rank of each node crosses to the next one
    all_reduce (busbw)              L m (n-1) / ((m-1) n)    each node sends and receives 2 S (m-1) / m bytes at least
    all_gather, reduce_scatter      L m (n-1) / ((m-1) n)    each node receives (or sends) S (m-1) / m bytes, busbw counts S (n-1) / n
    alltoall (busbw)                L/k (n-1) / (n-k)        (n-k) / n of each rank's bytes leave its node
    dispatch, combine (goodput)     L/k n / (n-k)            the same, over all bytes of a rank

Busbw as nccl-tests defines it. All-reduce over two nodes may exceed the line rate: 480 GB/s of 750 are published for 16 ranks of two p5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.efa import instances
from probes.result import Result

ALL_REDUCE = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
EXPERTS = frozenset({"dispatch", "combine"})


def ceiling(operation: str, results: Sequence[Result], instance_types: Mapping[str, str | None]) -> float | None:
    """Bytes per second, None where an instance type is not listed, the figure has no formula here, or nothing crosses nodes."""
    nodes = {result.node for result in results}
    if len(nodes) < 2:
        return None
    lines = [_line(result, instance_types.get(result.node)) for result in results]
    known = [line for line in lines if line is not None]
    if len(known) < len(lines):
        return None
    line = min(known)
    shape = results[0].shape
    ranks = shape.get("ranks", len(results))
    m, n = len(nodes), int(ranks) if isinstance(ranks, (int, float)) and ranks >= len(nodes) else len(nodes)
    k = n / m
    name = operation.partition(":")[0]
    if name in ALL_REDUCE:
        return line * m * (n - 1) / ((m - 1) * n)
    if name == "alltoall":
        return line / k * (n - 1) / (n - k)
    if name in EXPERTS:
        return line / k * n / (n - k)
    return line


def _line(result: Result, instance_type: str | None) -> float | None:
    """Bytes per second of the devices that one worker had, or of all of its node where it did not say."""
    row = instances.lookup(instance_type)
    if row is None:
        return None
    evidence = result.evidence
    had = (evidence.nics_allocated or evidence.nics_seen) if evidence is not None else None
    return min(had or row.efa, row.efa) * row.gbit * 1e9 / 8
