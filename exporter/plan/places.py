"""One decision in the making: which places and nodes are free, which gates are closed, and which run goes where."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from exporter.inventory.model import Node, Stratum, group_of, stratum_of
from exporter.plan.gates import Closed, FirstClosed, Moment
from exporter.plan.planned import PlannedRun, Unplaced, Why, World, run_name
from exporter.plan.probes import ProbePlan
from exporter.plan.singles import Singles
from exporter.plan.turn import Turn, Waiting
from exporter.repairs import Repair

if TYPE_CHECKING:
    from exporter.plan.planner import Planner

CHOICE = 24
"""So many partners are compared before one is taken."""
LOOK = 1024
"""And so many nodes are looked at for them."""


class Places:
    """The free places of one moment. `runs` is what was decided so far, `free` how many more may start."""

    def __init__(self, planner: Planner, world: World) -> None:
        self.runs: list[PlannedRun] = []
        self.free = max(planner.concurrency() - max(world.running, len(planner.flying)), 0)
        self._planner = planner
        self._world = world
        self._taken = set(world.busy) | {one for run in planner.flying.values() for one in run.ids}
        self._repairing = sum(run.why == "suspect" for run in planner.flying.values())
        self._gates: dict[str, Callable[[Node], Closed | None]] = {}

    def busy(self, instance_id: str) -> bool:
        """Whether a run is on the node or was just put there."""
        return instance_id in self._taken

    def held(self, plan: ProbePlan) -> bool:
        """Whether nothing of this probe may start now, wherever."""
        return self._world.paused is not None or plan.name in self._world.quiet

    def gate(self, plan: ProbePlan) -> Callable[[Node], Closed | None]:
        """The first closed gate of a node for `plan`, each looked at once in a decision. Our own runs are not looked at: see `busy`."""
        if plan.name not in self._gates:
            world = self._world
            moment = Moment(world.now, self._planner.settings.gates, world.paused, world.quiet.get(plan.name), world.background)
            seen: dict[str, Closed | None] = {}
            first = FirstClosed(plan.needs, moment)

            def look(node: Node) -> Closed | None:
                if node.instance_id not in seen:
                    seen[node.instance_id] = first(node)
                return seen[node.instance_id]

            self._gates[plan.name] = look
        return self._gates[plan.name]

    def repair(self, repair: Repair) -> Unplaced | None:
        """Put a re-pairing somewhere; says why when it cannot be."""
        plan = self._planner.probes_by_name.get(repair.probe)
        suspect = self._world.inventory.get(repair.suspect)
        if plan is None or suspect is None:
            return Unplaced(repair, "the probe is not planned any more" if plan is None else "the node left", lasting=True)
        why = self._refused(suspect, plan)
        if why is not None:
            return Unplaced(repair, why, lasting=False)
        if self._repairing >= self._planner.settings.repairs:
            return Unplaced(repair, f"{self._repairing} re-pairings go on already (planning.repairs)", lasting=False)
        if repair.partner is not None:
            partner = self._world.inventory.get(repair.partner)
            why = "the partner left" if partner is None else self._refused(partner, plan)
            if partner is None or why is not None:
                return Unplaced(repair, f"partner {repair.partner}: {why}", lasting=partner is None)
        else:
            partner = self._partner(suspect, plan, repair.avoid, f"{repair.case}/{repair.attempt}")
            if partner is None:
                group = self._planner.groups[group_of(suspect)]
                others = len(set(group.ids) - repair.avoid - {repair.suspect})
                why = "no known-good partner is free and open now" if others else "there is no other node to compare with"
                return Unplaced(repair, why, lasting=not others)
        self._repairing += 1
        self._place(plan, (suspect, partner), "suspect", repair.attempt, (repair.case, repair.suspect, partner.instance_id), repair)
        return None

    def singles(self, plan: ProbePlan, single: Singles, most: int) -> None:
        """Start what is due of a probe of single nodes, `most` at a time."""
        if self.held(plan):
            return
        now = self._world.now
        with contextlib.closing(single.ready(now)) as due:
            while self.free > 0 and most > 0 and (one := next(due, None)) is not None:
                node = self._world.inventory.get(one)
                if node is None or self.busy(one):
                    continue
                closed = self.gate(plan)(node) or self._planner.accounts.closed(node, plan.cost, now)
                if closed is not None:
                    single.wait(one, now, str(closed))
                    continue
                self._place(plan, (node,), "due", int(single.due_of(one)), (one,))
                single.why.pop(one, None)
                single.set(one, single.after(one, now))
                most -= 1

    def newcomers(self, plan: ProbePlan) -> None:
        """Pair nodes that joined in mid-round: with a known-good node where there is one, else with each other."""
        waiting = self._planner.newcomers[plan.name]
        if not waiting or self.held(plan):
            return
        alone: list[Node] = []
        for one in list(waiting):
            node = self._world.inventory.get(one)
            if node is None or self.busy(one) or self._refused(node, plan) is not None:
                continue
            partner = self._partner(node, plan, frozenset(), one)
            if partner is not None:
                self._place_pair(plan, node, partner, "new")
                continue
            other = next((other for other in alone if group_of(other) == group_of(node)), None)
            if other is not None:
                alone.remove(other)
                self._place_pair(plan, other, node, "new")
            else:
                alone.append(node)

    def rounds(self) -> None:
        """Start pairs of the rounds that go on, the probe that is most behind first."""
        settings, now = self._planner.settings, self._world.now
        able = [turn for turn in self._planner.turns.values() if turn.queue and not self.held(turn.plan)]
        while able and self.free > 0:
            behind = [(turn.allowed(now, settings.spread, turn.plan.start_spread) - turn.launched) / turn.total for turn in able]
            index = max(range(len(able)), key=lambda position: (behind[position], -position))
            if behind[index] <= 0:
                return
            if not self._take(able[index]):
                del able[index]

    def _take(self, turn: Turn) -> bool:
        """Start the first pair of a round that can start; pairs whose gates closed leave the round's order. False when none can."""
        placed = False
        queue = turn.queue
        skipped: list[Waiting] = []
        while queue and not placed:
            waiting = queue.popleft()
            ends = [self._world.inventory.get(one) for one in waiting.pair]
            if None in ends:
                turn.total -= 1
                continue
            nodes = [node for node in ends if node is not None]
            if any(self.busy(one) for one in waiting.pair):
                skipped.append(waiting)
                continue
            shut = [(node, self.gate(turn.plan)(node) or self._planner.accounts.closed(node, turn.plan.cost, self._world.now))
                    for node in nodes]
            closed = [(node, why) for node, why in shut if why is not None]
            if closed and all(why.gate == "busy" for _, why in closed):
                skipped.append(waiting)
                continue
            if closed:
                turn.total -= 1
                names = {node.instance_id: str(why) for node, why in closed}
                for one in waiting.pair:
                    turn.set_alone((one,), names.get(one, "its partner's gate closed"))
                continue
            turn.launched += 1
            turn.met.add(waiting.pair)
            self._place_pair(turn.plan, nodes[0], nodes[1], waiting.why)
            placed = True
        queue.extendleft(reversed(skipped))
        return placed

    def _place_pair(self, plan: ProbePlan, one: Node, other: Node, why: Why) -> None:
        turn = self._planner.turns[plan.name, group_of(one)]
        # Every node takes both ranks over time, so that both directions of its path are seen.
        nodes = (one, other) if turn.number % 2 else (other, one)
        started = int(turn.started or 0)
        mark = "n" if why == "new" else "r"
        self._place(plan, nodes, why, turn.number, (group_of(one), started, one.instance_id, other.instance_id), mark=mark)

    def _place(self, plan: ProbePlan, nodes: tuple[Node, ...], why: Why, number: int, parts: tuple[object, ...],
               repair: Repair | None = None, mark: str | None = None) -> None:
        group = group_of(nodes[0])
        turn = self._planner.turns.get((plan.name, group))
        stratum: Stratum | None = stratum_of(*nodes) if len(nodes) == 2 else None
        run = PlannedRun(run_name(plan.name, mark or why[0], number, *parts), plan.name, nodes, why, group,
                         turn.number if turn is not None else 0, stratum, repair)
        self.runs.append(run)
        self.free -= 1
        self._taken.update(run.ids)
        self._planner.launch(run, self._world.now)

    def _refused(self, node: Node, plan: ProbePlan) -> str | None:
        """Why a node cannot take an urgent run now."""
        if self.free <= 0:
            return "all places are taken (planning.budget.concurrency)"
        if self._world.paused is not None:
            return f"paused: {self._world.paused}"
        if self.busy(node.instance_id):
            return "a run is on the node"
        closed = self.gate(plan)(node) or self._planner.accounts.closed(node, plan.cost, self._world.now, urgent=True)
        return str(closed) if closed is not None else None

    def _partner(self, node: Node, plan: ProbePlan, avoid: frozenset[str], salt: str) -> Node | None:
        """A known-good, free and open node of the same group: on another leaf than those avoided where there is a choice, least used."""
        leaves = {other.leaf for one in avoid if (other := self._world.inventory.get(one)) is not None}
        found: list[Node] = []
        for one in self._from_somewhere(self._planner.groups[group_of(node)].ids, salt):
            if one == node.instance_id or one in avoid or self.busy(one) or not self._world.good(plan.name, one):
                continue
            other = self._world.inventory.get(one)
            if other is not None and self._refused(other, plan) is None:
                found.append(other)
                if len(found) >= CHOICE:
                    break
        return min(found, default=None, key=lambda other: (other.leaf in leaves, self._planner.books[other.instance_id].tried(plan.name)))

    @staticmethod
    def _from_somewhere(ids: tuple[str, ...], salt: str) -> Iterator[str]:
        """Ids, each once, from a place that depends on `salt`, so that suspects do not all ask the same partner."""
        start = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:4], "big") % len(ids)
        for step in range(min(len(ids), LOOK)):
            yield ids[(start + step) % len(ids)]
