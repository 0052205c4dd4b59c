"""Localisation: from runs that fail to the node, NIC, path, pair or group that is bad, over all probes.

Each probe has suspects of its own (`exporter.judge.suspects`): an engine that is broken on one node says nothing about another engine. What
is found in a lower layer explains what is found of the same node above it, and a node that one engine has named is not asked about again
for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from exporter.inventory.model import Inventory, Node, group_of
from exporter.judge.casebook import Change
from exporter.judge.hypotheses import Finding
from exporter.judge.observation import Observation
from exporter.judge.suspects import Suspects
from exporter.layers import LAYERS
from exporter.repairs import Repair

SHARED = ("leaf", "spine", "zone", "nodegroup", "capacity_block", "placement_group", "instance_type")
"""What nodes may have in common that can be the fault of all of them."""


@dataclass(frozen=True)
class View:
    """What is to be shown of one node for one probe. `state` is `good`, `suspect`, `named`, `group`, `explained` or `unknown`.

    `explained`: its last run failed, and what another probe found of it explains that. `suspicion` is the probability that it is bad,
    0..1; `healthy` is None while that is not known. A pair that cannot be told apart is not healthy on either side.
    """

    state: str
    suspicion: float
    healthy: bool | None
    finding: Finding | None = None


class Localiser:
    """Localisation for every probe. All methods belong to one thread; nodes are instance ids throughout."""

    def __init__(self) -> None:
        self._probes: dict[str, Suspects] = {}
        self._attributes: dict[str, dict[str, str]] = {}
        self._comparable: dict[str, str] = {}

    def fleet(self, inventory: Inventory) -> list[Change]:
        """Take in who is there, with what nodes share and who can be compared with whom."""
        self._attributes = {node.instance_id: attributes_of(node) for node in inventory}
        self._comparable = {node.instance_id: group_of(node) for node in inventory}
        return [change for suspects in self._probes.values() for change in suspects.fleet(self._attributes, self._comparable)]

    @property
    def probes(self) -> list[str]:
        """The probes that anything is known of, lower layers first."""
        return sorted(self._probes, key=_layer)

    def explained(self, probe: str, node: str) -> Finding | None:
        """The finding of a lower layer, or of another probe of the same one, that explains what `probe` sees of a node."""
        return self._explained(probe, node, beside=True)

    def of(self, probe: str) -> Suspects:
        """The suspects of one probe."""
        if probe not in self._probes:
            suspects = Suspects(probe, explained=lambda node: self._explained(probe, node, beside=True) is not None)
            suspects.fleet(self._attributes, self._comparable)
            self._probes[probe] = suspects
        return self._probes[probe]

    def observe(self, seen: Observation) -> list[Change]:
        """Take in one judged run. Runs of more than two nodes clear those that pass and blame nobody."""
        nodes = set(seen.nodes)
        if not nodes <= self._attributes.keys():
            return []  # a node left while its run went on
        suspects = self.of(seen.probe)
        if len(nodes) == 1:
            return suspects.observe_one(seen)
        if len(nodes) == 2:
            return suspects.observe(seen)
        if not seen.outcome.conclusive or seen.bad:
            return []
        return [change for one, other in zip(seen.nodes, seen.nodes[1:] + seen.nodes[:1], strict=True) if one != other
                for change in suspects.observe(replace(seen, nodes=(one, other)))]

    def repairs(self, now: float) -> list[Repair]:
        """What should be measured at once: lower layers first, the likeliest culprit first."""
        return [repair for probe in sorted(self._probes, key=_layer) for repair in self._probes[probe].repairs(now)
                if not any(self._explained(probe, node, beside=True) for node in (repair.suspect, repair.partner) if node is not None)]

    def started(self, repair: Repair, run_id: str) -> None:
        """The planner found a place for a re-pairing; it runs as `run_id`."""
        self.of(repair.probe).started(repair, run_id)

    def unplaced(self, repair: Repair, lasting: bool, now: float) -> None:
        """The planner found no place; `lasting` when there is nobody to compare with."""
        self.of(repair.probe).unplaced(repair, lasting, now)

    def good(self, probe: str, node: str) -> bool:
        """Whether a node is known to be good for a probe, as a partner for a suspect has to be."""
        suspects = self._probes.get(probe)
        return suspects is not None and suspects.good(node) and not self._explained(probe, node, beside=True)

    def findings(self) -> list[Finding]:
        """Everything that is found, lower layers first; what a lower layer explains says so."""
        found: list[Finding] = []
        for probe in sorted(self._probes, key=_layer):
            for finding in self._probes[probe].findings():
                below = self._explained(probe, finding.subjects[0]) if finding.kind in ("node", "nic") else None
                found.append(replace(finding, explained_by=f"{below.probe}: {below.key}") if below is not None else finding)
        return found

    def view(self, probe: str, node: str) -> View:
        """What is to be shown of one node for one probe."""
        suspects = self._probes.get(probe)
        standing = suspects.standings.get(node) if suspects is not None else None
        if suspects is None or standing is None:
            return View("unknown", 0.0, None)
        if standing.finding is not None:
            return View("named", 1.0, False, standing.finding)
        for active in suspects.groups.active.values():
            if node in active.failed:
                return View("group", active.finding.score, False, active.finding)
        for pair, path in suspects.paths.items():
            if path.finding is not None and path.finding.kind == "pair" and node in pair:
                innocent = node in path.finding.partners
                return View("suspect", 0.0 if innocent else 1.0 / (2 - len(path.finding.partners)), innocent, path.finding)
        below = self._explained(probe, node, beside=True)
        if below is not None and standing.bits & 1:
            return View("explained", 0.0, False, below)
        if standing.since is not None:
            return View("suspect", suspects.score(node), None)
        return View("good", 0.0, True) if standing.good_at is not None else View("unknown", 0.0, None)

    def suspicion(self, node: str) -> float:
        """The highest probability, over all probes, that a node is bad."""
        return max((self.view(probe, node).suspicion for probe in self._probes), default=0.0)

    def explain(self, node: str) -> Iterator[str]:
        """Why the node stands where it stands, in sentences: partners, runs, scores, and what would change it."""
        for probe in sorted(self._probes, key=_layer):
            suspects = self._probes[probe]
            standing = suspects.standings.get(node)
            if standing is None:
                continue
            view = self.view(probe, node)
            head = f"{probe}: {view.state}, probability that it is bad {view.suspicion:.2f}"
            below = self._explained(probe, node)
            yield head + (f"; explained by {below.probe} ({below.says})" if below is not None else "")
            if view.finding is not None:
                yield f"  found at {view.finding.found:.0f}: {view.finding.says}"
            for partner, failure in sorted(standing.bad.items()):
                told = "good" if suspects.good(partner) else self.view(probe, partner).state
                yield f"  failed with {partner} ({told}) in run {failure.run_id}: {failure.reason}" + (
                    f"; {failure.side}" if failure.side else "")
            if standing.suspect:
                good = sum(suspects.good(partner) for partner in standing.bad)
                yield f"  {good} of 2 good partners agree so far; one run that passes clears it" + (
                    f"; run {standing.asked} asks another partner now" if standing.asked else "")
            elif standing.finding is not None:
                yield f"  it passed with {len(standing.oks)} partners since; two different ones clear its name"

    def touched(self) -> set[str]:
        """Nodes whose records changed since the last call."""
        found: set[str] = set()
        for suspects in self._probes.values():
            found |= suspects.touched
            suspects.touched.clear()
        return found

    def record(self, node: str) -> dict[str, Any]:
        """What is to be kept of one node, as JSON."""
        return {probe: suspects.standings[node].dump() for probe, suspects in sorted(self._probes.items()) if node in suspects.standings}

    def cases(self) -> dict[str, dict[str, Any]]:
        """What is to be kept beside the nodes, by probe, as JSON."""
        return {probe: suspects.dump() for probe, suspects in self._probes.items()}

    def load(self, cases: Mapping[str, Mapping[str, Any]], records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Take in what `cases` and `record` gave, before anything else. Returns what could not be used: that probe begins anew."""
        problems: list[str] = []
        kept = list(records)
        for probe, data in cases.items():
            try:
                self.of(probe).load(data, {node: record[probe] for node, record in kept if probe in record})
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                problems.append(f"the cases of probe {probe} are not usable, they begin anew: {error!r}")
        return problems

    def _explained(self, probe: str, node: str, *, beside: bool = False) -> Finding | None:
        """The finding of a lower layer that explains what `probe` sees of a node; with `beside` also that of another probe of its layer."""
        own = _layer(probe)[0]
        for other, suspects in self._probes.items():
            layer = _layer(other)[0]
            if other != probe and node in suspects.named and (layer < own or (beside and layer == own)):
                return suspects.standings[node].finding
        return None


def attributes_of(node: Node) -> dict[str, str]:
    """What a node may share with others. Every node of the fleet shares `fleet`."""
    found = {name: value for name in SHARED if (value := getattr(node, name)) is not None}
    return {**found, "fleet": "all"}


def _layer(probe: str) -> tuple[int, str]:
    return LAYERS.get(probe, len(LAYERS)), probe
