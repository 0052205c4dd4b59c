"""The cells of one row of nccl-tests: numbers in all their forms, and which cell is which in every layout since 2018.

| layout | cells after the type |
|---|---|
| up to 2.12 | redop and root as far as the test has them, then time algbw busbw error, twice; error is a float delta, not a count |
| 2.13 and later | redop root, then time algbw busbw wrong, twice; redop `none` and root -1 where unused |
| with `-I 1` (2.19.2) | i_min i_max i_p99 i_cv% after each half |
| with `-S 1` (2.17.3) | date and time of day at the end |

Cells are told apart by the header where there is one, and checked against each other: size / time is algbw.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from probes.nccl.table import Half, Row

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|-?nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_TYPE = re.compile(r"[a-z][a-z0-9_]{1,19}")
_REDOP = re.compile(r"sum|prod|min|max|avg|mulsum|none|premulsum")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_WORD = re.compile(rf"N/A|{_REDOP.pattern}|{_DATE.pattern}|{_CLOCK.pattern}")

HALF = 4
HALF_WITH_ITERATIONS = 8
GIGA = 1e9


@dataclass(frozen=True)
class Layout:
    """What the header says. `counts`: the fourth cell of a half counts wrong elements; else it is a delta and says nothing by itself.

    `cpu_time`: the time column is the launch time on the CPU (`-C 1`), which algbw is not made from.
    """

    redop: bool | None = None
    root: bool | None = None
    cells: int | None = None
    counts: bool | None = None
    cpu_time: bool = False


UNKNOWN = Layout()


def read_header(text: str) -> Layout | None:
    """The layout a column header announces, None for any other line."""
    names = text.lstrip("# \t").split()
    if names[:3] != ["size", "count", "type"] or names.count("algbw") != 2:
        return None
    starts = [i for i, name in enumerate(names) if name in {"time", "cputime"}]
    if len(starts) != 2:
        return None
    first, second = starts
    return Layout(redop="redop" in names[:first], root="root" in names[:first], cells=second - first, counts="#wrong" in names,
                  cpu_time="cputime" in names)


def number(cell: str) -> float | None:
    """The number in a cell: `12.3`, `1e+06`, `nan`, `-nan`, `inf`. None for anything else."""
    if not _NUMBER.fullmatch(cell):
        return None
    return float(cell.lower().replace("-nan", "nan"))


def starts_row(cells: list[str]) -> bool:
    """Whether these cells begin a row: size, count and, as far as there, a type."""
    if not cells or not cells[0].isdigit() or len(cells[0]) > 20:
        return False
    if len(cells) > 1 and not (cells[1].isdigit() and len(cells[1]) <= 20):
        return False
    return len(cells) < 3 or (bool(_TYPE.fullmatch(cells[2])) and number(cells[2]) is None)


def continues_row(cells: list[str]) -> bool:
    """Whether these cells can be the rest of a row that was cut."""
    return bool(cells) and all(number(cell) is not None or _WORD.fullmatch(cell) for cell in cells)


def read_row(cells: list[str], layout: Layout) -> tuple[Row | None, str | None]:
    """(the row, None), or (None, why these cells are no row). An empty reason means: not yet complete."""
    if len(cells) < 3 or not starts_row(cells):
        return None, "it does not begin with size, count and type"
    size, count, dtype, rest = int(cells[0]), int(cells[1]), cells[2], cells[3:]
    if len(rest) >= 2 and _DATE.fullmatch(rest[-2]) and _CLOCK.fullmatch(rest[-1]):
        rest = rest[:-2]
    redop = rest.pop(0) if rest and _REDOP.fullmatch(rest[0]) else None
    for cell in rest:
        if number(cell) is None and cell != "N/A":
            return None, f"the cell {cell[:20]!r} is no number"
    root, halves = _split(rest, layout)
    if halves is None:
        return None, "" if len(rest) <= 2 * (layout.cells or HALF) else f"it has {len(rest)} figures"
    for half in halves:
        problem = None if layout.cpu_time else _misfit(size, half)
        if problem:
            return None, problem
    first, second = (_half(half, layout.counts is not False) for half in halves)
    return Row(size=size, count=count, dtype=dtype, redop=redop, root=root, out_of_place=first, in_place=second), None


def fits(size: int, seconds: float, algbw: float, *, time_unit: float = 0.0, rate_unit: float = 0.0) -> bool:
    """Whether algbw is size / time, given what half a unit of the last printed digit can hide. Figures that are not finite pass."""
    if size <= 0 or not (math.isfinite(seconds) and math.isfinite(algbw)) or seconds <= 0:
        return True
    low = size / (seconds + time_unit / 2)
    high = size / (seconds - time_unit / 2) if seconds > time_unit / 2 else math.inf
    return low * 0.995 - rate_unit / 2 <= algbw <= high * 1.005 + rate_unit / 2


def _split(cells: list[str], layout: Layout) -> tuple[int | None, tuple[list[str], list[str]] | None]:
    """Root and the cells of both halves; None as halves when there are too few or too many."""
    for width in [layout.cells] if layout.cells else [HALF, HALF_WITH_ITERATIONS]:
        for rooted in [layout.root] if layout.root is not None else [True, False]:
            if len(cells) != 2 * width + rooted:
                continue
            root = _root(cells[0]) if rooted else None
            if rooted and root is None:
                continue
            figures = cells[1:] if rooted else cells
            # A root of -1 read as a time means that the last cell of the row is still missing.
            if "-1" in (figures[0], figures[width]):
                continue
            return root, (figures[:width], figures[width:])
    return None, None


def _root(cell: str) -> int | None:
    return int(cell) if re.fullmatch(r"-1|\d{1,6}", cell) else None


def _misfit(size: int, cells: list[str]) -> str | None:
    time, algbw = number(cells[0]), number(cells[1])
    if time is None or algbw is None:
        return None
    if fits(size, time * 1e-6, algbw * GIGA, time_unit=_unit(cells[0]) * 1e-6, rate_unit=_unit(cells[1]) * GIGA):
        return None
    return f"size {size}: an algbw of {cells[1]} GB/s does not fit a time of {cells[0]} us"


def _unit(cell: str) -> float:
    """The value of one unit of the last digit printed: 0.01 of `12.30`, 1e5 of `3e+05`."""
    mantissa, _, exponent = cell.lower().partition("e")
    if not _NUMBER.fullmatch(cell) or not (exponent or mantissa).lstrip("+-").replace(".", "").isdigit():
        return 0.0
    power = (int(exponent) if exponent else 0) - len(mantissa.partition(".")[2])
    return 10.0 ** max(-300, min(300, power))


def _half(cells: list[str], counts: bool) -> Half | None:
    values = [number(cell) for cell in cells]
    time, algbw, busbw, wrong = values[:HALF]
    if time is None or algbw is None or busbw is None:
        return None
    fastest, slowest, p99, cv = values[HALF:] if len(values) == HALF_WITH_ITERATIONS else [None] * HALF
    return Half(seconds=time * 1e-6, algbw=algbw * GIGA, busbw=busbw * GIGA, wrong=wrong if counts else None, fastest=_micro(fastest),
                slowest=_micro(slowest), p99=_micro(p99), cv=None if cv is None else cv / 100)


def _micro(value: float | None) -> float | None:
    return None if value is None else value * 1e-6
