"""From merged rows to the reason of a run: right answer first, then plausible, then the shape of the curve."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from probes.nccl import rules
from probes.nccl.factors import bandwidths, ceiling
from probes.nccl.meetings import RAIL, ranks_of
from probes.nccl.merge import Merged, statistics
from probes.nccl.params import NcclParams
from probes.reasons import SEVERITY, Reason, outcome_of
from probes.units import show_size

FEWEST_LINKS = 3
"""Links of one kind from which a median tells who is weak."""


def judge(rows: Sequence[Merged], params: NcclParams, *, ranks: int, nodes: int) -> tuple[Reason, str]:
    """The reason and what it is about. Thresholds against floors and baselines are not the probe's: it knows no peers."""
    if not rows:
        return Reason.NO_ROWS, "not a single size was measured"
    findings: list[tuple[Reason, str]] = []
    for row in rows:
        if row.wrong:
            who = ", ".join(map(str, row.ranks_wrong[:8]))
            findings.append((Reason.WRONG_CONTENT, f"{row.operation}: {row.wrong} wrong elements at {show_size(row.bytes)} on rank {who}"))
    groups: dict[tuple[str, str], list[Merged]] = {}
    for row in rows:
        groups.setdefault((row.operation, row.variant), []).append(row)
    for (operation, variant), group in groups.items():
        ordered = sorted(group, key=lambda row: row.bytes)
        series = [(row.bytes, bandwidths(operation, ranks, row.bytes, row.mean)[1]) for row in ordered]
        what = f"{operation}{' ' + variant if variant else ''}: "
        if text := rules.above_ceiling(series, _ceiling(operation, params, ranks, nodes)):
            findings.append((Reason.IMPLAUSIBLE, what + text))
        if text := rules.falls_with_size(series, params.fall_ratio):
            findings.append((Reason.FALLS_WITH_SIZE, what + text))
        tails = [(row.bytes, stat["min"], stat["p99"]) for row in ordered for stat in (statistics(row.times),)]
        if text := rules.long_tail(tails, params.tail_ratio):
            findings.append((Reason.TAIL_LATENCY, what + text))
    findings += [(Reason.NIC_IMBALANCE, text) for text in _weak_links(rows, params.link_ratio, per_node=max(ranks // nodes, 1))]
    # min() keeps the first of equals: the order above is the order of importance.
    return min(findings, key=lambda finding: SEVERITY.index(outcome_of(finding[0])), default=(Reason.OK, ""))


def _weak_links(rows: Sequence[Merged], ratio: float, *, per_node: int) -> list[str]:
    """Rails and pairs that carry far less than the median of their kind at the largest size: inside a node, or between nodes."""
    kinds: dict[str, list[Merged]] = {}
    for row in rows:
        pair = ranks_of(row.variant)
        if pair is not None:
            kinds.setdefault("inside" if pair[0] // per_node == pair[1] // per_node else "between", []).append(row)
        elif row.variant.startswith(RAIL):
            kinds.setdefault(RAIL, []).append(row)
    found: list[str] = []
    for kind in kinds.values():
        size = max(row.bytes for row in kind)
        rates = {row.variant: row.bytes / row.mean for row in kind if row.bytes == size}
        if len(rates) < FEWEST_LINKS:
            continue
        usual = median(rates.values())
        weak = sorted((rate, name) for name, rate in rates.items() if rate < ratio * usual)
        found += [f"sendrecv {name}: {rate / 1e9:.2f} GB/s at {show_size(size)}, the median of {len(rates)} links is {usual / 1e9:.2f}"
                  for rate, name in weak]
    return found


def _ceiling(operation: str, params: NcclParams, ranks: int, nodes: int) -> float | None:
    for name, value in params.ceilings.items():
        if name == operation:
            return value
    return ceiling(operation, ranks=ranks, nodes=nodes, node_rate=params.node_line_rate, gpu_rate=params.gpu_line_rate,
                   local_rate=params.local_line_rate)
