"""What a run of nccl-tests said, as typed rows: the same for its text and for its JSON. Base units: bytes, seconds, bytes per second."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from probes.nccl.factors import bus_factor

Placement = Literal["out_of_place", "in_place"]
PLACEMENTS: tuple[Placement, Placement] = ("out_of_place", "in_place")


@dataclass(frozen=True)
class Half:
    """One placement of one row. `wrong` None: not checked. The four statistics exist with `-I 1` only; `cv` is a ratio."""

    seconds: float
    algbw: float
    busbw: float
    wrong: float | None = None
    fastest: float | None = None
    slowest: float | None = None
    p50: float | None = None
    p99: float | None = None
    cv: float | None = None

    @property
    def finite(self) -> bool:
        """Whether all figures are finite, none is negative and the time is above 0."""
        figures = (self.seconds, self.algbw, self.busbw, self.wrong or 0.0)
        return all(math.isfinite(value) and value >= 0 for value in figures) and self.seconds > 0


@dataclass(frozen=True)
class Row:
    """One line of a table. `size` is what nccl-tests calls size; a half that was not measured or not readable is None."""

    size: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: Half | None
    in_place: Half | None
    iterations: int | None = None

    def half(self, placement: Placement) -> Half | None:
        """The half of this placement."""
        return self.out_of_place if placement == "out_of_place" else self.in_place


@dataclass(frozen=True)
class Device:
    """One rank's line under `# Using devices`."""

    rank: int
    host: str
    device: int
    bus: str
    name: str
    group: int = 0


@dataclass
class Table:
    """One sweep. `ranks` is the number of ranks in a communicator, None when the output does not tell."""

    operation: str | None = None
    program: str | None = None
    version: str | None = None
    nccl_version: str | None = None
    ranks: int | None = None
    devices: list[Device] = field(default_factory=list)
    devices_cut: bool = False
    iterations: int | None = None
    warmup: int | None = None
    rows: list[Row] = field(default_factory=list)
    expected_sizes: list[int] = field(default_factory=list)
    checked: bool | None = None
    out_of_bounds: int | None = None
    finished: bool = False
    stream: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def hosts(self) -> list[str]:
        """Host names of the ranks, each once, in rank order."""
        return list(dict.fromkeys(device.host for device in self.devices))

    def usable(self) -> list[Row]:
        """Rows that say something: a size above 0 and at least one half that moved bytes between ranks.

        One rank alone (a binary without MPI under mpirun) moves nothing and prints a busbw of 0.
        """
        return [row for row in self.rows if self.row_usable(row)]

    def row_usable(self, row: Row) -> bool:
        """Whether at least one half of this row is a measurement."""
        return any(self.half_usable(row, placement) for placement in PLACEMENTS)

    def half_usable(self, row: Row, placement: Placement) -> bool:
        """Whether this half of this row is a measurement."""
        half = row.half(placement)
        if row.size <= 0 or half is None or not half.finite:
            return False
        if self.ranks is not None and self.operation is not None and bus_factor(self.operation, self.ranks) == 0:
            return False
        # A size of some MiB that printed 0.00 moved nothing; a few bytes in 20 us round to it.
        return half.busbw > 0 or row.size / half.seconds < 1e7

    def wrong(self) -> int:
        """Wrong elements over all rows, at least what the footer counted."""
        total = 0.0
        for row in self.rows:
            for placement in PLACEMENTS:
                half = row.half(placement)
                if half is not None and half.wrong is not None and math.isfinite(half.wrong):
                    total += max(0.0, half.wrong)
        return max(math.ceil(min(total, 2.0**62)), self.out_of_bounds or 0)

    def series(self, placement: Placement = "out_of_place") -> list[tuple[int, float]]:
        """(size, busbw) of the usable rows, sizes rising; of a size measured more than once the worst."""
        worst: dict[int, float] = {}
        for row in self.rows:
            half = row.half(placement)
            if half is not None and self.half_usable(row, placement):
                worst[row.size] = min(worst.get(row.size, math.inf), half.busbw)
        return sorted(worst.items())
