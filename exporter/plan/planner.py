"""Who is measured now: one decision at a time, from the inventory, what runs, what localisation wants and what the journal remembers.

A decision takes what it plans at once: every run of it must be started, and its end told to `finished` (or `dropped`, when it never
started). One node never gets two runs, of whatever probe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exporter.config.planning import Planning
from exporter.inventory.model import Inventory, Node, group_of
from exporter.plan.book import NodeBook
from exporter.plan.budget import Books
from exporter.plan.cost import Cost
from exporter.plan.gates import Closed, Moment, closed
from exporter.plan.groups import Group, groups_of
from exporter.plan.journal import Journal
from exporter.plan.places import Places
from exporter.plan.planned import Decision, PlannedRun, World
from exporter.plan.probes import ProbePlan
from exporter.plan.singles import Singles
from exporter.plan.turn import Turn
from probes.reasons import Outcome, Reason

AUTO_CONCURRENCY = 64
LARGE = 500
"""Nodes of a group from which only one round begins in one decision; the next one begins in the decision after."""
FEW = 3
"""Nodes up to which one run at a time is enough."""
NEVER_LATER_THAN = 60.0
"""The planner wants to be asked at least this often, seconds."""
SHORTEST_WAIT = 1.0
"""And no sooner than this without an event, seconds."""
LEFT_SECONDS = 3600.0
"""How long a node that went missing is remembered: a kubelet that registers anew is the same node."""


@dataclass(frozen=True)
class Ended:
    """How a planned run ended, for the planner. `actual` is what it cost, None when that is not known."""

    run_id: str
    at: float
    outcome: Outcome
    reason: Reason
    actual: Cost | None = None


class Planner:
    """See the module. All methods belong to one thread."""

    def __init__(self, probes: Sequence[ProbePlan], settings: Planning, journal: Journal, inventory: Inventory, now: float) -> None:
        self.settings = settings
        self.journal = journal
        self.accounts = Books(settings.budget)
        self.books: dict[str, NodeBook] = {}
        self.flying: dict[str, PlannedRun] = {}
        self.inventory = Inventory()
        self.groups: dict[str, Group] = {}
        self.turns: dict[tuple[str, str], Turn] = {}
        self.newcomers: dict[str, dict[str, None]] = {}
        self.probes_by_name: dict[str, ProbePlan] = {}
        self._singles: dict[str, Singles] = {}
        self._standing: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._reconfigured = True
        self._members: dict[str, frozenset[str]] = {}
        self._changed: set[str] = set()
        self._resumed: set[tuple[str, str]] = set()
        for instance_id, record in journal.under("node/"):
            try:
                self.books[instance_id] = NodeBook.load(record)
            except (KeyError, TypeError, ValueError) as error:
                journal.problems.append(f"record node/{instance_id} is not usable, the node begins anew: {error!r}")
        for instance_id, book in self.books.items():
            self.accounts.load(instance_id, book.budget)
        self.configure(probes, settings)
        self.take_in(inventory, now)

    @property
    def probes(self) -> list[ProbePlan]:
        """What is planned, lowest layer first. (`probes_by_name` has them by name.)"""
        return list(self.probes_by_name.values())

    def configure(self, probes: Sequence[ProbePlan], settings: Planning) -> None:
        """Take in a new configuration. Rounds that go on keep their place; probes that are gone are forgotten."""
        self.settings = settings
        self.accounts.budget = settings.budget
        self.probes_by_name = {plan.name: plan for plan in sorted(probes, key=lambda plan: (plan.layer, plan.name))}
        for key in [key for key in self.turns if key[0] not in self.probes_by_name]:
            del self.turns[key]
        for (probe, _), turn in self.turns.items():
            turn.plan = self.probes_by_name[probe]
        self._singles = {plan.name: self._singles.get(plan.name, Singles(plan)).planned_by(plan)
                         for plan in self.probes_by_name.values() if plan.ranks == 1}
        self.newcomers = {plan.name: self.newcomers.get(plan.name, {}) for plan in self.probes_by_name.values() if plan.ranks == 2}
        self._reconfigured = True
        if self.inventory.nodes:
            inventory, self.inventory = self.inventory, Inventory()
            self.take_in(inventory, inventory.taken)

    def take_in(self, inventory: Inventory, now: float) -> None:
        """Take in who is there now. Joins and leaves change the circles at once, in mid-round as well."""
        if inventory is self.inventory:
            return
        self.inventory = inventory
        standing = {node.instance_id: (group_of(node), node.network_nodes) for node in inventory}
        if standing == self._standing and not self._reconfigured:
            self._rename(inventory)
            return
        self._standing, self._reconfigured = standing, False
        self.groups = groups_of(inventory)
        self._members = {key: frozenset(group.ids) for key, group in self.groups.items()}
        for node in inventory:
            book = self.books.get(node.instance_id)
            if book is None:
                book = self.books[node.instance_id] = NodeBook(node.name, now)
                self._write(node.instance_id)
            elif book.left is not None or book.name != node.name:
                book.left, book.name = None, node.name
                self._write(node.instance_id)
        for instance_id in [one for one in self.books if one not in inventory]:
            book = self.books[instance_id]
            if book.left is None:
                book.left = now
                self._write(instance_id)
            elif now - book.left > LEFT_SECONDS:
                del self.books[instance_id]
                self.accounts.forget(instance_id)
                self.journal.drop(f"node/{instance_id}")
        for plan in self.probes_by_name.values():
            if plan.ranks == 1:
                self._singles[plan.name].update(inventory, self.books, now)
            else:
                self._update_turns(plan)

    def _rename(self, inventory: Inventory) -> None:
        for node in inventory:
            book = self.books[node.instance_id]
            if book.name != node.name:
                book.name = node.name
                self._write(node.instance_id)

    def due(self, world: World) -> Decision:
        """The runs to start now. Re-pairings first, then new nodes and the rest of the rounds; never more than the concurrency allows."""
        self.take_in(world.inventory, world.now)
        places = Places(self, world)
        unplaced = [found for repair in world.repairs if (found := places.repair(repair)) is not None]
        # Preflights are many and short: they get half of the places while pairs wait for some.
        waiting = any(turn.queue or turn.may_begin(world.now) for turn in self.turns.values())
        for probe, single in self._singles.items():
            places.singles(self.probes_by_name[probe], single, math.ceil(places.free / 2) if waiting else places.free)
        for probe in self.newcomers:
            places.newcomers(self.probes_by_name[probe])
        begun = False
        for key, turn in self.turns.items():
            gate = places.gate(turn.plan)
            if key not in self._resumed:
                self._resumed.add(key)
                turn.resume(world.now, self.groups[key[1]], self.inventory, self.books, gate)
            if not begun and turn.may_begin(world.now) and not places.held(turn.plan):
                self._begin(key, turn, world.now, places)
                begun = len(self.groups[key[1]].ids) > LARGE
            turn.look_again(world.now, self.inventory, gate, places.busy)
        places.rounds()
        wake_at = self._wake(world.now) if places.free or begun else world.now + NEVER_LATER_THAN
        return Decision(tuple(places.runs), tuple(unplaced), wake_at)

    def finished(self, ended: Ended) -> PlannedRun | None:
        """A run of a decision has ended. Returns it; None for a run the planner does not know (a canary, another leader's)."""
        run = self.flying.pop(ended.run_id, None)
        if run is None:
            return None
        plan = self.probes_by_name.get(run.probe)
        for node in run.nodes:
            book = self.books.get(node.instance_id)
            if book is None:
                continue
            entry = book.entry(run.probe)
            if ended.outcome.conclusive:
                entry.measured = entry.verdict_at = ended.at
                entry.outcome, entry.reason = ended.outcome.value, ended.reason.value
                entry.unknowns, entry.unknown_reason = 0, None
                if run.stratum is not None:
                    entry.strata[run.stratum.value] = ended.at
            else:
                entry.unknowns += 1
                entry.unknown_reason = ended.reason.value
            if ended.actual is not None and plan is not None:
                self.accounts.settle(node, plan.cost, ended.actual, ended.at)
            self._write(node.instance_id)
        turn = self.turns.get((run.probe, run.group))
        if turn is not None and not ended.outcome.conclusive and run.why in ("round", "leftover"):
            turn.retry(run.ids, f"the last run could not measure ({ended.reason.value})")
        if run.probe in self._singles:
            for node in run.nodes:
                self._singles[run.probe].ended(node, ended, self.books)
        return run

    def adopt(self, run: PlannedRun) -> None:
        """A run that another leader or an earlier life started: its nodes are taken until it ends."""
        self.flying[run.run_id] = run

    def dropped(self, run_id: str, at: float) -> None:
        """A run of a decision was never started (the launcher or the loop refused it)."""
        self.finished(Ended(run_id, at, Outcome.UNKNOWN, Reason.LAUNCH_FAILED, Cost(0.0, 0.0, 0, 0, 0)))

    def sync(self) -> None:
        """Bring the records of nodes in the journal up to date."""
        for instance_id in self._changed:
            book = self.books.get(instance_id)
            if book is not None:
                book.budget = self.accounts.dump(instance_id)
                self.journal.put(f"node/{instance_id}", book.dump())
        self._changed.clear()

    def concurrency(self) -> int:
        """Probe runs at the same time: as configured, else what the rounds need to end within their spread, at most 64."""
        if self.settings.budget.concurrency is not None:
            return self.settings.budget.concurrency
        need = 0.0
        for plan in self.probes_by_name.values():
            runs = len(self.inventory) if plan.ranks == 1 else sum(len(group.ids) // 2 for group in self.groups.values())
            need += runs * plan.cost.wall / max(plan.interval * max(self.settings.spread, 0.1), 1.0)
        least = 2 if len(self.inventory) > FEW else 1  # a re-pairing must not have to wait for the round
        return max(least, min(AUTO_CONCURRENCY, math.ceil(need * 1.25)))

    def moment(self, world: World, plan: ProbePlan) -> Moment:
        """What the gates look at for one probe."""
        busy = {one: run.run_id for run in self.flying.values() for one in run.ids}
        return Moment(world.now, self.settings.gates, world.paused, world.quiet.get(plan.name), world.background, {**world.busy, **busy})

    def gates(self, world: World, node: Node, plan: ProbePlan, moment: Moment | None = None) -> list[Closed]:
        """Every closed gate of a node for a probe, the budget included. `moment` saves making it for each of many nodes."""
        found = closed(node, plan.needs, moment or self.moment(world, plan))
        spent = self.accounts.closed(node, plan.cost, world.now)
        return [*found, spent] if spent is not None else found

    def launch(self, run: PlannedRun, now: float) -> None:
        """Book a run as started at `now`."""
        self.flying[run.run_id] = run
        plan = self.probes_by_name[run.probe]
        for node in run.nodes:
            self.books[node.instance_id].entry(run.probe).tried = now
            self.newcomers.get(run.probe, {}).pop(node.instance_id, None)
            self.accounts.charge(node, plan.cost, now)
            self._write(node.instance_id)

    def _begin(self, key: tuple[str, str], turn: Turn, now: float, places: Places) -> None:
        group = self.groups[key[1]]
        turn.begin(now, group, self.inventory, self.books, places.gate(turn.plan), self.settings.stratum_interval)
        self.newcomers[turn.plan.name] = {one: None for one in self.newcomers[turn.plan.name] if one not in self._members[key[1]]}
        self._keep_places(turn)
        self.journal.put(f"round/{key[0]}/{key[1]}", turn.dump())

    def _update_turns(self, plan: ProbePlan) -> None:
        for key in [key for key in self.turns if key[0] == plan.name and key[1] not in self.groups]:
            del self.turns[key]
            self.journal.drop(f"round/{key[0]}/{key[1]}")
        for name, group in self.groups.items():
            turn = self.turns.get((plan.name, name))
            if turn is None:
                turn = self.turns[plan.name, name] = Turn(plan, name)
                record = self.journal.get(f"round/{plan.name}/{name}")
                if record is not None:
                    try:
                        turn.load(record, self.books, list(group.ids))
                    except (KeyError, TypeError, ValueError) as error:
                        self.journal.problems.append(f"record round/{plan.name}/{name} is not usable, its rounds begin anew: {error!r}")
                        turn = self.turns[plan.name, name] = Turn(plan, name)
            before = set(turn.circle.members)
            members = self._members[name]
            if turn.circle.update(members):
                turn.remove(before - members)
                self._keep_places(turn)
                if turn.started is not None:
                    self.journal.put(f"round/{plan.name}/{name}", turn.dump())
            for one in sorted(members - before):
                book = self.books[one]
                if turn.started is not None and book.first_seen > turn.started and book.entry(plan.name).tried is None:
                    self.newcomers[plan.name][one] = None
        for one in [one for one in self.newcomers[plan.name] if one not in self.inventory]:
            del self.newcomers[plan.name][one]

    def _keep_places(self, turn: Turn) -> None:
        if not turn.circle.moved:
            return
        turn.circle.moved = False
        probe = turn.plan.name
        placed: list[tuple[int | None, str]] = [(index, one) for index, one in enumerate(turn.circle.places) if one is not None]
        for index, one in placed + [(None, one) for one in turn.circle.extra]:
            entry = self.books[one].entry(probe)
            if entry.place != index:
                entry.place = index
                self._write(one)

    def keep_values(self, instance_id: str, probe: str, values: Any) -> None:
        """Keep what is published of a probe on a node, for whoever leads after a restart."""
        book = self.books.get(instance_id)
        if book is not None and probe in book.entries:
            book.entries[probe].values = values
            self._write(instance_id)

    def _write(self, instance_id: str) -> None:
        self._changed.add(instance_id)

    def _wake(self, now: float) -> float:
        """When something may start by the clock alone; ends of runs and changes of nodes come as events."""
        times = [now + NEVER_LATER_THAN]
        times += [turn.next_allowed(self.settings.spread, turn.plan.start_spread) if turn.queue else turn.due_at()
                  for turn in self.turns.values()]
        times += [single.next_due() for single in self._singles.values()]
        if any(self.newcomers.values()):
            times.append(now + NEVER_LATER_THAN / 4)
        return max(min(times), now + SHORTEST_WAIT)
