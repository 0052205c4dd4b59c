"""The panels over time as SVG: lines, bars, states, and heat maps."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.pictures.source import Series
from dashboards.pictures.units import decades, show, ticks

COLOURS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff9830", "#f2495c", "#b877d9", "#5ec4cd", "#c8a06a", "#8f9bb3", "#e377c2", "#9ad06f",
           "#6f87d8")
NAMED = {"green": "#73bf69", "yellow": "#f2cc0c", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2", "purple": "#b877d9"}
LEFT, BOTTOM, TOP = 64.0, 20.0, 6.0
SCALE = ("#30123b", "#4458cb", "#3e9bfe", "#18d6cb", "#46f783", "#a4fc3b", "#e1dc37", "#fda330", "#ef5a11", "#c22402")

Json = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """The drawing of a panel: its size in pixels and the span of time it shows, Unix seconds."""

    width: float
    height: float
    start: float
    end: float

    def x(self, at: float) -> float:
        """Where a moment is."""
        return LEFT + (self.width - LEFT - 8) * (at - self.start) / (self.end - self.start)

    def y(self, share: float) -> float:
        """Where a share of the height is, from the bottom."""
        return TOP + (self.height - TOP - BOTTOM) * (1 - share)

    def times(self) -> str:
        """The axis of time."""
        step = next((step for step in (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400) if (self.end - self.start) / step <= 6),
                    86400)
        marks = []
        for number in range(math.ceil(self.start / step), int(self.end // step) + 1):
            label = time.strftime("%H:%M:%S" if step < 60 else "%H:%M", time.gmtime(number * step))
            x = self.x(number * step)
            marks.append(f'<text class="tick" x="{x:.1f}" y="{self.height - 5:.1f}" text-anchor="middle">{label}</text>')
        return "".join(marks)


def colour(name: str | None, index: int = 0) -> str:
    """A colour by Grafana's name, or the next one of the palette."""
    return NAMED.get(name, name) if name else COLOURS[index % len(COLOURS)]


def lines(panel: Json, drawn: Sequence[tuple[str, Series, Json]], frame: Frame, step: float) -> str:
    """Lines, bars or areas. `drawn` has name, series and overriding properties."""
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    logarithmic = custom.get("scaleDistribution", {}).get("type") == "log"
    columns: dict[float, float] = {}
    shapes: list[tuple[str, list[tuple[float, float, float]], Json, int]] = []
    for index, (name, series, properties) in enumerate(drawn):
        points = []
        for at, value in series.points:
            if math.isfinite(value):
                base = columns.get(round(at, 3), 0.0) if stacked and not properties.get("custom.lineStyle") else 0.0
                points.append((at, base, base + value))
                if stacked:
                    columns[round(at, 3)] = base + value
        shapes.append((name, points, properties, index))
    values = [top for _, points, _, _ in shapes for _, _, top in points]
    low, high = _limits(values, defaults, logarithmic=logarithmic)

    def share(value: float) -> float:
        if logarithmic:
            return (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return (value - low) / (high - low)

    parts = [frame.times()]
    for tick in decades(low, high) if logarithmic else ticks(low, high):
        y = frame.y(share(tick))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{frame.width - 8:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
                     f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
                     f'{html.escape(show(tick, defaults["unit"]))}</text>')
    for _, points, properties, index in shapes:
        fill = colour((properties.get("color") or {}).get("fixedColor"), index)
        parts.append(_shape(points, fill, properties, custom, frame, share, step, stacked=stacked))
    return "".join(parts)


def _shape(points: Sequence[tuple[float, float, float]], fill: str, properties: Json, custom: Json, frame: Frame, share: Any,
           step: float, *, stacked: bool) -> str:
    if not points:
        return ""
    if custom.get("drawStyle") == "bars":
        wide = max(1.0, (frame.width - LEFT) / 130)
        return "".join(f'<rect x="{frame.x(at) - wide / 2:.1f}" y="{frame.y(share(top)):.1f}" width="{wide:.1f}" '
                       f'height="{max(frame.y(share(base)) - frame.y(share(top)), 0):.1f}" fill="{fill}" opacity=".75"/>'
                       for at, base, top in points if top != base)
    dashed = bool(properties.get("custom.lineStyle"))
    dash = ' stroke-dasharray="8 6" stroke-width="2"' if dashed else ' stroke-width="1.5"'
    parts: list[str] = []
    for piece in _unbroken(points, step):
        path = " ".join(f"{frame.x(at):.1f},{frame.y(share(top)):.1f}" for at, _, top in piece)
        if len(piece) == 1:
            parts.append(f'<circle cx="{frame.x(piece[0][0]):.1f}" cy="{frame.y(share(piece[0][2])):.1f}" r="2" fill="{fill}"/>')
            continue
        if stacked and not dashed:
            back = " ".join(f"{frame.x(at):.1f},{frame.y(share(base)):.1f}" for at, base, _ in reversed(piece))
            parts.append(f'<polygon points="{path} {back}" fill="{fill}" opacity=".3"/>')
        parts.append(f'<polyline points="{path}" fill="none" stroke="{fill}"{dash}/>')
    return "".join(parts)


def _unbroken(points: Sequence[tuple[float, float, float]], step: float) -> list[list[tuple[float, float, float]]]:
    """The points in pieces, a new one after each gap."""
    pieces: list[list[tuple[float, float, float]]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > 1.5 * step:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _limits(values: Sequence[float], defaults: Mapping[str, Any], *, logarithmic: bool) -> tuple[float, float]:
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        low, high = 10 ** math.floor(math.log10(min(positive))), 10 ** math.ceil(math.log10(max(positive)))
        return low, high if high > low else low * 10
    low = float(defaults["min"]) if "min" in defaults else min(values, default=0.0)
    high = max(float(defaults.get("max", -math.inf)), max(values, default=1.0))
    return low, high * 1.05 if high > low else low + 1.0


def rows(panel: Json, drawn: Sequence[tuple[str, Series]], frame: Frame, step: float) -> str:
    """States or values as one row a series, each point a piece in its colour."""
    parts = [frame.times()]
    space = (frame.height - TOP - BOTTOM) / max(len(drawn), 1)
    tall = min(space * 0.86, 26.0)
    for index, (name, series) in enumerate(drawn):
        y = TOP + index * space
        label = name if len(name) <= 22 else "…" + name[-21:]
        parts.append(f'<text class="tick" x="{LEFT + 74}" y="{y + tall / 2 + 3.5:.1f}" text-anchor="end">{html.escape(label)}</text>')
        inner = Frame(frame.width - 80, frame.height, frame.start, frame.end)
        for at, value in series.points:
            x = 80 + inner.x(max(at - step / 2, frame.start))
            wide = 80 + inner.x(min(at + step / 2, frame.end)) - x
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0.5) + 0.6:.2f}" height="{tall:.1f}" '
                         f'fill="{colour_of(value, panel["fieldConfig"]["defaults"])}"/>')
    return "".join(parts)


