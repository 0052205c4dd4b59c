"""PD over baseline, from samples that lie interleaved in time: each baseline sample with the nearest one of PD, medians of both. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

MEASURES = ("ttft", "tpot", "output_tokens_per_second")
KEPT = 200
"""Samples of each side and prompt that are kept."""


@dataclass(frozen=True)
class Sample:
    """One good answer: when (Unix seconds) and its figures, None where it has none."""

    at: float
    figures: Mapping[str, float | None]


@dataclass
class Ratios:
    """Samples by prompt kind of both sides. `within` is how far apart two samples may lie to be compared, seconds."""

    least: int
    within: float
    _pd: dict[str, deque[Sample]] = field(default_factory=dict)
    _baseline: dict[str, deque[Sample]] = field(default_factory=dict)

    def add(self, prompt: str, sample: Sample, *, baseline: bool) -> None:
        """Take in one good answer."""
        side = self._baseline if baseline else self._pd
        side.setdefault(prompt, deque(maxlen=KEPT)).append(sample)

    def of(self, prompt: str) -> dict[str, float]:
        """The ratio of each measure with at least `least` samples that have a partner in time."""
        partners = self._partners(prompt)
        found: dict[str, float] = {}
        for measure in MEASURES:
            both = [(pd, base) for one, other in partners
                    if (pd := one.figures.get(measure)) is not None and (base := other.figures.get(measure)) is not None]
            if len(both) >= self.least and (below := median(base for _, base in both)) > 0:
                found[measure] = median(pd for pd, _ in both) / below
        return found

    def best(self) -> dict[str, float]:
        """Of the prompt kind that says most: the long one where it has a ratio, since KV takes part there."""
        for prompt in sorted(self._baseline, key=lambda name: name != "long"):
            found = self.of(prompt)
            if found:
                return found
        return {}

    def _partners(self, prompt: str) -> list[tuple[Sample, Sample]]:
        """Each baseline sample with the nearest sample of PD, none of them twice."""
        free = list(self._pd.get(prompt, ()))
        found: list[tuple[Sample, Sample]] = []
        for other in self._baseline.get(prompt, ()):
            one = min(free, key=lambda sample: abs(sample.at - other.at), default=None)
            if one is not None and abs(one.at - other.at) <= self.within:
                free.remove(one)
                found.append((one, other))
        return found
