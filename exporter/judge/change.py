"""Has a node become slower than it was itself? One tracker a node and probe, over the logarithm of what it reached against its baseline.

Two one-sided cumulative sums (CUSUM, Page 1954) of `z = (x - centre) / spread`, with `z` cut at `CUT` so that one wild run cannot say much:

    step   S = max(0, S - z - 1.0), alarm above 9      found after 5 runs at the earliest
    drift  S = max(0, S - z - 0.5), alarm above 20     finds what goes little by little

Centre and spread of a node are robust (median and MAD of the first runs, then Huber's steps that get smaller), learned from good runs only,
and stand still while a sum is raised: what may be a fault never becomes normal. The spread is taken for larger than it looks while few runs
are known, so that the rate of false alarms holds from the first alarm on: `tests/bench/baseline_step.py` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Kind = Literal["step", "drift"]
KINDS: tuple[Kind, ...] = ("step", "drift")

FIRST = 24
"""Good runs before the sum for steps is formed."""
DRIFT_FIRST = 96
"""Good runs before the sum for drifts is formed: a small shift can only be told from a well known centre."""
CUT = 3.0
"""Spreads beyond which a run says no more."""
HUBER = 1.5
"""Spreads beyond which a run moves the centre no further."""
SLACK: dict[Kind, float] = {"step": 1.0, "drift": 0.5}
LIMIT: dict[Kind, float] = {"step": 9.0, "drift": 20.0}
LEAST_SPREAD = 0.01
"""Runs of one pair differ by 1 % (efa-validation, sprint A)."""
RAISED = 0.4
"""Share of its limit above which a sum holds back learning."""
LEVEL_CUT = 20.0
"""Spreads beyond which a run moves the level no further: it only tells how large a change is, and when it is over."""
SMOOTH = 0.2
"""Share that a new run has in the level."""
MOST_GAIN = 0.04
"""Share that one run has in what is learned at most, also after a long pause."""
BACK_RUNS = 6
"""Runs that a level must be back for before a change is over."""
TO_SIGMA = 1.4826
MAD_MEAN = 0.7979
"""Mean absolute deviation of a normal distribution over its standard deviation."""


@dataclass
class Reference:
    """What a node was before its software changed: its bandwidth in bytes per second, its spread as a share of it, from how many runs."""

    software: str
    value: float
    spread: float
    samples: int
    at: float

    def dump(self) -> list[Any]:
        """As JSON."""
        return [self.software, _digits(self.value), _digits(self.spread), self.samples, round(self.at)]

    @classmethod
    def load(cls, data: Sequence[Any]) -> Reference:
        """From JSON. Raises TypeError or ValueError."""
        software, value, spread, samples, at = data
        if _number(value) <= 0 or _number(spread) <= 0:
            raise ValueError("a reference is positive")
        return cls(_word(software), float(value), float(spread), _count(samples), _number(at))


@dataclass
class Tracker:
    """See the module. `half_life` is seconds in which what was learned loses half of its weight.

    `x` is always log(value / baseline). `changed` says that a change stands, since `since`; `ended` is when the last one was over.
    `size` is how much slower the node is at most while the change stands, as a share (-0.08: 8 % slower).
    """

    software: str = ""
    samples: int = 0
    centre: float = 0.0
    spread: float = LEAST_SPREAD
    sums: dict[Kind, float] = field(default_factory=lambda: {"step": 0.0, "drift": 0.0})
    level: float = 0.0
    last: float = 0.0
    changed: Kind | None = None
    since: float = 0.0
    size: float = 0.0
    back: int = 0
    ended: dict[Kind, float] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    before: Reference | None = None

    @property
    def learned(self) -> bool:
        """Whether a step can be told."""
        return self.samples >= FIRST

    @property
    def raised(self) -> bool:
        """Whether something may be wrong: a change stands, or a sum is well on its way."""
        return self.changed is not None or any(self.sums[kind] > RAISED * LIMIT[kind] for kind in KINDS)

    @property
    def width(self) -> float:
        """The spread as it is reckoned with."""
        return max(self.spread, LEAST_SPREAD) * (1 + 2.0 / math.sqrt(max(self.samples, 1)))

    def observe(self, x: float, at: float, *, teach: bool, half_life: float) -> Kind | None:
        """Take in one run that ended `at`. `teach`: it was good. Returns the kind of a change that it proves."""
        gap, self.last = max(at - self.last, 0.0) if self.last else 0.0, at
        if not self.learned:
            if teach:
                self._begin(x)
            return None
        z = (x - self.centre) / self.width
        self.level += SMOOTH * (max(-LEVEL_CUT, min(LEVEL_CUT, z)) - self.level)
        found = self._sum(max(-CUT, min(CUT, z)), at)
        if teach and not self.raised:
            self._learn(x, gap, half_life)
        return found

    def upgraded(self, software: str, value: float | None, at: float) -> None:
        """The node's software is another one now: freeze what it was (`value` bytes per second), and learn anew.

        A change that stood is over: what the node reaches from now on cannot be held against other software.
        """
        reference = self.before
        if self.learned and value is not None and value > 0:
            reference = Reference(self.software, _digits(value), _digits(self.width), self.samples, round(at))
        ended = {**self.ended, **({self.changed: at} if self.changed is not None else {})}
        self.__dict__.update(vars(Tracker(software=software, last=at, ended=ended, before=reference)))

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        figures = [self.centre, self.spread, self.sums["step"], self.sums["drift"], self.level, self.last, self.since, self.size]
        digits = [_digits(figure, 10 if index in (5, 6) else 6) for index, figure in enumerate(figures)]
        record: dict[str, Any] = {"s": self.software, "n": self.samples, "f": digits}
        optional: dict[str, Any] = {"c": self.changed, "b": self.back, "e": {kind: round(at) for kind, at in self.ended.items()},
                                    "x": [_digits(x) for x in self.first], "r": self.before.dump() if self.before is not None else None}
        return {**record, **{key: value for key, value in optional.items() if value}}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Tracker:
        """From JSON. Raises KeyError, TypeError or ValueError when it is none."""
        figures = [_number(figure) for figure in data["f"]]
        centre, spread, step, drift, level, last, since, size = figures
        changed = data.get("c")
        first = [_number(x) for x in data.get("x", ())]
        ended = {_kind(kind): _number(at) for kind, at in dict(data.get("e", {})).items()}
        if not (abs(centre) < 50 and 0 < spread < 50 and step >= 0 and drift >= 0 and all(abs(x) < 50 for x in first)):
            raise ValueError("its figures are out of range")
        samples = _count(data["n"])
        if len(first) != (samples if samples < FIRST else 0):
            raise ValueError(f"it has {len(first)} first figures after {samples} runs")
        before = Reference.load(data["r"]) if data.get("r") else None
        return cls(_word(data["s"]), samples, centre, spread, {"step": step, "drift": drift}, max(-LEVEL_CUT, min(LEVEL_CUT, level)),
                   last, None if changed is None else _kind(changed), since, size, _count(data.get("b", 0)), ended, first, before)

    def _begin(self, x: float) -> None:
        self.first.append(x)
        self.samples = len(self.first)
        if self.learned:
            self.centre = median(self.first)
            self.spread = max(TO_SIGMA * median(abs(each - self.centre) for each in self.first), LEAST_SPREAD)
            self.first = []

    def _learn(self, x: float, gap: float, half_life: float) -> None:
        self.samples += 1
        gain = max(1.0 / self.samples, min(1 - 2.0 ** (-gap / half_life), MOST_GAIN))
        deviation = (x - self.centre) / self.spread
        self.centre += gain * self.spread * max(-HUBER, min(HUBER, deviation))
        self.spread = max(self.spread * (1 + gain * (min(abs(deviation), CUT) / MAD_MEAN - 1)), LEAST_SPREAD)

    def _sum(self, z: float, at: float) -> Kind | None:
        if self.changed is not None:
            self._look_back(self.changed, at)
            return None
        for kind in KINDS:
            if kind == "drift" and self.samples < DRIFT_FIRST:
                continue
            self.sums[kind] = max(0.0, self.sums[kind] - z - SLACK[kind])
        found: Kind | None = next((kind for kind in KINDS if self.sums[kind] > LIMIT[kind]), None)
        if found is not None:
            self.changed, self.since, self.back = found, at, 0
            self.size = math.expm1(min(self.level, -SLACK["drift"]) * self.width)
        return found

    def _look_back(self, kind: Kind, at: float) -> None:
        """A change is over when the level has come half of the way back, and stays there."""
        self.size = min(self.size, math.expm1(self.level * self.width))
        self.back = self.back + 1 if self.level * self.width > math.log1p(self.size) / 2 else 0
        if self.back >= BACK_RUNS:
            self.ended[kind] = at
            self.changed, self.since, self.size, self.back = None, 0.0, 0.0, 0
            self.sums = {"step": 0.0, "drift": 0.0}


def _kind(value: Any) -> Kind:
    for kind in KINDS:
        if kind == value:
            return kind
    raise ValueError(f"{str(value)[:40]!r} is no kind of change")


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 64 or not value.isprintable():
        raise ValueError("a name of software is a short text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is no count")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _digits(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")