def colour_of(value: float, config: Json) -> str:
    """The colour of a value: by its word, else by the steps."""
    for mapping in config.get("mappings") or ():
        found = mapping.get("options", {}).get(f"{value:g}")
        if found is not None:
            return colour(found.get("color"))
    shade = None
    for step in (config.get("thresholds") or {}).get("steps") or ():
        if step["value"] is None or value >= step["value"]:
            shade = step["color"]
    return colour(shade)


def word_of(value: float, config: Json) -> str | None:
    """The word that stands for a value, None without one."""
    for mapping in config.get("mappings") or ():
        found = mapping.get("options", {}).get(f"{value:g}")
        if found is not None:
            return str(found.get("text", ""))
    return None


def spread(panel: Json, drawn: Sequence[Series], frame: Frame, step: float) -> str:
    """A heat map of a histogram by `le`: each bucket without the ones below it."""
    by_bound = sorted(((_bound(series.labels.get("le", "+Inf")), series) for series in drawn), key=lambda pair: pair[0])
    cells: list[tuple[int, float, float]] = []
    below: dict[float, float] = {}
    for index, (_, series) in enumerate(by_bound):
        points = [(at, value) for at, value in series.points if math.isfinite(value)]
        cells += [(index, at, max(value - below.get(at, 0.0), 0.0)) for at, value in points]
        below |= dict(points)
    used = [index for index, _, value in cells if value > 1e-9]
    if not used:
        return frame.times()
    first, last = min(used), max(used)
    top = max(value for _, _, value in cells)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    number = last - first + 1
    parts = [frame.times(), *(
        f'<text class="tick" x="{LEFT - 6}" y="{frame.y((index - first + 0.5) / number) + 3.5:.1f}" text-anchor="end">'
        f'{html.escape(show(by_bound[index][0], unit))}</text>'
        for index in range(first, last + 1) if number <= 12 or (index - first) % 2 == 0)]
    for index, at, value in cells:
        if value > 1e-9:
            x, wide = frame.x(at), max(frame.x(frame.start + step) - frame.x(frame.start) - 0.6, 0.8)
            tall = frame.y(0) - frame.y(1 / number)
            shade = SCALE[min(int(value / top * len(SCALE)), len(SCALE) - 1)]
            parts.append(f'<rect x="{x:.1f}" y="{frame.y((index - first + 1) / number):.1f}" width="{wide:.1f}" height="{tall - 0.8:.1f}" '
                         f'fill="{shade}"/>')
    return "".join(parts)


def _bound(text: str) -> float:
    return math.inf if text in ("+Inf", "Inf") else float(text)
