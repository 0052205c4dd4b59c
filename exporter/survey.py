"""What is published of the fleet as a whole, looked at now and then: closed gates, coverage, suspicion, findings.

Everything is read in the control loop's thread, so each look is bounded: the gates of at most `NODES_AT_ONCE` nodes in `PACE_SECONDS`, one
pass over the books of all nodes in `COVERAGE_SECONDS`. In a fleet of 10,000 nodes the gates of one node are up to a minute old.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from exporter.config import Config
from exporter.config.quiet import holding
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory
from exporter.judge.localise import Localiser
from exporter.plan.coverage import covered
from exporter.plan.gates import FirstClosed, Moment, Stay, closed
from exporter.plan.planner import Planner
from exporter.plan.probes import ProbePlan
from exporter.publish.publisher import Publisher
from exporter.publish.surveyed import Covered, Surveyed

PACE_SECONDS = 5.0
NODES_AT_ONCE = 1000
COVERAGE_SECONDS = 30.0
MOST_SUSPECTS = 1000
"""Suspects that are shown at most, the likeliest first."""
KINDS = ("node", "nic", "path", "pair", "group")


class Survey:
    """Looks at a fleet and tells the publisher. `pace` is the least number of seconds between two looks."""

    def __init__(self, publisher: Publisher, *, pace: float = PACE_SECONDS) -> None:
        self._publisher = publisher
        self._pace = pace
        self._fleet: Fleet | None = None
        self._next = 0
        self._whole = False
        self._lasting: dict[str, set[str]] = {}
        self._shut: set[str] = set()
        self._looked = self._covered = -math.inf
        self._held: dict[str, bool] = {}

    def turn(self, at: float, config: Config, fleet: Fleet | None, *, held: Mapping[str, bool], background: Mapping[str, float]) -> bool:
        """Look when it is time to, and say whether it was. `held` says which gates hold back every probe now, beside quiet windows."""
        changed = fleet is not self._fleet
        # A clock that was set back must not silence the survey.
        if not changed and dict(held) == self._held and 0 <= at - self._looked < self._pace:
            return False
        self._looked, self._held = at, dict(held)
        gates: dict[str, Sequence[str]] = {}
        if changed:
            gates = dict.fromkeys(self._shut, ())
            self._fleet, self._next, self._whole, self._covered = fleet, 0, False, -math.inf
            self._lasting, self._shut = {}, set()
        shown = {**held, "quiet": _all_quiet(config, at)}
        if fleet is None:
            self._publisher.surveyed(Surveyed(at, gates, shown, (), {}, {}) if changed else Surveyed(at, gates, shown))
            return True
        gates |= self._gates(fleet.planner, at, background)
        coverage: Sequence[Covered] | None = () if changed else None
        if self._whole and not 0 <= at - self._covered < max(COVERAGE_SECONDS, self._pace):
            self._covered = at
            coverage = _coverage(fleet.planner, self._lasting, at, config.metrics.node_interval)
        self._publisher.surveyed(Surveyed(at, gates, shown, coverage, _suspicion(fleet.localiser, fleet.planner.inventory),
                                          _findings(fleet)))
        return True

    def _gates(self, planner: Planner, at: float, background: Mapping[str, float]) -> dict[str, Sequence[str]]:
        """Closed gates of the next few nodes. A pause, quiet windows and our own runs are no gates of a node; others' runs are."""
        nodes = planner.inventory.nodes
        if self._next >= len(nodes):
            self._next = 0
        part = nodes[self._next:self._next + NODES_AT_ONCE]
        self._next += len(part)
        moment = Moment(at, planner.settings.gates, background=background)
        plans = planner.probes
        first = {plan.name: FirstClosed(plan.needs, moment) for plan in plans}
        ours = {one for run in planner.flying.values() for one in run.ids}
        found: dict[str, Sequence[str]] = {}
        for node in part:
            one, names = node.instance_id, []
            for plan in plans:
                spent = planner.accounts.closed(node, plan.cost, at)
                shut = closed(node, plan.needs, moment) if first[plan.name](node) is not None else []
                names += [gate.gate for gate in (*shut, *((spent,) if spent is not None else ()))
                          if gate.gate != "busy" or one not in ours]
                lasting = self._lasting.setdefault(plan.name, set())
                if any(gate.stay is Stay.LASTING for gate in shut):
                    lasting.add(one)
                else:
                    lasting.discard(one)
            found[node.name] = tuple(dict.fromkeys(names))
            if names:
                self._shut.add(node.name)
            else:
                self._shut.discard(node.name)
        self._whole = self._whole or self._next >= len(nodes)
        return found


def _coverage(planner: Planner, lasting: Mapping[str, set[str]], at: float, node_interval: float) -> list[Covered]:
    def within(plan: ProbePlan) -> float:
        # A node's turn may come early in one round and late in the next one.
        return max(node_interval, 2 * plan.interval)

    return [Covered(one.probe, one.stratum, one.nodes, one.measured, one.lasting, at - one.oldest if one.oldest is not None else None)
            for one in covered(planner, lasting, at, within)]


def _suspicion(localiser: Localiser, inventory: Inventory) -> dict[str, float]:
    """The probability of each suspect by node name: of those under suspicion, named, or in a pair that is a finding."""
    suspects: set[str] = set()
    for probe in localiser.probes:
        book = localiser.of(probe)
        suspects |= book.open | book.named
        for pair, path in book.paths.items():
            if path.finding is not None and path.finding.kind == "pair":
                suspects.update(pair)
    found = {node.name: localiser.suspicion(one) for one in suspects if (node := inventory.get(one)) is not None}
    if len(found) <= MOST_SUSPECTS:
        return found
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:MOST_SUSPECTS])


def _findings(fleet: Fleet) -> dict[tuple[str, str], int]:
    counted = Counter((str(found.kind), found.probe) for found in fleet.localiser.findings() if found.explained_by is None)
    return {**{(kind, plan.name): 0 for plan in fleet.plans for kind in KINDS}, **counted}


def _all_quiet(config: Config, at: float) -> bool:
    """Whether every enabled probe is in a quiet window."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    quiet = [holding(probe.schedule.when(config.schedule).quiet, moment) is not None for _, probe in config.probes.items() if probe.enabled]
    return bool(quiet) and all(quiet)
