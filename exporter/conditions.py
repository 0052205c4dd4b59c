"""The condition `EfaFabricHealthy` on nodes: who should have which, and a breaker that keeps us from flagging half of a cluster.

Pure decisions here; `exporter.flags` writes them. A node is flagged (False) when localisation has named it, and unflagged only after a run
of the probe that named it has passed since. Nothing is ever cordoned, drained, tainted or labelled. A condition that somebody else changed
is left as it is until our own word on the node changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from exporter.config.conditions import Conditions as Settings
from exporter.fleet import Fleet
from exporter.inventory.model import Fabric, Node

MESSAGE_LIMIT = 900
HEALTHY = "Measured"
_NAMED, _GROUP = "NamedBy", "GroupFoundBy"
_OURS = re.compile(rf"({_NAMED}|{_GROUP})([A-Za-z]+)|{HEALTHY}")


@dataclass(frozen=True)
class Standing:
    """What is known of one node. `bad` is the probe, kind and evidence of what speaks against it, None when nothing does.

    `passed` is the end of the last run that passed, by probe, Unix seconds; `suspects` the probes that suspect it now.
    """

    name: str
    instance_id: str
    fabric: Fabric | None
    bad: tuple[str, Literal["named", "group"], str] | None = None
    passed: Mapping[str, float] = field(default_factory=dict)
    suspects: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Change:
    """A condition to be written. `flags` whether it is one that flags a node or takes the flag away: such get an Event."""

    name: str
    instance_id: str
    status: Literal["True", "False"]
    reason: str
    message: str
    flags: bool


@dataclass(frozen=True)
class Decision:
    """What to write now; nodes that the breaker holds back, and whether it is open; nodes that are flagged by our word."""

    changes: tuple[Change, ...]
    held: tuple[str, ...]
    open: bool
    flagged: tuple[str, ...]


def standings(fleet: Fleet, on: Iterable[str]) -> list[Standing]:
    """What localisation knows of every node, in the control loop's thread. `on` is `named`, `group` or both."""
    localiser = fleet.localiser
    bad: dict[str, tuple[str, Literal["named", "group"], str]] = {}
    for finding in localiser.findings():
        if finding.kind in ("node", "nic") and "named" in on and finding.explained_by is None:
            what = f" {finding.subjects[1]}" if finding.kind == "nic" else ""
            agree = ", ".join(_names(fleet, finding.partners)) or "none"
            told = (f"{finding.probe}: {finding.kind}{what}: {finding.reason}, {finding.says} (probability {finding.score:.3f}, "
                    f"partners that agree: {agree}, {finding.runs} re-pairings)")
            bad.setdefault(finding.subjects[0], (finding.probe, "named", told))
        elif finding.kind == "group" and "group" in on:
            for partner in finding.partners:
                bad.setdefault(partner, (finding.probe, "group", f"{finding.probe}: {' '.join(finding.subjects)}: {finding.says}"))
    found = []
    for node in fleet.planner.inventory:
        passed, suspects = {}, set()
        for probe in localiser.probes:
            standing = localiser.of(probe).standings.get(node.instance_id)
            if standing is not None:
                if standing.good_at is not None:
                    passed[probe] = standing.good_at
                if standing.since is not None or standing.finding is not None:
                    suspects.add(probe)
        found.append(_standing(node, bad.get(node.instance_id), passed, frozenset(suspects)))
    return found


