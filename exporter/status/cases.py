"""What localisation knows, as plain data with names of nodes: findings, and one case for each node and pair under suspicion.

Read from the localiser in the control loop's thread; what comes out belongs to nobody and is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from exporter.inventory.model import Inventory
from exporter.judge.casebook import GOOD_PARTNERS, Change
from exporter.judge.hypotheses import Finding, path_score
from exporter.judge.localise import Localiser
from exporter.judge.standing import weak_device
from exporter.judge.suspects import Suspects
from exporter.layers import LAYERS

MOST_CASES = 1000
"""Cases that are shown at most; the likeliest culprits first."""
MOST_FINDINGS = 1000
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")

Json = dict[str, Any]


@dataclass(frozen=True)
class Cases:
    """See the module. `left_out` counts what the bounds kept out."""

    findings: tuple[Json, ...] = ()
    nodes: tuple[Json, ...] = ()
    pairs: tuple[Json, ...] = ()
    left_out: int = 0

    def of_node(self, node: str, probe: str) -> Json | None:
        """The case of a node for a probe."""
        return self._by_node.get((node, probe))

    def of_pair(self, nodes: Iterable[str], probe: str) -> Json | None:
        """The case of a path between two nodes."""
        wanted = set(nodes)
        return next((case for case in self.pairs if set(case["nodes"]) == wanted and case["probe"] == probe), None)

    def findings_of(self, node: str, probe: str) -> list[Json]:
        """Findings that name a node, or a group that it has failed in."""
        return self._by_member.get((node, probe), [])

    def explaining(self, node: str, probe: str) -> Json | None:
        """The finding of a node in a lower layer, or of another probe of the same layer, that explains what `probe` sees of it."""
        layer = LAYERS.get(probe, len(LAYERS))
        return next((found for other in LAYERS for found in self.findings_of(node, other) if other != probe and LAYERS[other] <= layer
                     and found["kind"] in ("node", "nic")), None)

    @cached_property
    def _by_node(self) -> dict[tuple[str, str], Json]:
        return {(case["node"], case["probe"]): case for case in self.nodes}

    @cached_property
    def _by_member(self) -> dict[tuple[str, str], list[Json]]:
        found: dict[tuple[str, str], list[Json]] = {}
        for one in self.findings:
            for node in one["members"]:
                found.setdefault((node, one["probe"]), []).append(one)
        return found


class Reader:
    """Reads the localiser's state with names for instance ids. `inventory` None leaves the ids as they are."""

    def __init__(self, inventory: Inventory | None) -> None:
        self._inventory = inventory

    def name(self, instance_id: str) -> str:
        """The name of a node; its identity when it is gone."""
        node = self._inventory.get(instance_id) if self._inventory is not None else None
        return node.name if node is not None else instance_id

    def text(self, text: str) -> str:
        """The text with names for instance ids."""
        return _WORD.sub(lambda found: self.name(found[0]), text)

    def change(self, change: Change, at: float) -> Json:
        """Something that localisation has concluded at `at`."""
        finding = self.finding(change.finding) if change.finding is not None else None
        node = self.name(change.node) if change.node is not None else None
        return {"at": at, "what": change.what, "probe": change.probe, "node": node, "says": self.text(change.says), "finding": finding}

    def finding(self, finding: Finding, members: tuple[str, ...] = ()) -> Json:
        """One finding. `members` are the names of the nodes it is about."""
        subjects = finding.subjects
        inside: tuple[str, ...]
        if finding.kind == "nic":
            names, inside = [self.name(subjects[0]), subjects[1]], (self.name(subjects[0]),)
        elif finding.kind == "group" or subjects[0] == "link":
            names, inside = list(subjects), members
        else:
            names = [self.name(one) for one in subjects]
            inside = tuple(names)
        return {"kind": finding.kind, "probe": finding.probe, "subjects": names, "members": list(inside), "reason": finding.reason,
                "score": finding.score, "since": finding.since, "found": finding.found,
                "partners": [self.name(one) for one in finding.partners], "says": self.text(finding.says), "runs": finding.runs,
                "explained_by": self.text(finding.explained_by) if finding.explained_by else None}

    def read(self, localiser: Localiser, unplaced: Mapping[tuple[str, str], str], now: float) -> Cases:
        """Everything. `unplaced` says for probe and suspect (instance id) why its re-pairing found no place."""
        groups = {(active.finding.probe, active.finding.key): tuple(sorted(self.name(one) for one in active.failed))
                  for probe in localiser.probes for active in localiser.of(probe).groups.active.values()}
        found = [self.finding(one, groups.get((one.probe, one.key), ())) for one in localiser.findings()]
        nodes = [case for probe in localiser.probes for case in self._nodes(localiser, probe, unplaced, now)]
        pairs = [case for probe in localiser.probes for case in self._pairs(localiser.of(probe))]
        nodes.sort(key=lambda case: (-case["score"], case["probe"], case["node"]))
        left_out = max(0, len(found) - MOST_FINDINGS) + max(0, len(nodes) - MOST_CASES) + max(0, len(pairs) - MOST_CASES)
        return Cases(tuple(found[:MOST_FINDINGS]), tuple(nodes[:MOST_CASES]), tuple(pairs[:MOST_CASES]), left_out)

    def _nodes(self, localiser: Localiser, probe: str, unplaced: Mapping[tuple[str, str], str], now: float) -> Iterator[Json]:
        suspects = localiser.of(probe)
        for node in sorted(suspects.open | suspects.named):
            standing = suspects.standings[node]
            good = sorted(partner for partner in standing.bad if suspects.good(partner))
            below = localiser.explained(probe, node)
            yield {
                "probe": probe, "node": self.name(node), "state": "named" if standing.finding is not None else "suspect",
                "score": suspects.score(node), "since": standing.since,
                "failures": [{"partner": self.name(partner), "partner_state": _state(localiser, probe, partner),
                              "partner_score": suspects.score(partner), "at": failure.at, "reason": failure.reason,
                              "run_id": failure.run_id, "side": failure.side, "weak": list(failure.weak)}
                             for partner, failure in sorted(standing.bad.items())],
                "agree": [self.name(partner) for partner in good], "needed": GOOD_PARTNERS,
                "device": weak_device(standing, good),
                "asked": standing.asked, "repairs": standing.tries, "repairs_unknown": standing.unknowns, "ask_at": standing.ask_at or None,
                "no_place": unplaced.get((probe, node)), "alone": standing.lonely,
                "passed_with": [self.name(one) for one in standing.oks],
                "passes_needed": GOOD_PARTNERS + 2 * min(max(standing.named - 1, 0), 3) if standing.finding is not None else 1,
                "history": {"failed": standing.bits.bit_count(), "of": standing.seen},
                "holds_back": list(suspects.holds_back(node, now)) if standing.suspect else [],
                "explained_by": self.text(f"{below.probe}: {below.says or below.key}") if below is not None else None,
                "finding": self.finding(standing.finding) if standing.finding is not None else None,
            }

    def _pairs(self, suspects: Suspects) -> Iterator[Json]:
        for pair, path in suspects.paths.items():
            yield {"probe": suspects.probe, "nodes": [self.name(one) for one in pair], "since": path.since, "reason": path.reason,
                   "failed": path.failed, "passed": path.passed, "asked": path.asked, "needed": GOOD_PARTNERS,
                   "score": path_score(path.failed, path.passed),
                   "finding": self.finding(path.finding) if path.finding is not None else None}


def _state(localiser: Localiser, probe: str, node: str) -> str:
    return "good" if localiser.good(probe, node) else localiser.view(probe, node).state
