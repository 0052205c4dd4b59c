"""What all benchmarks share: skipping, statistics, the machine, and the table."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FIELDS = ("name", "what", "value", "unit", "peer", "peer_value", "ratio", "goal", "holds", "machine", "versions")
"""The fields of a row of `build/bench.json`, in order."""

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


class Skipped(Exception):  # noqa: N818 - not an error: the machine lacks what the benchmark needs
    """A benchmark that cannot run here. The text says what is missing."""


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` of the values does not exceed (no interpolation: p99 of 100 values is the 99th)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def machine() -> str:
    """CPU, cores, memory, kernel and Python of this machine, in one line."""
    models = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    memory = next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    cores = len(os.sched_getaffinity(0))
    return (f"{model or platform.machine()}, {cores} cores, {memory / 2**30:.0f} GiB, Linux {platform.release()}, "
            f"Python {platform.python_version()}")


def show(value: float | None, unit: str) -> str:
    """A figure for people: 0.0123 s as 12.3 ms, 5e9 B/s as 5 GB/s."""
    if value is None:
        return ""
    if value == 0 or unit in {"", "ratio", "series", "x"}:
        return f"{value:.3g} {unit}".strip()
    if unit == "B":
        return f"{value / 2**20:.1f} MiB"
    scale, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), _PREFIXES[-1])
    return f"{value / scale:.3g} {prefix}{unit}"


def table(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """Print the rows with their ratios."""
    shown = Table(title="benchmarks", show_lines=False)
    for column in ("name", "what", "ours", "peer", "theirs", "ratio", "goal", "holds"):
        shown.add_column(column, overflow="fold", justify="right" if column in {"ours", "theirs", "ratio"} else "left")
    for row in rows:
        holds = {True: "yes", False: "[red]NO[/red]", None: ""}[row["holds"]]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        shown.add_row(row["name"], row["what"], show(row["value"], row["unit"]), row["peer"] or "", show(row["peer_value"], row["unit"]),
                      ratio, row["goal"] or "", holds)
    console.print(shown)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
