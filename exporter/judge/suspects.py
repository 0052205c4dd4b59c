"""The suspects of one probe: who is under suspicion, which re-pairing tells most, who is named, who is cleared.

The rules, in the words of the design:

- A pair that fails makes both nodes suspects, unless a finding explains it. A suspect is re-paired with a known-good node at once; the
  known-good partner of such a run does not become a suspect.
- A run that passes clears both of its nodes. A partner that is cleared in the meantime counts as a good one for the failure it shared.
- A node is named when its failures with two different good partners agree (partners that are all on one other leaf count as one: it may be
  the path), and something else has passed since it began to fail, something of its own leaf and node group included. Its other partners
  are exonerated. Two passed runs with different partners clear its name again.
- Most pairs of a leaf, node group or the fleet that fail in the same way at once are one finding (`exporter.judge.group`); bad paths
  between the same two leaves are one bad link.
- Two nodes that both pass elsewhere and fail together twice have a bad path between them.
- With nobody else to compare with, the finding is the pair; evidence of one side says which, or they are inseparable.
- `unknown` clears nobody and blames nobody; the question is asked again, with growing pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from exporter.judge.casebook import GOOD_PARTNERS, LONGEST_WAIT, CaseBook, Change
from exporter.judge.group import Active, Key
from exporter.judge.hypotheses import P_NODE_BAD, Finding, Kind, node_score, path_score
from exporter.judge.observation import Observation, Side
from exporter.judge.standing import Failure, Path, other_of, pair_of, weak_device

SURE = 0.95
"""Least score of a node that is named."""
FLAP_FAILURES = 4
"""Failures with different good partners, none of them persistent, that make a flapping node."""
FLAP_SHARE = 0.15
"""Least share of failed runs in a flapping node's recent history."""
FLAP_WINDOW = 86400.0
class Suspects(CaseBook):
    """See the module."""

    def observe(self, seen: Observation) -> list[Change]:
        """Take in one run of a pair. Returns what follows from it."""
        self._changes = []
        self.began = self.began if self.began is not None else seen.started
        unanswered = self._answered(seen)
        if not seen.outcome.conclusive:
            self._ask_later(unanswered, seen.finished)
        elif seen.bad:
            self._failed(seen, (seen.nodes[0], seen.nodes[1]))
        else:
            self._passed(seen, (seen.nodes[0], seen.nodes[1]))
        self.touched.update(seen.nodes)
        return self._changes

    def observe_one(self, seen: Observation) -> list[Change]:
        """Take in a run of a single node, which needs no partner to be believed."""
        self._changes = []
        node = seen.nodes[0]
        standing = self.of(node)
        if seen.bad:
            self._set_finding(node, "node", (node,), seen, 1.0, seen.message or seen.reason, found=standing.finding is None)
        elif seen.outcome.conclusive:
            standing.good_at = seen.finished
            if standing.finding is not None:
                self._unname(node, "it passes again")
        self.touched.add(node)
        return self._changes

    def fleet(self, attributes: Mapping[str, Mapping[str, str]], comparable: Mapping[str, str]) -> list[Change]:
        """Take in who is there. Nodes that left are forgotten, and so are the cases they were part of."""
        self._changes = []
        self.groups.fleet(attributes)
        grown = bool(set(attributes) - set(self.comparable))
        self.comparable = comparable
        for gone in [node for node in self.standings if node not in attributes]:
            del self.standings[gone]
            self.open.discard(gone)
            self.named.discard(gone)
        for pair in [pair for pair in self.paths if pair[0] not in attributes or pair[1] not in attributes]:
            del self.paths[pair]
        for node in sorted(self.open):
            standing = self.standings[node]
            for partner in [partner for partner in standing.bad if partner not in attributes]:
                del standing.bad[partner]
            if not standing.bad:
                self._close(node, "its partner left")
            elif grown and standing.lonely:
                standing.lonely, standing.stalled, standing.stuck_at, standing.ask_at = False, False, None, 0.0
        for pair, path in [*self.paths.items()] if grown else ():
            if path.finding is not None and path.finding.kind == "pair":
                self._reopen(pair, path)
        return self._changes

    def _reopen(self, pair: tuple[str, str], path: Path) -> None:
        """There is a third node now: the case of a pair can be settled."""
        del self.paths[pair]
        self._changes.append(Change("over", self.probe, finding=path.finding, says="another node can be compared with now"))
        for node in pair:
            if node not in self.open and node not in self.named:
                self._open(node, path.since, f"failed with {other_of(pair, node)}: {path.reason}")
            if node in self.open:
                self.of(node).blame(other_of(pair, node), Failure(path.since, path.since, path.reason, ""))

    # what a run means

    def _failed(self, seen: Observation, pair: tuple[str, str]) -> None:
        for node in pair:
            self.of(node).note(failed=True)
        known = [node for node in pair if node in self.named]
        for node in known:
            self._blame(node, pair, seen)
        if known or any(self.explained(node) for node in pair):
            return
        path = self.paths.get(pair_of(*pair))
        if path is not None:
            path.failed += 1
            if path.finding is not None or self._found_path(pair_of(*pair), path, seen):
                return
        covering = self.groups.covering(pair, seen.reason)
        if covering is not None:
            covering.failed.update(node for node in pair if covering.finding.subjects in self.groups.of(node))
            covering.last.append(False)
            return
        suspected = [node for node in pair if node in self.open]
        lone = len(suspected) == 1 and self.good(other_of(pair, suspected[0]))
        if not suspected:
            self.groups.note(pair, seen.started, seen.reason)
        for node in suspected if lone else pair:
            self._suspect(node, pair, seen)
        grouped = self.groups.judge(self.probe, pair, seen.finished, self._passed_since)
        if grouped is not None:
            self._found_group(*grouped)
            return
        for node in pair:
            self._evaluate(node, seen.finished)

    def _passed(self, seen: Observation, pair: tuple[str, str]) -> None:
        group = self.comparable.get(pair[0], "")
        self.passed_at[group] = max(seen.started, self.passed_at.get(group, 0.0))
        for finding in self.groups.passed(pair, seen.started):
            self._changes.append(Change("over", self.probe, finding=finding, says="most runs that touch it pass again"))
        path = self.paths.get(pair_of(*pair))
        if path is not None:
            path.passed += 1
            if path.finding is None or path.passed >= GOOD_PARTNERS:
                self._path_over(pair_of(*pair), path, seen.finished)
        if not seen.repair:
            self.groups.note(pair, seen.started, None)
        for node in pair:
            standing = self.of(node)
            standing.note(failed=False)
            standing.good_at = seen.finished
            if node in self.open:
                standing.bad.pop(other_of(pair, node), None)
            if node in self.named:
                self._passed_though_named(node, other_of(pair, node), seen.finished)
        for node in pair:
            if node in self.open:
                self._clear(node, f"passed with {other_of(pair, node)}")
        for node in sorted(self.open):
            self._evaluate(node, seen.finished)

    def _suspect(self, node: str, pair: tuple[str, str], seen: Observation) -> None:
        if node not in self.open:
            self._open(node, seen.started, f"failed with {other_of(pair, node)}: {seen.reason}")
        self._blame(node, pair, seen)

    def _open(self, node: str, since: float, says: str) -> None:
        standing = self.of(node)
        standing.clear()
        standing.since = since
        self.open.add(node)
        self.touched.add(node)
        self._changes.append(Change("suspected", self.probe, node, says=says))

    def _close(self, node: str, says: str) -> None:
        self.of(node).clear()
        self.open.discard(node)
        self.touched.add(node)
        self._changes.append(Change("cleared", self.probe, node, says=says))

    def _blame(self, node: str, pair: tuple[str, str], seen: Observation) -> None:
        side = next((side.says for side in seen.sides if side.node == node), None)
        failure = Failure(seen.finished, seen.started, seen.reason, seen.run_id, seen.weak.get(node, ()), side)
        self.of(node).blame(other_of(pair, node), failure)

    def _clear(self, node: str, says: str) -> None:
        """The node is good. What failed with it now speaks against its partners, or against the path."""
        shared = dict(self.of(node).bad)
        self._close(node, says)
        for partner, failure in shared.items():
            if partner in self.named or partner in self.open:
                continue
            if (self.of(partner).good_at or 0.0) > failure.at:
                self.paths.setdefault(pair_of(node, partner), Path(failure.started, failure.reason))
            else:
                # It was taken for good and has not passed since: now it is the one to look at.
                self._open(partner, failure.started, f"failed with {node}, which is good")
                self.of(partner).blame(node, Failure(failure.at, failure.started, failure.reason, failure.run_id))

    def holds_back(self, node: str, at: float) -> Iterator[str]:
        """What of the rule for naming a suspect does not hold yet, in words; nothing when it is to be named."""
        standing = self.of(node)
        good = self.agreeing(node)
        since = standing.since or 0.0
        if good < GOOD_PARTNERS:
            yield f"{good} of {GOOD_PARTNERS} good partners agree"
        elif self.score(node) < SURE:
            yield f"the probability that it is bad is {self.score(node):.3f}, {SURE} is needed"
        if self.passed_at.get(self.comparable.get(node, ""), 0.0) < since:
            yield "no pair of comparable nodes has passed since it began to fail: it may be all of them"
        elif at - since < LONGEST_WAIT and (doubt := self.unproven(node)) is not None:
            (name, value), _ = doubt
            yield f"nothing of its {name} {value} has passed since it began to fail: it may be all of it"

    def _evaluate(self, node: str, at: float) -> None:
        """Name a suspect when the rule holds. While nothing has passed since it began to fail, it may be all of them."""
        if node in self.open and next(self.holds_back(node, at), None) is None:
            self._name(node, at, [partner for partner in self.of(node).bad if self.good(partner)])

    def _name(self, node: str, at: float, good: list[str], says: str = "") -> None:
        standing = self.of(node)
        device = weak_device(standing, good)
        sides = sorted({failure.side for failure in standing.bad.values() if failure.side})
        text = says or f"failed with {len(good)} good partners ({', '.join(sorted(good)[:4])})"
        if device is not None:
            text += f"; device {device} carried too little each time"
        elif sides:
            text += f"; {sides[0]}"
        last = max(standing.bad.values(), key=lambda failure: failure.at)
        standing.finding = Finding("nic" if device else "node", self.probe, (node, device) if device else (node,), last.reason,
                                   node_score([P_NODE_BAD] * len(good)), standing.since or at, at, tuple(sorted(good)), text,
                                   standing.tries)
        standing.oks, standing.asked = [], None
        standing.named += 1
        self.open.discard(node)
        self.named.add(node)
        self.touched.add(node)
        self._changes.append(Change("found", self.probe, node, standing.finding, text))
        for partner in list(standing.bad):
            self._exonerate(partner, node, at)
        for pair in [pair for pair in self.paths if node in pair]:
            self._path_over(pair, self.paths[pair], at, explained=True)

    def _set_finding(self, node: str, kind: Kind, subjects: tuple[str, ...], seen: Observation, score: float, says: str, *,
                     found: bool) -> None:
        standing = self.of(node)
        since = seen.started if standing.finding is None else standing.finding.since
        at = seen.finished if standing.finding is None else standing.finding.found
        standing.finding = Finding(kind, self.probe, subjects, seen.reason, score, since, at, says=says)
        self.named.add(node)
        if found:
            self._changes.append(Change("found", self.probe, node, standing.finding, says))

    def _unname(self, node: str, says: str) -> None:
        standing = self.of(node)
        finding, standing.finding, standing.oks = standing.finding, None, []
        standing.clear()
        self.named.discard(node)
        self.touched.add(node)
        self._changes.append(Change("over", self.probe, node, finding, says))

    def _exonerate(self, partner: str, culprit: str, at: float) -> None:
        """What `partner` failed at is explained by `culprit`: nothing is left against it unless it failed with others."""
        if partner not in self.open:
            return
        self.of(partner).bad.pop(culprit, None)
        if not self.of(partner).bad:
            self._close(partner, f"its failure is explained by {culprit}")
        else:
            self._evaluate(partner, at)

    def _passed_though_named(self, node: str, partner: str, at: float) -> None:
        standing = self.of(node)
        if partner not in standing.oks or not self._others(node, partner):
            standing.oks.append(partner)
        # A node that was named again and again has to pass longer.
        if len(standing.oks) >= GOOD_PARTNERS + 2 * min(standing.named - 1, 3):
            self._unname(node, f"passed {len(standing.oks)} times since, last at {at:.0f}")

    # paths, pairs and groups

    def _found_path(self, pair: tuple[str, str], path: Path, seen: Observation) -> bool:
        """Whether a pair that fails again is a finding of its own. Not while one of its nodes is a suspect for other failures."""
        if path.failed < GOOD_PARTNERS or any(set(self.of(node).bad) - set(pair) for node in pair if node in self.open):
            return False
        kind: Kind = "path"
        innocent: tuple[str, ...] = ()
        says = "both nodes pass with others and fail together: look at what lies between them"
        if any(self.of(node).lonely for node in pair):
            kind = "pair"
            told = list(seen.sides) or [Side(node, failure.side) for node in pair for failure in self.of(node).bad.values() if failure.side]
            says = "which of the two it is cannot be told: there is no third node to compare with"
            if len({side.node for side in told}) == 1:
                says = f"it is {told[0].node}: {told[0].says}"
                innocent = (other_of(pair, told[0].node),)
        for node in pair:
            if node in self.open:
                self._close(node, "the finding is the pair")
        path.finding = Finding(kind, self.probe, pair, seen.reason, path_score(path.failed, path.passed), path.since, seen.finished,
                               innocent, says=says, runs=path.failed - 1)
        path.asked, path.passed = None, 0
        self._changes.append(Change("found", self.probe, finding=path.finding, says=says))
        if kind == "path":
            self._found_link(pair, path)
        return True

    def _path_over(self, pair: tuple[str, str], path: Path, at: float, explained: bool = False) -> None:
        del self.paths[pair]
        if path.finding is not None:
            says = "a node of it explains it" if explained else "it passes again"
            self._changes.append(Change("over", self.probe, finding=path.finding, says=says))
        elif not explained:
            # It failed once and nothing explains it: many such failures of one node make it a flapping one.
            for node in pair:
                self._flapped(node, other_of(pair, node), at)

    def _flapped(self, node: str, partner: str, at: float) -> None:
        standing = self.of(node)
        standing.flaps = {one: when for one, when in standing.flaps.items() if when > at - FLAP_WINDOW}
        standing.flaps[partner] = at
        good = [one for one in standing.flaps if self.good(one) and len(self.of(one).flaps) < FLAP_FAILURES]
        if standing.good and len(good) >= FLAP_FAILURES and standing.failing_share >= FLAP_SHARE:
            standing.since = at
            standing.bad = {one: Failure(standing.flaps[one], standing.flaps[one], "flapping", "") for one in good}
            standing.flaps = {}
            self._name(node, at, good, f"fails now and then: {standing.bits.bit_count()} of its last {standing.seen} runs, "
                                       f"with {len(good)} different good partners")

    def _found_link(self, pair: tuple[str, str], path: Path) -> None:
        """Two bad paths between the same two leaves are one bad link between the leaves."""
        key = self.groups.link(pair)
        same = [one for one, other in self.paths.items() if other.finding is not None and other.finding.kind == "path"
                and self.groups.link(one) == key]
        if key is None or len(same) < 2 or path.finding is None:
            return
        nodes = tuple(sorted({node for one in same for node in one}))
        says = f"{len(same)} pairs between these leaves fail although their nodes pass elsewhere: look at what lies between the leaves"
        finding = replace(path.finding, subjects=key, partners=nodes, says=says, runs=sum(self.paths[one].failed - 1 for one in same))
        self.groups.active[key] = Active(finding, set(nodes))
        for one in same:
            over = self.paths.pop(one).finding
            self._changes.append(Change("over", self.probe, finding=over, says="the link between their leaves explains it"))
        self._changes.append(Change("found", self.probe, finding=finding, says=says))

    def _found_group(self, key: Key, active: Active) -> None:
        for smaller in [one for one in self.groups.active if one != key and self.groups.inside(one, key)]:
            part = self.groups.active.pop(smaller)
            active.failed |= part.failed
            self._changes.append(Change("over", self.probe, finding=part.finding, says=f"{key[0]} {key[1]} explains it"))
        self.groups.active[key] = active
        self._changes.append(Change("found", self.probe, finding=active.finding, says=active.finding.says))
        inside = {node for node in self.open | self.named if key in self.groups.of(node)}
        for node in sorted(inside):
            finding = self.of(node).finding
            if node in self.open:
                self._close(node, "the group explains it")
            elif finding is not None and finding.reason == active.finding.reason and finding.since >= active.finding.since - 1:
                self._unname(node, "the group explains it")
            else:
                continue
            active.failed.add(node)
        for node in sorted(self.open):
            for member in inside.intersection(self.of(node).bad):
                self._exonerate(node, member, active.finding.found)

    def _passed_since(self, node: str, at: float) -> bool:
        standing = self.standings.get(node)
        return standing is not None and standing.good and (standing.good_at or 0.0) > at

