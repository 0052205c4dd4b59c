"""A median and a spread that forget slowly, of a stream of positive figures, in a few hundred bytes.

Figures are counted in bins of `WIDTH` on a logarithmic scale; a count loses half of its weight in every half-life. Quantiles of the counts
are exact to a quarter of a percent of the value. Which order the figures of one moment come in makes no difference, one wild figure is one
count among many, and two sketches can be joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

WIDTH = 0.005
"""Width of a bin: half a percent of the value."""
MOST_BINS = 200
"""Bins that are kept at most: the outermost that weigh least are given up."""
REBASE = 20.0
"""Half-lives after which the weights are brought back to small numbers."""
LIGHTEST = 1e-3
"""A bin whose faded weight is below this is forgotten."""
TO_SIGMA = 1.3489795
"""Interquartile range of a normal distribution over its standard deviation."""
SMALLEST, LARGEST = 1e-12, 1e18
LOWEST, HIGHEST = math.floor(math.log(SMALLEST) / WIDTH), math.ceil(math.log(LARGEST) / WIDTH)


class Sketch:
    """See the module. `half_life` is seconds; times are Unix seconds and need not be in order."""

    __slots__ = ("_base", "_bins", "_cached", "_stale", "_total", "half_life", "last")

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self.last: float | None = None
        self._base = 0.0
        self._bins: dict[int, float] = {}
        self._total = 0.0
        self._cached: tuple[float, float] | None = None
        self._stale = 0.0

    def add(self, value: float, at: float) -> None:
        """Count a figure measured `at`. Raises ValueError for one that is not positive and finite."""
        if not SMALLEST <= value <= LARGEST:
            raise ValueError(f"a figure of {value!r} cannot be learned from")
        if self.last is None:
            self._base = at
        elif at - self._base > REBASE * self.half_life:
            self._rebase(at)
        weight = 2.0 ** max((at - self._base) / self.half_life, -REBASE)
        place = round(math.log(value) / WIDTH)
        self._bins[place] = self._bins.get(place, 0.0) + weight
        self._total += weight
        self._stale += weight
        self.last = at if self.last is None else max(self.last, at)
        if len(self._bins) > MOST_BINS:
            self._trim()

    def samples(self, now: float) -> float:
        """How many figures are remembered, each counted by what is left of its weight."""
        return self._total / 2.0 ** ((max(now, self.last) - self._base) / self.half_life) if self.last is not None else 0.0

    @property
    def centre(self) -> float:
        """The median. Raises ValueError while nothing is known."""
        return math.exp(self._figures()[0])

    @property
    def spread(self) -> float:
        """Robust standard deviation as a share of the centre: interquartile range of the logarithms / 1.349."""
        return self._figures()[1]

    def quantile(self, share: float) -> float:
        """The value that this share of the counts lies below."""
        return math.exp(self._place(share, sorted(self._bins)))

    def join(self, other: Sketch) -> None:
        """Take in the counts of another sketch."""
        if other.last is None:
            return
        if self.last is None or other._base > self._base:
            self._rebase(other._base)
        factor = 2.0 ** ((other._base - self._base) / self.half_life)
        for place, weight in other._bins.items():
            self._bins[place] = self._bins.get(place, 0.0) + weight * factor
        self._total = sum(self._bins.values())
        self.last = other.last if self.last is None else max(self.last, other.last)
        self._cached = None
        if len(self._bins) > MOST_BINS:
            self._trim()

    def dump(self) -> dict[str, Any]:
        """As JSON: the first bin, then the weights from there on, as of the last figure."""
        if self.last is None:
            return {}
        scale = 2.0 ** ((self.last - self._base) / self.half_life)
        faded = {place: weight / scale for place, weight in self._bins.items()}
        return {"at": self.last, "bins": [[place, _digits(faded[place])] for place in sorted(faded) if faded[place] >= LIGHTEST]}

    @classmethod
    def load(cls, data: Mapping[str, Any], half_life: float) -> Sketch:
        """From JSON. Raises KeyError, TypeError or ValueError when it is none."""
        made = cls(half_life)
        if not data:
            return made
        at, bins = _number(data["at"]), data["bins"]
        if not isinstance(bins, list) or not 0 < len(bins) <= MOST_BINS:
            raise ValueError("a sketch holds between 1 and 200 bins")
        for place, weight in bins:
            if isinstance(place, bool) or not isinstance(place, int) or not LOWEST <= place <= HIGHEST:
                raise ValueError(f"{place!r} is no bin of a sketch")
            if not 0 < _number(weight) < 1e15:
                raise ValueError(f"{weight!r} is no weight of a bin")
            made._bins[place] = made._bins.get(place, 0.0) + float(weight)
        made.last = made._base = at
        made._total = sum(made._bins.values())
        return made

    def _figures(self) -> tuple[float, float]:
        """Median and spread of the logarithms. They are found again when a hundredth of the weight is new."""
        if self._cached is None or self._stale > 0.01 * self._total:
            if not self._bins:
                raise ValueError("nothing is learned yet")
            places = sorted(self._bins)
            low, middle, high = (self._place(share, places) for share in (0.25, 0.5, 0.75))
            self._cached = (middle, (high - low) / TO_SIGMA)
            self._stale = 0.0
        return self._cached

    def _place(self, share: float, places: Iterable[int]) -> float:
        """Where `share` of the weight lies below, as a logarithm; linear inside a bin."""
        wanted, passed, place = share * self._total, 0.0, 0
        for place in places:
            weight = self._bins[place]
            if passed + weight >= wanted:
                return (place - 0.5 + (wanted - passed) / weight) * WIDTH
            passed += weight
        return (place + 0.5) * WIDTH

    def _rebase(self, at: float) -> None:
        scale = 2.0 ** (min(at - self._base, 1000 * self.half_life) / self.half_life)
        self._base = at
        self._bins = {place: faded for place, weight in self._bins.items() if (faded := weight / scale) >= LIGHTEST}
        self._total = sum(self._bins.values())
        self._cached = None

    def _trim(self) -> None:
        """Give up the lighter of the two outermost bins."""
        while len(self._bins) > MOST_BINS:
            ends = min(self._bins), max(self._bins)
            lighter = min(ends, key=lambda place: self._bins[place])
            self._total -= self._bins.pop(lighter)
        self._cached = None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
