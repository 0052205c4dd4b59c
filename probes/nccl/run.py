"""One parsed output of nccl-tests, with everything that stands beside the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from probes.nccl.table import PLACEMENTS, Table
from probes.reasons import Outcome, Reason, outcome_of


@dataclass(frozen=True)
class Failure:
    """A line in which a program says that it failed."""

    kind: Literal["timeout", "nccl", "cuda", "usage", "devices", "launcher", "crash", "other"]
    text: str


@dataclass
class ParsedRun:
    """Tables, failures and the verdict over both. `reason` is what the output alone can say: it knows no baseline."""

    source: Literal["text", "json"]
    tables: list[Table] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    json_path: str | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: Reason = Reason.NO_ROWS
    message: str = ""

    @property
    def outcome(self) -> Outcome:
        """The outcome the reason belongs to."""
        return outcome_of(self.reason)

    def rows(self) -> list[dict[str, Any]]:
        """One flat record per usable half of a row, for a table or `--json`: bytes, seconds, bytes per second."""
        records = []
        for number, table in enumerate(self.tables):
            for row in table.rows:
                for placement in PLACEMENTS:
                    half = row.half(placement)
                    if half is None or not table.half_usable(row, placement):
                        continue
                    records.append({
                        "table": number, "operation": table.operation, "ranks": table.ranks, "bytes": row.size, "count": row.count,
                        "dtype": row.dtype, "redop": row.redop, "placement": placement, "seconds": half.seconds, "algbw": half.algbw,
                        "busbw": half.busbw, "wrong": half.wrong, "min": half.fastest, "p50": half.p50, "p99": half.p99,
                        "max": half.slowest, "cv": half.cv,
                    })
        return records

    def usable_rows(self) -> int:
        """How many rows of all tables measured something."""
        return sum(len(table.usable()) for table in self.tables)
