"""From merged rows to the reason of a run: right answer first, then plausible, then the shape of the curve."""

from __future__ import annotations

from collections.abc import Sequence

from probes.nccl import rules
from probes.nccl.factors import bandwidths, ceiling
from probes.nccl.merge import Merged, statistics
from probes.nccl.params import NcclParams
from probes.reasons import SEVERITY, Reason, outcome_of
from probes.units import show_size


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
    # min() keeps the first of equals: the order above is the order of importance.
    return min(findings, key=lambda finding: SEVERITY.index(outcome_of(finding[0])), default=(Reason.OK, ""))


def _ceiling(operation: str, params: NcclParams, ranks: int, nodes: int) -> float | None:
    for name, value in params.ceilings.items():
        if name == operation:
            return value
    return ceiling(operation, ranks=ranks, nodes=nodes, node_rate=params.node_line_rate, gpu_rate=params.gpu_line_rate,
                   local_rate=params.local_line_rate)