class Decider:
    """Who is to have which condition. Keeps what was flagged lately, for the breaker, and our last word on each node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._flagged_at: dict[str, float] = {}
        self._said: dict[str, tuple[str, str]] = {}
        """Our last word by instance id: status and reason."""
        self._since: dict[str, float] = {}
        """When a node that is flagged was flagged."""

    def turn(self, now: float, nodes: Sequence[Standing]) -> Decision:
        """Decide at `now` (Unix seconds). Whoever reads it writes the changes; `wrote` says what was."""
        there = {one.instance_id for one in nodes}
        for known in (self._flagged_at, self._said, self._since):
            for gone in known.keys() - there:
                del known[gone]
        for one in nodes:
            self._meet(one, now)
        allowed = max(self._settings.least, int(self._settings.share * len(nodes)))
        flagged = {one.instance_id for one in nodes if self._flagged(one)}
        lately = flagged | {node for node, at in self._flagged_at.items() if now - at < self._settings.window}
        changes: list[Change] = []
        held: list[str] = []
        for one in sorted(nodes, key=lambda one: one.name):
            change = self._wish(one)
            if change is None:
                continue
            if change.status == "False" and one.instance_id not in flagged:
                if one.instance_id not in lately and len(lately) >= allowed:
                    held.append(one.name)
                    continue
                lately.add(one.instance_id)
            changes.append(change)
        return Decision(tuple(changes), tuple(held), bool(held), tuple(sorted(one.name for one in nodes if self._flagged(one))))

    def wrote(self, change: Change, now: float) -> None:
        """A change was written."""
        self._said[change.instance_id] = (change.status, change.reason)
        if change.status == "False":
            self._flagged_at[change.instance_id] = self._since[change.instance_id] = now

    def foreign(self, one: Standing) -> bool:
        """Whether somebody else has the last word on this node's condition, removed it included."""
        said = self._said.get(one.instance_id)
        if one.fabric is None:
            return said is not None
        if said is not None:
            return (one.fabric.status, one.fabric.reason) != said
        return _OURS.fullmatch(one.fabric.reason) is None

    def _meet(self, one: Standing, now: float) -> None:
        """A condition of ours that an earlier process wrote is our word, too."""
        if one.instance_id in self._said or one.fabric is None or _OURS.fullmatch(one.fabric.reason) is None:
            return
        self._said[one.instance_id] = (one.fabric.status, one.fabric.reason)
        if one.fabric.status == "False":
            self._flagged_at[one.instance_id] = self._since[one.instance_id] = min(one.fabric.since, now)

    def _flagged(self, one: Standing) -> bool:
        return one.fabric is not None and one.fabric.status == "False" and not self.foreign(one)

    def _wish(self, one: Standing) -> Change | None:
        """What to write of a node, None for nothing."""
        said = self._said.get(one.instance_id)
        status = said[0] if said is not None else one.fabric.status if one.fabric is not None and self.foreign(one) else None
        if one.bad is not None:
            probe, kind, message = one.bad
            reason = f"{_NAMED if kind == 'named' else _GROUP}{camel(probe)}"
            if said is not None and said[0] == "False":
                return None  # flagged already: the first reason stays until it is over
            if said is None and status == "False":
                return None  # somebody else says the same
            return Change(one.name, one.instance_id, "False", reason, message[:MESSAGE_LIMIT], True)
        if said is not None and said[0] == "False":
            over = next((name for name in one.passed if said[1].endswith(camel(name))), None)
            if over is None or one.passed[over] <= self._since.get(one.instance_id, 0.0) or over in one.suspects:
                return None
            if self.foreign(one):
                # Over for us; what somebody else wrote stays, until the node is bad again.
                del self._said[one.instance_id]
                return None
            return Change(one.name, one.instance_id, "True", HEALTHY, f"{over} has passed again since the node was flagged", True)
        if said is None and status is None and one.passed and not one.suspects:
            return Change(one.name, one.instance_id, "True", HEALTHY, f"passed: {', '.join(sorted(one.passed))}", False)
        return None


def camel(probe: str) -> str:
    """`uccl-ep` as `UcclEp`: reasons of conditions are in camel case."""
    return "".join(part.capitalize() for part in re.split(r"[^A-Za-z0-9]+", probe))


def _standing(node: Node, bad: tuple[str, Literal["named", "group"], str] | None, passed: Mapping[str, float],
              suspects: frozenset[str]) -> Standing:
    return Standing(node.name, node.instance_id, node.fabric, bad, passed, suspects)


def _names(fleet: Fleet, ids: Sequence[str]) -> list[str]:
    return [node.name if (node := fleet.planner.inventory.get(one)) is not None else one for one in ids]
