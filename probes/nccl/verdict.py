"""What the output of one nccl-tests run proves, from the output alone. Zero usable rows are never a pass, whatever the exit status."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from probes.nccl import rules
from probes.nccl.factors import bus_factor, ceiling
from probes.nccl.run import ParsedRun
from probes.nccl.table import PLACEMENTS, Half, Placement, Table
from probes.reasons import SEVERITY, Reason, outcome_of

# busbw is printed with two digits after the point: half a unit of the last one, both in bytes per second.
_ROUNDING = 0.0051e9
_TOLERANCE = 0.005
# From here on algbw has so few digits that busbw cannot be checked against it; such figures are implausible anyway.
_COARSE = 1e14


@dataclass(frozen=True)
class Expectations:
    """What the caller knows beside the output. Rates are bytes per second, one way; without them no ceiling is applied between nodes."""

    nodes: int = 1
    node_rate: float | None = None
    gpu_rate: float | None = None
    local_rate: float = 900e9
    fall_ratio: float = rules.FALL_RATIO
    tail_ratio: float = rules.TAIL_RATIO


def settle(run: ParsedRun, expect: Expectations | None = None) -> ParsedRun:
    """Drop figures that contradict each other, then set `reason` and `message`. Returns `run`."""
    expect = expect or Expectations()
    for table in run.tables:
        _drop_misfits(table)
        _name_unreal(table)
        if table.finished and len(table.rows) < len(table.expected_sizes):
            table.problems.append(f"{len(table.rows)} rows of {len(table.expected_sizes)} announced sizes")
    findings = [*_content(run), *_completeness(run), *_shape(run, expect)]
    # min() keeps the first of equals, so the order above is the order of importance.
    run.reason, run.message = min(findings, key=lambda finding: SEVERITY.index(outcome_of(finding[0])), default=(Reason.OK, ""))
    if run.reason is Reason.OK and any(table.checked is False for table in run.tables):
        run.message = "the values were not checked (-c 0)"
    return run


def _content(run: ParsedRun) -> list[tuple[Reason, str]]:
    wrong = sum(table.wrong() for table in run.tables)
    return [(Reason.WRONG_CONTENT, f"{wrong} wrong elements or out of bounds values")] if wrong else []


def _completeness(run: ParsedRun) -> list[tuple[Reason, str]]:
    found: list[tuple[Reason, str]] = []
    if run.usable_rows() == 0:
        return [(Reason.NO_ROWS, _why_no_rows(run))]
    found += [(Reason.DEADLINE if failure.kind == "timeout" else Reason.ENGINE_ERROR, failure.text) for failure in run.failures]
    if any(not table.finished for table in run.tables):
        found.append((Reason.ENGINE_ERROR, "the table has no footer: the run did not finish"))
    problems = [*run.problems, *(problem for table in run.tables for problem in table.problems)]
    unusable = sum(1 for table in run.tables for row in table.rows if row.size > 0 and not table.row_usable(row))
    if unusable:
        problems.append(f"{unusable} rows have no usable figures")
    if problems:
        found.append((Reason.RESULT_UNREADABLE, "; ".join(problems[:3])[:400]))
    return found


def _why_no_rows(run: ParsedRun) -> str:
    if any(failure.kind == "usage" for failure in run.failures):
        return "the program printed its usage and no rows: this version does not know an option, and exits with 0 all the same"
    if run.failures:
        return f"no usable row: {run.failures[0].text}"
    if any(table.ranks == 1 or table.rows for table in run.tables):
        return "no usable row: every process ran alone and moved nothing; a binary built without MPI does that under mpirun"
    if run.problems:
        return f"no usable row: {run.problems[0]}"
    return "the output has not a single row"


def _shape(run: ParsedRun, expect: Expectations) -> list[tuple[Reason, str]]:
    found: list[tuple[Reason, str]] = []
    for table in run.tables:
        what = f"{table.operation or 'operation unknown'}: "
        if text := rules.intra_node_only(table.hosts if not table.devices_cut else [], table.ranks, expect.nodes):
            found.append((Reason.NOT_EFA, text))
        for placement in PLACEMENTS:
            series = table.series(placement)
            if text := rules.above_ceiling(series, _ceiling(table, expect)):
                found.append((Reason.IMPLAUSIBLE, what + text))
            if text := rules.falls_with_size(series, expect.fall_ratio):
                found.append((Reason.FALLS_WITH_SIZE, what + text))
            if text := rules.long_tail(_tails(table, placement), expect.tail_ratio):
                found.append((Reason.TAIL_LATENCY, what + text))
    return found


def _ceiling(table: Table, expect: Expectations) -> float | None:
    # One process of several nodes lists its own devices only in JSON: then the ranks are right and the hosts are not all there.
    if table.operation is None or table.ranks is None:
        return None
    return ceiling(table.operation, ranks=table.ranks, nodes=max(len(table.hosts), expect.nodes, 1), node_rate=expect.node_rate,
                   gpu_rate=expect.gpu_rate, local_rate=expect.local_rate)


def _tails(table: Table, placement: Placement) -> list[tuple[int, float | None, float | None]]:
    halves = [(row.size, row.half(placement)) for row in table.rows if table.half_usable(row, placement)]
    return [(size, half.fastest, half.p99) for size, half in halves if half is not None]


def _drop_misfits(table: Table) -> None:
    """A busbw that is not algbw x factor was misread, whatever the cell says. Without operation and ranks the rows vouch for each other."""
    factor = bus_factor(table.operation, table.ranks) if table.operation and table.ranks and not table.devices_cut else None
    if factor is None:
        shares = [half.busbw / half.algbw for row in table.rows for half in (row.out_of_place, row.in_place)
                  if half is not None and half.finite and half.algbw > 1e9]
        factor = statistics.median(shares) if len(shares) > 2 else None
    if factor is None or factor == 0:
        return
    for index, row in enumerate(table.rows):
        halves = {placement: _fitting(row.half(placement), factor) for placement in PLACEMENTS}
        if any(halves[placement] is not row.half(placement) for placement in PLACEMENTS):
            table.problems.append(f"a row could not be read: size {row.size}: busbw is not {factor:.3f} x algbw")
            table.rows[index] = replace(row, out_of_place=halves["out_of_place"], in_place=halves["in_place"])


def _name_unreal(table: Table) -> None:
    """A figure that is no number (nan, inf, a time of 0) in a run that ended is a fault, not a gap."""
    for row in table.rows:
        for placement in PLACEMENTS:
            half = row.half(placement)
            if half is not None and row.size > 0 and not half.finite:
                table.problems.append(f"size {row.size}: {placement} has figures that are no numbers")


def _fitting(half: Half | None, factor: float) -> Half | None:
    if half is None or not half.finite or half.algbw > _COARSE:
        return half
    return half if abs(half.busbw - factor * half.algbw) <= _TOLERANCE * half.busbw + _ROUNDING * (1 + factor) else None

