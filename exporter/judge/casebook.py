"""The book of one probe's cases: what is known of each node and path, how likely each is bad, and what to ask next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exporter.judge.group import Groups, Key
from exporter.judge.hypotheses import P_NODE_BAD, Finding, node_score
from exporter.judge.observation import Observation
from exporter.judge.standing import Path, Standing, pair_of
from exporter.repairs import Repair

GOOD_PARTNERS = 2
"""Different good partners that must agree before a node is named."""
PAUSES = (0.0, 30.0, 60.0, 300.0, 900.0, 1800.0)
"""Seconds before a question that could not be answered is asked again."""
NO_PLACE_SECONDS = 5.0
"""How soon a re-pairing that found no place is tried again."""
STALLED_SECONDS = 120.0
"""So long others wait for what a re-pairing that finds no place would tell."""
DOUBT_SECONDS = 60.0
"""So long a case waits for a run of the round to tell a bad node from a bad leaf before one is made for it."""
LONGEST_WAIT = 1800.0
"""So long a node is not named while nothing of its leaf or node group has passed since it began to fail."""
MEASURED_SECONDS = 7200.0
"""Nodes that passed within this time before are expected to be measured again soon."""
LONELY_SECONDS = 1800.0
"""After so long without a partner that could be measured, the pair itself is the finding for now."""
MOST_SUSPECTS = 0.2
"""Share of the known nodes that is re-paired at the same time at most: more suspects at once are rarely their own fault."""
MANY = 4
"""Suspects from which no more than so many re-pairings are made while nothing at all passes: it may be all of them."""


@dataclass(frozen=True)
class Change:
    """Something that localisation has concluded. `node` is set for a node that was suspected or cleared."""

    what: Literal["suspected", "cleared", "found", "over"]
    probe: str
    node: str | None = None
    finding: Finding | None = None
    says: str = ""


@dataclass
class CaseBook:
    """The state of localisation for one probe. Nodes are instance ids; `comparable` gives the group whose nodes can be compared.

    `explained(node)` says whether a lower layer's finding explains what is seen of a node. `open` are the present suspects, `named` the
    nodes with a finding, `touched` those whose state changed since somebody emptied it.
    """

    probe: str
    standings: dict[str, Standing] = field(default_factory=dict)
    paths: dict[tuple[str, str], Path] = field(default_factory=dict)
    groups: Groups = field(default_factory=Groups)
    comparable: Mapping[str, str] = field(default_factory=dict)
    passed_at: dict[str, float] = field(default_factory=dict)
    asks: int = 0
    began: float | None = None
    open: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    explained: Callable[[str], bool] = field(default=lambda node: False, repr=False)  # noqa: ARG005
    _changes: list[Change] = field(default_factory=list)

    def of(self, node: str) -> Standing:
        """What is known of a node."""
        return self.standings.setdefault(node, Standing())

    def good(self, node: str) -> bool:
        """Whether a node is known to be good: it passed, nothing stands against it, and it is in no group that fails."""
        standing = self.standings.get(node)
        return standing is not None and standing.good and not (self.groups.active and self.groups.fails(node))

    def repairs(self, now: float) -> Iterator[Repair]:
        """What should be measured at once, the likeliest culprit first."""
        suspects = sorted(self.open, key=lambda node: (-self.score(node), self.standings[node].since or 0.0, node))
        places = max(8, int(MOST_SUSPECTS * len(self.standings)))
        if len(suspects) >= MANY and self._nothing_passes():
            places = MANY - sum(self.standings[node].tries for node in suspects)
        places -= sum(self.standings[node].asked is not None for node in suspects)
        for node in suspects:
            standing = self.standings[node]
            if places > 0 and standing.asked is None and standing.ask_at <= now and self._needs_more(node):
                places -= 1
                yield Repair(self.probe, node, f"{node}@{standing.since:.0f}", standing.tries + standing.unknowns,
                             f"failed with {', '.join(sorted(standing.bad))}", avoid=frozenset(standing.bad))
            elif standing.check_at <= now and standing.asked is None and (doubt := self._doubt(node, now)) is not None:
                yield doubt
        for pair, path in self.paths.items():
            if path.finding is None and path.asked is None and path.ask_at <= now \
                    and not any(node in self.open and not self.of(node).lonely for node in pair):
                yield Repair(self.probe, pair[0], f"{pair[0]}-{pair[1]}@{path.since:.0f}", path.failed + path.unknowns,
                             "do these two fail together again?", partner=pair[1])

    def started(self, repair: Repair, run_id: str) -> None:
        """A re-pairing runs as `run_id`."""
        self.asks += 1
        asker = self._asker(repair)
        if asker is not None:
            asker.asked = run_id
        if isinstance(asker, Standing):
            asker.stuck_at, asker.stalled, asker.lonely = None, False, False

    def unplaced(self, repair: Repair, lasting: bool, now: float) -> None:
        """A re-pairing found no place. With nobody to compare with (`lasting`, or for long) the pair itself is asked once more."""
        asker = self._asker(repair)
        if asker is None:
            return
        asker.ask_at = now + NO_PLACE_SECONDS
        if isinstance(asker, Path) or repair.suspect not in self.open:
            return
        asker.stuck_at = asker.stuck_at if asker.stuck_at is not None else now
        asker.stalled = lasting or now - asker.stuck_at > STALLED_SECONDS
        if lasting or now - asker.stuck_at > LONELY_SECONDS:
            asker.lonely, asker.ask_at = True, now + PAUSES[-1]
            for partner, failure in asker.bad.items():
                if self.of(partner).lonely or self.good(partner):
                    self.paths.setdefault(pair_of(repair.suspect, partner), Path(failure.started, failure.reason))
        self.touched.add(repair.suspect)

    def score(self, node: str) -> float:
        """Probability that the node is bad: 1 once it is named, 0 while nothing stands against it."""
        standing = self.standings.get(node)
        if standing is None or (standing.since is None and standing.finding is None):
            return 0.0
        return 1.0 if standing.finding is not None else node_score(self._chance(partner, node) for partner in standing.bad)

    def findings(self) -> list[Finding]:
        """Everything that is found: groups, then nodes and NICs, then paths and pairs."""
        found = [active.finding for active in self.groups.active.values()]
        found += [finding for node in sorted(self.named) if (finding := self.standings[node].finding) is not None]
        return found + [path.finding for path in self.paths.values() if path.finding is not None]

    # what to ask

    def agreeing(self, node: str) -> int:
        """Good partners that a suspect failed with. Those that are all on one other leaf count as one: it may be the path."""
        good = [partner for partner in self.standings[node].bad if self.good(partner)]
        own, leaves = self.groups.leaf(node), {self.groups.leaf(partner) for partner in good}
        if len(good) > 1 and own is not None and len(leaves) == 1 and leaves != {own} and None not in leaves and self.groups.leaves > 2:
            return 1
        return len(good)

    def unproven(self, node: str) -> tuple[Key, list[str]] | None:
        """A leaf or node group of a suspect that may be bad as a whole: nothing of it has passed since, though others of it are measured.

        Returns the key and those others.
        """
        since = self.standings[node].since or 0.0
        for key, others in self.groups.unproven(node, since):
            measured = [other for other in others if self._is_measured(other, since)]
            if len(measured) > 1:
                return key, measured
        return None

    def _is_measured(self, node: str, since: float) -> bool:
        """Whether a node is measured often enough to expect its next run soon. In the first half hour that is every node."""
        standing = self.standings.get(node)
        if standing is None or standing.good_at is None:
            return since - (self.began or since) < LONGEST_WAIT
        return standing.good_at > since - MEASURED_SECONDS

    def _doubt(self, node: str, now: float) -> Repair | None:
        """The run that tells a bad node from a bad leaf or node group: another node of it with a good one elsewhere."""
        standing = self.standings[node]
        since = standing.since or 0.0
        if self.agreeing(node) < GOOD_PARTNERS or now - since < DOUBT_SECONDS or self._nothing_passes():
            return None
        doubt = self.unproven(node)
        other = next((one for one in doubt[1] if self.good(one) and self.standings[one].asked is None), None) if doubt is not None else None
        if doubt is None or other is None:
            return None
        standing.check_at = now + DOUBT_SECONDS
        why = f"is it {node}, or all of its {doubt[0][0]}?"
        return Repair(self.probe, other, f"{node}@{since:.0f}/{doubt[0][0]}", int(now - since), why, avoid=frozenset({node, *doubt[1]}))

    def _needs_more(self, node: str) -> bool:
        """Whether one more run of this suspect tells something that is not on its way already."""
        standing = self.standings[node]
        if self.agreeing(node) >= GOOD_PARTNERS:
            return False
        return standing.tries == 0 or not any(self._will_tell(partner) for partner in standing.bad)

    def _nothing_passes(self) -> bool:
        """Whether no pair has passed since the first of the present suspects failed: then it may be all of them."""
        first: dict[str, float] = {}
        for node in self.open:
            group = self.comparable.get(node, "")
            first[group] = min(first.get(group, math.inf), self.standings[node].since or math.inf)
        return all(self.passed_at.get(group, 0.0) < since for group, since in first.items())

    def _will_tell(self, partner: str) -> bool:
        other = self.of(partner)
        return partner in self.open and (other.asked is not None or (other.tries == 0 and other.unknowns < 2 and not other.stalled))

    def _answered(self, seen: Observation) -> list[Standing | Path]:
        """Take the run off those that asked for it."""
        asked: list[Standing | Path] = [standing for node in seen.nodes if (standing := self.of(node)).asked == seen.run_id]
        path = self.paths.get(pair_of(seen.nodes[0], seen.nodes[1]))
        if path is not None and path.asked == seen.run_id:
            asked.append(path)
        for one in asked:
            one.asked = None
            if isinstance(one, Standing) and seen.outcome.conclusive:
                one.tries += 1
        return asked

    @staticmethod
    def _ask_later(unanswered: list[Standing | Path], now: float) -> None:
        for one in unanswered:
            one.ask_at = now + PAUSES[min(one.unknowns, len(PAUSES) - 1)]
            one.unknowns += 1

    def _asker(self, repair: Repair) -> Standing | Path | None:
        if repair.partner is not None:
            return self.paths.get(pair_of(repair.suspect, repair.partner))
        return self.standings.get(repair.suspect)

    def _chance(self, partner: str, without: str) -> float:
        """How likely the partner is the bad one, from what it did without `without`."""
        if partner in self.named:
            return 0.99
        return node_score([P_NODE_BAD] * len(set(self.of(partner).bad) - {without})) if partner in self.open else P_NODE_BAD

    def _others(self, node: str, without: str) -> bool:
        """Whether there is another node to compare with."""
        group = self.comparable.get(node)
        return any(other not in (node, without) and its == group for other, its in self.comparable.items())

    def dump(self) -> dict[str, Any]:
        """Everything but the standings of nodes, as JSON; see `Standing.dump` for those."""
        return {"paths": [[*pair, path.dump()] for pair, path in self.paths.items()], "groups": self.groups.dump(),
                "passed_at": dict(self.passed_at), "began": self.began}

    def load(self, data: Mapping[str, Any], standings: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in what was dumped. Raises KeyError, TypeError or ValueError when it is not usable; nothing is changed then."""
        paths = {(str(one), str(other)): Path.load(path) for one, other, path in data["paths"]}
        known = {node: Standing.load(dict(standing)) for node, standing in standings.items()}
        groups = Groups(self.groups.attributes, self.groups.sizes)
        groups.load(data["groups"])
        self.began = data["began"]
        self.passed_at = {str(group): float(at) for group, at in data["passed_at"].items()}
        self.paths, self.standings, self.groups = paths, known, groups
        self.open = {node for node, standing in known.items() if standing.suspect}
        self.named = {node for node, standing in known.items() if standing.finding is not None}
