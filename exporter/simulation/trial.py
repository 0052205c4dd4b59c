"""One trial of localisation: a fabric with known faults, measured in rounds, by our scheme or by the two-pass scheme of its nearest peer.

Runs are judged by the service's own judge. A run that no fault touches and that is not slow by chance passes without being played through:
`full=True` plays every run, to show that this makes no difference.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from exporter.config import Config
from exporter.inventory.model import Node
from exporter.judge.judge import judge
from exporter.judge.localise import Localiser
from exporter.judge.observation import Observation, devices_of, observe
from exporter.launch.fabric import Fabric
from exporter.launch.faults import FaultKind
from exporter.launch.simulated import SimulatedClock, play
from exporter.plan.journal import Journal
from exporter.plan.planned import PlannedRun, World
from exporter.plan.planner import Ended, Planner
from exporter.plan.probes import ProbePlan, probe_plans
from exporter.runs import RunSpec
from exporter.simulation.scenario import START, with_floors
from probes.reasons import Outcome, Reason

RUN_SECONDS = 8.0
ROUNDS = 3


@dataclass
class Named:
    """Whom one scheme named, and what that took: all `runs`, and those of them that re-paired a suspect (`extra`).

    `partners` are, for each node, those of its own conclusive runs up to the moment it was named: their number is the rounds it took.
    """

    names: set[str] = field(default_factory=set)
    partners: dict[str, list[str]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    extra: int = 0


class Trial:
    """A fabric, one pair probe, and the judge with floors that fit."""

    def __init__(self, fabric: Fabric, config: Config, probe: str = "mooncake", *, full: bool = False) -> None:
        first = fabric.inventory.nodes[0]
        self.fabric = fabric
        self.config = with_floors(config, fabric, first)
        self.plan: ProbePlan = next(plan for plan in probe_plans(self.config) if plan.name == probe)
        self._types = {node.name: node.instance_type for node in fabric.inventory}
        self._full = full

    def observe(self, spec: RunSpec, nodes: Sequence[Node], now: float, *, repair: bool = False) -> Observation:
        """The outcome of one run as localisation sees it."""
        ids = tuple(node.instance_id for node in nodes)
        if not self._full and self._untouched(spec, nodes, now):
            return Observation(spec.run_id, spec.probe, ids, now, now + RUN_SECONDS, Outcome.OK, Reason.OK.value, repair=repair)
        run, answers = play(self.fabric, spec, list(nodes), now)
        verdict = judge(run, floors=self.config.thresholds.floors, instance_types=self._types, answers=answers)
        return observe(verdict, ids, repair=repair, devices={one: carried for one, node in zip(ids, nodes, strict=True)
                                                             if (carried := devices_of(answers).get(node.name))})

    def ours(self, rounds: int = ROUNDS) -> Named:
        """Planner and localisation until every suspect is settled, over at most `rounds` rounds; all pairs of a round at once."""
        return _Rounds(self, rounds).run()

    def two_pass(self, rng: random.Random) -> Named:
        """The scheme of cluster-health-scanner (GKE, `nccl_runner.py`): random pairs, an odd node in a second pair; then every node of a
        failed pair once more with a passed node; failed twice is bad. A run without a result counts as failed, as it does there."""
        nodes = list(self.fabric.inventory)
        rng.shuffle(nodes)
        pairs = [(nodes[index], nodes[index + 1]) for index in range(0, len(nodes) - 1, 2)]
        if len(nodes) % 2:
            pairs.append((nodes[-1], rng.choice(nodes[:-1])))
        named = Named()
        label: dict[str, bool] = {}
        for one, other in pairs:
            passed = self._passes(f"first-{named.runs}", one, other)
            named.runs += 1
            label[one.name] = label[other.name] = passed
        failed = [node for node in nodes if not label[node.name]]
        good = [node for node in nodes if label[node.name]]
        if not failed or not good:
            named.names = {node.name for node in failed}
            return named
        rng.shuffle(good)
        for node, partner in zip(failed, itertools.cycle(good), strict=False):
            named.runs += 1
            named.extra += 1
            if not self._passes(f"second-{named.runs}", node, partner):
                named.names.add(node.name)
        return named

    def _passes(self, run_id: str, one: Node, other: Node) -> bool:
        spec = RunSpec(run_id, self.plan.name, f"{one.name}--{other.name}", (one.name, other.name), self.plan.transport, self.plan.deadline,
                       self.plan.spec((one, other)))
        return self.observe(spec, (one, other), START).outcome is Outcome.OK

    def _untouched(self, spec: RunSpec, nodes: Sequence[Node], now: float) -> bool:
        """Whether no fault touches the run, or only one of kind `unknown` that spares it, and it is not slow by chance."""
        faults = self.fabric.active(nodes, now)
        if any(fault.kind is not FaultKind.UNKNOWN for fault in faults):
            return False
        if faults and any(reason is not Reason.OK for reason in self.fabric.effect(spec.probe, nodes, spec.run_id, now).reasons):
            return False
        return not self.fabric.chance or not self.fabric.by_chance(spec.run_id)


class _Rounds:
    """Planner and localisation of one trial, event by event."""

    def __init__(self, trial: Trial, rounds: int) -> None:
        self._trial = trial
        self._rounds = rounds
        self._clock = SimulatedClock(START)
        self._localiser = Localiser()
        self._localiser.fleet(trial.fabric.inventory)
        settings = trial.config.planning.model_copy(update={"spread": 0.0, "budget": trial.config.planning.budget.model_copy(
            update={"concurrency": max(len(trial.fabric.inventory), 1)})})
        plan = replace(trial.plan, start_spread=0.0)
        self._planner = Planner([plan], settings, Journal(), trial.fabric.inventory, START)
        self._plan = plan
        self._named = Named()

    def run(self) -> Named:
        """To the end of the last round and of its re-pairings."""
        turn = next(iter(self._planner.turns.values()))
        while True:
            wake = self._start()
            open_cases = bool(self._localiser.of(self._plan.name).open)
            if turn.number >= self._rounds and not turn.queue and not self._planner.flying and (
                    not open_cases or self._clock() > (turn.started or START) + self._plan.interval * 0.9):
                return self._named
            if turn.number > self._rounds:
                return self._named
            self._clock.advance(self._clock.next_call if self._clock.next_call is not None else wake)
            while self._clock.next_call is not None and self._clock.next_call <= self._clock():
                self._clock.advance(self._clock())

    def _start(self) -> float:
        now = self._clock()
        world = World(now, self._trial.fabric.inventory, running=len(self._planner.flying), repairs=tuple(self._localiser.repairs(now)),
                      good=self._localiser.good)
        decision = self._planner.due(world)
        for run in decision.runs:
            self._named.runs += 1
            if run.repair is not None:
                self._named.extra += 1
                self._localiser.started(run.repair, run.run_id)
            found = self._trial.observe(run.spec(self._plan), run.nodes, now, repair=run.repair is not None)
            self._clock.call_at(found.finished, partial(self._ended, run, found))
        for each in decision.unplaced:
            self._localiser.unplaced(each.repair, each.lasting, now)
        return decision.wake_at

    def _ended(self, run: PlannedRun, found: Observation) -> None:
        self._planner.finished(Ended(run.run_id, self._clock(), found.outcome, Reason(found.reason)))
        if found.outcome.conclusive:
            names = [node.name for node in run.nodes]
            for name, partner in ((names[0], names[1]), (names[1], names[0])):
                if name not in self._named.names:
                    self._named.partners.setdefault(name, []).append(partner)
        for change in self._localiser.observe(found):
            node = self._trial.fabric.inventory.get(change.node) if change.node is not None else None
            if change.what == "found" and change.finding is not None and node is not None:
                self._named.names.add(node.name)
                self._named.kinds[node.name] = change.finding.kind
