"""Most pairs fail in the same way at once: that is one group finding (a security group, an image, a leaf), not many suspects."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exporter.judge.hypotheses import Finding, group_score

FEWEST = 3
"""Disjoint failed pairs that a group finding needs."""
MOST = 2 / 3
"""Share of the pairs that touch a group that must fail, and of the failures that must look the same."""
ENOUGH = 8
"""Pairs of a large group that must have been measured since it began to fail; fewer in a small one."""
HARDLY = 0.05
"""A chance below which something is taken for no coincidence."""
RECOVERY = 6
"""The last so many runs that touch a group decide whether it has recovered."""
WINDOW = 3600.0
"""Seconds over which failures count as at once."""

Key = tuple[str, str]
LINK = "--"


@dataclass
class Fresh:
    """A pair of a round that was measured since things began to fail. `reason` None means it passed."""

    pair: tuple[str, str]
    at: float
    reason: str | None


@dataclass
class Active:
    """A group that is known to be bad: its finding, who has failed, and the last runs that touched it (True: passed)."""

    finding: Finding
    failed: set[str] = field(default_factory=set)
    last: deque[bool] = field(default_factory=lambda: deque(maxlen=RECOVERY))

    def recovered(self) -> bool:
        """Whether most of the last runs passed."""
        return len(self.last) >= FEWEST and sum(self.last) * 2 > len(self.last)


@dataclass
class Groups:
    """The groups of one probe. `attributes` of each node are its place and make: leaf, spine, zone, node group, image, all."""

    attributes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sizes: Counter[Key] = field(default_factory=Counter)
    fresh: deque[Fresh] = field(default_factory=deque)
    active: dict[Key, Active] = field(default_factory=dict)
    passed_at: dict[Key, float] = field(default_factory=dict)

    def fleet(self, attributes: Mapping[str, Mapping[str, str]]) -> None:
        """Take in who is there and what each belongs to."""
        self.attributes = attributes
        self.sizes = Counter(key for own in attributes.values() for key in own.items())
        leaves = {value for name, value in self.sizes if name == "leaf"}
        for key in [key for key in self.active if not (set(key[1].split(LINK)) <= leaves if key[0] == "link" else key in self.sizes)]:
            del self.active[key]
        self.passed_at = {key: at for key, at in self.passed_at.items() if key in self.sizes}

    def of(self, node: str) -> set[Key]:
        """What a node belongs to."""
        return set(self.attributes.get(node, {}).items())

    def keys(self, pair: tuple[str, str]) -> set[Key]:
        """What a pair touches: what its nodes belong to, and the link between their leaves."""
        link = self.link(pair)
        return self.of(pair[0]) | self.of(pair[1]) | ({link} if link is not None else set())

    @property
    def leaves(self) -> int:
        """How many leaves there are."""
        return sum(name == "leaf" for name, _ in self.sizes)

    def leaf(self, node: str) -> str | None:
        """The leaf of a node."""
        return self.attributes.get(node, {}).get("leaf")

    def inside(self, small: Key, large: Key) -> bool:
        """Whether all of one group belong to another."""
        return all(large in own.items() for own in self.attributes.values() if small in own.items())

    def link(self, pair: tuple[str, str]) -> Key | None:
        """The link between the leaves of a pair, None when they are on one leaf or it is not known."""
        one, other = (self.attributes.get(node, {}).get("leaf") for node in pair)
        return ("link", LINK.join(sorted((one, other)))) if one is not None and other is not None and one != other else None

    def fails(self, node: str) -> bool:
        """Whether a node belongs to a group that is known to be bad."""
        return any(key in self.active for key in self.attributes.get(node, {}).items())

    def covering(self, pair: tuple[str, str], reason: str) -> Active | None:
        """The known bad group that explains this failure of a pair."""
        for key in self.keys(pair) if self.active else ():
            active = self.active.get(key)
            if active is not None and active.finding.reason == reason:
                return active
        return None

    def passed(self, pair: tuple[str, str], started: float) -> list[Finding]:
        """A pair passed, in a run begun at `started`. Returns findings of groups that have recovered by that."""
        over: list[Finding] = []
        for key in self.keys(pair):
            if key in self.sizes:
                self.passed_at[key] = max(started, self.passed_at.get(key, 0.0))
            active = self.active.get(key)
            if active is not None:
                active.last.append(True)
                if active.recovered():
                    over.append(active.finding)
                    del self.active[key]
        return over

    def unproven(self, node: str, since: float) -> list[tuple[Key, list[str]]]:
        """The node's leaf and node group, as far as nothing of it has passed since `since`, with their other nodes."""
        keys = [key for key in sorted(self.of(node)) if key[0] in ("leaf", "nodegroup") and self.sizes[key] >= FEWEST
                and self.passed_at.get(key, 0.0) < since]
        return [((name, value), sorted(other for other, own in self.attributes.items() if other != node and own.get(name) == value))
                for name, value in keys]

    def note(self, pair: tuple[str, str], at: float, reason: str | None) -> None:
        """A pair of a round was measured. Passes are kept only while something fails."""
        if reason is not None or self.fresh:
            self.fresh.append(Fresh(pair, at, reason))
        while self.fresh and (self.fresh[0].reason is None or self.fresh[0].at < at - WINDOW):
            self.fresh.popleft()

    def judge(self, probe: str, pair: tuple[str, str], at: float, cleared: Callable[[str, float], bool]) -> tuple[Key, Active] | None:
        """After a failure of `pair`: the group that explains it and others best, when the rule for a group holds.

        `cleared(node, at)` says whether a node has passed since then: a failure then speaks against its other end only.
        """
        held: list[tuple[int, int, bool, Key, Active]] = []
        for key in self.of(pair[0]) | self.of(pair[1]):
            if key not in self.active and self.sizes[key] >= FEWEST:
                found = self._weigh(probe, key, at, cleared)
                if found is not None and (key[0] == "fleet" or self._passes_outside(key) or self._concentrated(key, found[0])):
                    held.append((found[0], -self.sizes[key], key[0] == "fleet", key, found[1]))
        # What explains the most failures, and of those the smallest; all of the fleet when nothing smaller explains as many.
        best = max(held, key=lambda one: one[:4], default=None)
        if best is None or (best[3][0] != "fleet" and not self._passes_outside(best[3])):
            return None  # while nothing else passes, it may be more than this group
        return best[3], best[4]

    def _concentrated(self, key: Key, failed: int) -> bool:
        """Whether so many failed pairs would hardly all touch this group if all of the fleet failed alike."""
        outside = 1 - self.sizes[key] / max(len(self.attributes), 1)
        return (1 - outside**2) ** failed < HARDLY

    def _passes_outside(self, key: Key) -> bool:
        """Whether any pair that does not touch the group has passed since things began to fail: else it may be all of them."""
        return any(one.reason is None and not any(key in self.of(node) for node in one.pair) for one in self.fresh)

    def _weigh(self, probe: str, key: Key, at: float, cleared: Callable[[str, float], bool]) -> tuple[int, Active] | None:
        """How many failed pairs a group explains and the finding that would be, None when the rule for a group does not hold."""
        failed: list[Fresh] = []
        members: set[str] = set()
        passed = 0
        for one in self.fresh:
            inside = [node for node in one.pair if key in self.of(node)]
            if not inside:
                continue
            if one.reason is None:
                passed += 1
                continue
            live = [node for node in inside if not cleared(node, one.at)]
            if live:
                failed.append(one)
                members.update(live)
            else:
                passed += 1
        total = len(failed) + passed
        # All of the fleet is claimed only when most of its pairs were looked at; a part of it stands out against the rest.
        enough = math.ceil(self.sizes[key] * 3 / 8) if key[0] == "fleet" else math.ceil(self.sizes[key] / 4)
        if len(failed) < FEWEST or len(failed) < MOST * total or total < min(ENOUGH, enough):
            return None
        reason, same = Counter(one.reason for one in failed).most_common(1)[0]
        if reason is None or same < FEWEST or same < MOST * len(failed):
            return None
        score = group_score(len(failed), passed)
        says = (f"{len(failed)} of {total} pairs that touch {key[0]} {key[1]} fail with {reason} since "
                f"they began to: look at what its {self.sizes[key]} nodes share")
        finding = Finding("group", probe, key, reason, score, min(one.at for one in failed), at, tuple(sorted(members)), says)
        return len(failed), Active(finding, members)

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        active = [[list(key), one.finding.dump(), sorted(one.failed), list(one.last)] for key, one in self.active.items()]
        return {"fresh": [[*one.pair, one.at, one.reason] for one in self.fresh], "active": active,
                "passed_at": [[*key, at] for key, at in self.passed_at.items() if key[0] in ("leaf", "nodegroup")]}

    def load(self, data: Mapping[str, Any]) -> None:
        """From JSON. Raises KeyError, TypeError or ValueError when it is none."""
        self.fresh = deque(Fresh((one, other), at, reason) for one, other, at, reason in data["fresh"])
        self.passed_at = {(str(name), str(value)): float(at) for name, value, at in data["passed_at"]}
        self.active = {(str(key[0]), str(key[1])): Active(Finding.load(finding), set(failed), deque(last, maxlen=RECOVERY))
                       for key, finding, failed, last in data["active"]}
