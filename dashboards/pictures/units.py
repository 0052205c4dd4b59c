"""Values in the units of the panels, as people read them."""

from __future__ import annotations

import math

_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit. `short` and others get thousands, seconds and bytes their own steps, shares percent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if unit == "s":
        scale, name = next(((scale, name) for scale, name in _TIMES if abs(value) >= scale), (1e-6, "us") if value else (1.0, "s"))
        return f"{_digits(value / scale, decimals)} {name}"
    if unit == "percentunit":
        return f"{_digits(value * 100, decimals)} %"
    scale, name = next(((scale, name) for scale, name in _SIZES if abs(value) >= scale), (1.0, ""))
    end = {"Bps": f" {name}B/s", "bytes": f" {name}B", "reqps": f" {name}req/s"}.get(unit)
    if end is not None:
        return _digits(value / scale, decimals) + end
    suffix = unit.removeprefix("suffix:") if unit.startswith("suffix:") else ""
    return _digits(value / scale, decimals) + (f" {name}" if name else "") + suffix


def _digits(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return text if "e" not in text else f"{value:.2e}"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round values between two, about so many."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / count))
    step = next(step * factor for factor in (1, 2, 2.5, 5, 10) if span / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten between two."""
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if low <= 10.0**power <= high]
