"""What localisation knows of one node, and of one pair of nodes, for one probe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exporter.judge.hypotheses import Finding

HISTORY = 32
"""Conclusive runs that are remembered, one bit each."""
PARTNERS = 16
"""Partners whose failures are remembered."""


@dataclass
class Failure:
    """One failed run as its node sees it: when, with which partner, why, and which own devices were weak."""

    at: float
    started: float
    reason: str
    run_id: str
    weak: tuple[str, ...] = ()
    side: str | None = None


@dataclass
class Standing:
    """One node. `good_at` is the end of its last run that passed.

    `since` is set while it is a suspect: the start of the first failed run that nothing else explains. `bad` holds its failures since
    then by partner, or those that named it. `asked` is the run that re-pairs it now. `tries` and `unknowns` count re-pairings of this case
    that ended and that could not measure; from `ask_at` it may be asked about again, from `check_at` its leaf. `stuck_at` is since when no
    re-pairing finds a place, `stalled` that this takes too long for others to wait for it, `lonely` that there is nobody to compare with.
    `oks` are partners it passed with since it was named, `named` how often it was. `bits` is its recent history of `seen` runs, the last
    one lowest, 1 for failed; `flaps` holds partners of failures that nothing explained in the end.
    """

    good_at: float | None = None
    since: float | None = None
    bad: dict[str, Failure] = field(default_factory=dict)
    asked: str | None = None
    tries: int = 0
    unknowns: int = 0
    ask_at: float = 0.0
    check_at: float = 0.0
    stuck_at: float | None = None
    stalled: bool = False
    lonely: bool = False
    finding: Finding | None = None
    oks: list[str] = field(default_factory=list)
    named: int = 0
    bits: int = 0
    seen: int = 0
    flaps: dict[str, float] = field(default_factory=dict)

    @property
    def suspect(self) -> bool:
        """Whether it is under suspicion and not yet named."""
        return self.since is not None and self.finding is None

    @property
    def good(self) -> bool:
        """Whether it is known to be good: it has passed, and nothing stands against it."""
        return self.good_at is not None and self.since is None and self.finding is None

    @property
    def failing_share(self) -> float:
        """Share of failed runs in the recent history."""
        return self.bits.bit_count() / self.seen if self.seen else 0.0

    def note(self, failed: bool) -> None:
        """Add one conclusive run to the history."""
        self.bits = ((self.bits << 1) | failed) & ((1 << HISTORY) - 1)
        self.seen = min(self.seen + 1, HISTORY)

    def clear(self) -> None:
        """End the case: no suspicion, nothing asked."""
        self.since, self.bad, self.asked, self.stuck_at = None, {}, None, None
        self.stalled = self.lonely = False
        self.tries = self.unknowns = 0
        self.ask_at = self.check_at = 0.0

    def blame(self, partner: str, failure: Failure) -> None:
        """Keep a failure with `partner`, the newest of each and at most `PARTNERS` partners."""
        self.bad[partner] = failure
        if len(self.bad) > PARTNERS:
            del self.bad[min(self.bad, key=lambda one: self.bad[one].at)]

    def dump(self) -> dict[str, Any]:
        """As JSON, empty fields left out. What was asked is not kept: after a restart it is asked again."""
        data = {name: value for name, value in vars(self).items()
                if name not in ("bad", "finding", "asked") and value not in (None, 0, 0.0, {}, [], False)}
        if self.bad:
            data["bad"] = {partner: list(vars(failure).values()) for partner, failure in self.bad.items()}
        if self.finding is not None:
            data["finding"] = self.finding.dump()
        return data

    @classmethod
    def load(cls, data: dict[str, Any]) -> Standing:
        """From JSON. Raises KeyError or TypeError when it is none."""
        kept = {name: value for name, value in data.items() if name not in ("bad", "finding")}
        bad = {str(partner): Failure(values[0], values[1], values[2], values[3], tuple(values[4]), values[5])
               for partner, values in data.get("bad", {}).items()}
        return cls(**kept, bad=bad, finding=Finding.load(data["finding"]) if "finding" in data else None)


@dataclass
class Path:
    """Two nodes that failed together and both pass elsewhere. `failed` and `passed` count runs between them since the first failure.

    `since` is the start of that first run; `asked`, `unknowns` and `ask_at` are about the run that is to confirm it.
    """

    since: float
    reason: str
    failed: int = 1
    passed: int = 0
    asked: str | None = None
    unknowns: int = 0
    ask_at: float = 0.0
    finding: Finding | None = None

    def dump(self) -> dict[str, Any]:
        """As JSON. What was asked is not kept."""
        return {**vars(self), "asked": None, "finding": self.finding.dump() if self.finding is not None else None}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Path:
        """From JSON. Raises KeyError or TypeError when it is none."""
        return cls(**{**data, "finding": Finding.load(data["finding"]) if data["finding"] is not None else None})


def pair_of(one: str, other: str) -> tuple[str, str]:
    """Two nodes in one order."""
    return (one, other) if one < other else (other, one)


def other_of(pair: tuple[str, str], node: str) -> str:
    """The other node of a pair."""
    return pair[1] if node == pair[0] else pair[0]


def weak_device(standing: Standing, good: list[str]) -> str | None:
    """The one device of a node that was weak in its failures with every good partner."""
    common = set.intersection(*(set(standing.bad[partner].weak) for partner in good)) if good else set()
    return common.pop() if len(common) == 1 else None
