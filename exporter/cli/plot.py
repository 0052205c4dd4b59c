"""Figures over time: as characters for a terminal, and as an SVG file.

A PNG would need a drawing library that nothing else here uses; browsers, Grafana and documents show SVG.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

GOOD, BAD, NONE = "•", "x", "?"


@dataclass(frozen=True)
class Point:
    """One run: when it ended (Unix seconds), its figure in base units (None: it has none), and whether it was ok."""

    at: float
    value: float | None
    ok: bool
    conclusive: bool = True

    @property
    def mark(self) -> str:
        """How it is drawn."""
        return GOOD if self.ok else BAD if self.conclusive else NONE


def scaled(value: float, unit: str) -> str:
    """A figure for an axis: `2.5 GB/s`, `48 ms`."""
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def terminal(points: Sequence[Point], unit: str, *, width: int = 100, height: int = 18) -> list[str]:
    """Lines of text: the figures over time, runs without one on the bottom line. Not ok is drawn over ok."""
    shown = [point for point in points if point.value is not None and math.isfinite(point.value)]
    if not points:
        return ["no runs"]
    first, last = min(point.at for point in points), max(point.at for point in points)
    high = max((point.value or 0.0 for point in shown), default=1.0) or 1.0
    margin = 11
    columns = max(20, width - margin - 2)
    grid = [[" "] * columns for _ in range(height)]
    floor = [" "] * columns
    for point in sorted(points, key=lambda one: not one.ok):
        column = round((point.at - first) / (last - first) * (columns - 1)) if last > first else columns // 2
        if point.value is None or not math.isfinite(point.value):
            floor[column] = point.mark
        else:
            row = height - 1 - round(max(0.0, point.value) / high * (height - 1))
            grid[row][column] = point.mark
    lines = []
    for number, row_ in enumerate(grid):
        label = scaled(high * (height - 1 - number) / (height - 1), unit) if number % 4 == 0 or number == height - 1 else ""
        lines.append(f"{label:>{margin}} │{''.join(row_)}".rstrip())
    if any(mark != " " for mark in floor):
        lines.append(f"{'no figure':>{margin}} │{''.join(floor)}".rstrip())
    lines.append(" " * (margin + 1) + "└" + "─" * columns)
    begin, end = _stamp(first), _stamp(last)
    lines.append(" " * (margin + 2) + begin + " " * max(1, columns - len(begin) - len(end)) + end)
    lines.append(f"{GOOD} ok   {BAD} degraded or failed   {NONE} could not measure")
    return lines


def svg(points: Sequence[Point], unit: str, title: str, *, width: int = 960, height: int = 360) -> str:
    """A whole SVG document with axes; each point says its time and figure when pointed at."""
    left, right, top, bottom = 90, 20, 40, 40
    first = min((point.at for point in points), default=0.0)
    span = (max((point.at for point in points), default=1.0) - first) or 1.0
    high = max((point.value or 0.0 for point in points), default=0.0) or 1.0
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="#ffffff"/>', f'<text x="{left}" y="22" font-size="14">{escape(title)}</text>']
    for step in range(5):
        y = height - bottom - (height - top - bottom) * step / 4
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}" stroke="#dddddd"/>'
                     f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(scaled(high * step / 4, unit))}</text>')
    for at, anchor in ((first, "start"), (first + span, "end")):
        x = left + (at - first) / span * (width - left - right)
        parts.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="{anchor}">{_stamp(at)}</text>')
    colours = {GOOD: "#1a7f37", BAD: "#cf222e", NONE: "#8250df"}
    for point in points:
        x = left + (point.at - first) / span * (width - left - right)
        y = height - bottom - max(0.0, point.value or 0.0) / high * (height - top - bottom)
        told = scaled(point.value, unit) if point.value is not None else "no figure"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colours[point.mark]}">'
                     f'<title>{_stamp(point.at)} {escape(told)}</title></circle>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
