"""The fleet: planner, localisation and journal as one part, for the control loop that owns them.

    inventory ─> due ─> specs for the launcher        verdict ─> finished ─> planner, localisation ─> journal
                  ^                                                  │
                  └──────────────── re-pairings of suspects ─────────┘

Everything here belongs to one thread. Times are Unix seconds of `clock`; the journal's pace is by `monotonic`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from exporter.config import Config
from exporter.config.quiet import Quiet, holding
from exporter.inventory.model import Inventory, Node, group_of, stratum_of
from exporter.judge.baseline import NODE, NORM, Baselines
from exporter.judge.casebook import Change
from exporter.judge.localise import Localiser
from exporter.judge.observation import observe
from exporter.judge.verdict import Verdict
from exporter.plan.cost import Cost, actual_cost
from exporter.plan.journal import Journal, JournalStore, flush
from exporter.plan.planned import PlannedRun, Unplaced, Why, World
from exporter.plan.planner import Ended, Planner
from exporter.plan.probes import Needs, ProbePlan, probe_plans
from exporter.runs import RunSpec

SHARDS_AT_ONCE = 8
"""Shards written in one turn of the loop, so that a slow store holds it up for a moment only."""
SYNC_SECONDS = 5.0
"""How often what changed is brought into the journal's records."""
CASES = "cases/"
SUSPECT = "suspect/"
RESET = "efa-pulse.io/baseline-reset"
"""Annotation of a node whose baseline begins anew, with anything that is another text each time; `efa-pulse baseline reset` sets it."""


@dataclass(frozen=True)
class Concluded:
    """What a verdict meant for the fleet: the run as it was planned (None for a foreign one) and what localisation concluded.

    `health` is, by node name, what is known of every node that the run or a conclusion is about: None while it is not told.
    """

    planned: PlannedRun | None
    changes: tuple[Change, ...]
    health: Mapping[str, bool | None] = field(default_factory=dict)


class Fleet:
    """See the module. `store` is read once, here; raises what it raises. `inventory` is who is there at the start."""

    def __init__(self, config: Config, store: JournalStore, inventory: Inventory, *, needs: Mapping[str, Needs] | None = None,
                 clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._needs = needs
        self.journal = Journal.loaded(store.load())
        self.planner = Planner(probe_plans(config, needs), config.planning, self.journal, inventory, clock())
        self.localiser = Localiser()
        self.localiser.fleet(inventory)
        self.journal.problems += self.localiser.load(dict(self.journal.under(CASES)), self.journal.under(SUSPECT))
        self.localiser.fleet(inventory)
        self.baselines = Baselines(config.baselines, best_of=config.metrics.best_of, interval=config.metrics.node_interval)
        self.journal.problems += self.baselines.load(self.journal.under(NODE), self.journal.under(NORM))
        self.unplaced: tuple[Unplaced, ...] = ()
        self.wake_at = clock()
        self._listeners: list[Callable[[Change], None]] = []
        self._synced_at = -math.inf
        self._inventory = inventory
        self._quiet: dict[str, Sequence[Quiet]] = _quiet(config)

    @property
    def problems(self) -> list[str]:
        """What of the journal could not be used at the start."""
        return self.journal.problems

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with everything that localisation concludes, in the loop's thread."""
        self._listeners.append(listener)

    @property
    def plans(self) -> list[ProbePlan]:
        """The probes that are planned here."""
        return self.planner.probes

    def node(self, name: str) -> Node | None:
        """The node that has this name now."""
        return self._inventory.named(name)

    def configure(self, config: Config) -> None:
        """Take in a new configuration."""
        self._quiet = _quiet(config)
        self.baselines.configure(config.baselines, config.metrics.best_of, config.metrics.node_interval)
        self.planner.configure(probe_plans(config, self._needs), config.planning)

    def take_in(self, inventory: Inventory) -> list[Change]:
        """Take in who is there now. Returns cases that are over because a node left."""
        if inventory is self._inventory:
            return []
        self._inventory = inventory
        self.planner.take_in(inventory, self._clock())
        changes = self.localiser.fleet(inventory)
        self.journal.keep(SUSPECT, inventory.ids)
        self.baselines.keep(inventory.ids)
        for node in inventory:
            self.baselines.asked_anew(node.instance_id, node.annotations.get(RESET))
        self._tell(changes)
        return changes

    def world(self, *, busy: Mapping[str, str] | None = None, running: int = 0, paused: str | None = None,
              background: Mapping[str, float] | None = None) -> World:
        """What the planner looks at now. `busy` names foreign runs by instance id, `running` counts all probe runs in flight."""
        now = self._clock()
        moment = datetime.fromtimestamp(now, timezone.utc)
        quiet = {probe: window.reason or "quiet window" for probe, windows in self._quiet.items()
                 if (window := holding(windows, moment)) is not None}
        return World(now, self._inventory, busy or {}, running, paused, quiet, background or {},
                     tuple(self.localiser.repairs(now)), self.localiser.good)

    def due(self, world: World) -> list[RunSpec]:
        """The runs to start now. Each must be started, or told to `dropped`."""
        decision = self.planner.due(world)
        self.unplaced, self.wake_at = decision.unplaced, decision.wake_at
        for found in decision.unplaced:
            self.localiser.unplaced(found.repair, found.lasting, world.now)
        specs: list[RunSpec] = []
        for run in decision.runs:
            if run.repair is not None:
                self.localiser.started(run.repair, run.run_id)
            specs.append(run.spec(self.planner.probes_by_name[run.probe]))
        return specs

    def dropped(self, run_id: str) -> None:
        """A run of `due` was never started."""
        self.planner.dropped(run_id, self._clock())

    def finished(self, verdict: Verdict, devices: Mapping[str, Mapping[str, float]] | None = None) -> Concluded:
        """A run has ended and was judged. `devices` are bytes per device by node name, as the witnesses counted them in its window."""
        run = verdict.run
        planned = self.planner.flying.get(run.spec.run_id) or self._adopted(run.spec)
        cost: Cost | None = None
        if planned is not None and planned.probe in self.planner.probes_by_name:
            cost = actual_cost(run, self.planner.probes_by_name[planned.probe].cost)
        self.planner.finished(Ended(run.spec.run_id, run.finished, verdict.outcome, verdict.reason, cost))
        ids = planned.ids if planned is not None else self._ids(run.spec)
        if ids is None:
            return Concluded(planned, ())
        counted = {one: devices[name] for one, name in zip(ids, run.spec.nodes, strict=True) if devices and name in devices}
        seen = observe(verdict, ids, repair=run.spec.labels.get("why") == "suspect", devices=counted)
        changes = tuple(self.localiser.observe(seen))
        self._tell(changes)
        return Concluded(planned, changes, self._health(run.spec, ids, changes))

    def sync(self) -> None:
        """Bring everything that changed into the journal's memory, so that what is stored from now on holds it."""
        self._synced_at = self._monotonic()
        self.planner.sync()
        self._keep()

    def keep_values(self, instance_id: str, probe: str, values: Any) -> None:
        """Keep what is published of a probe on a node."""
        self.planner.keep_values(instance_id, probe, values)

    def save(self, *, everything: bool = False) -> int:
        """Write what the journal owes, a few shards at a time; returns how many. Raises OSError or JournalError; it is tried again."""
        now = self._monotonic()
        if everything or now - self._synced_at >= SYNC_SECONDS:
            self.sync()
        return flush(self.journal, self._store, now, most=10**6 if everything else SHARDS_AT_ONCE, everything=everything)

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            for listener in self._listeners:
                listener(change)

    def _keep(self) -> None:
        for node in self.localiser.touched():
            record = self.localiser.record(node)
            if record:
                self.journal.put(SUSPECT + node, record)
            else:
                self.journal.drop(SUSPECT + node)
        for probe, cases in self.localiser.cases().items():
            self.journal.put(CASES + probe, cases)
        keep(self.baselines, self.journal)

    def _health(self, spec: RunSpec, ids: Sequence[str], changes: Sequence[Change]) -> dict[str, bool | None]:
        """Localisation's word on the nodes of a pair and on those that it has concluded something of. Larger runs blame nobody there."""
        about = {change.node for change in changes if change.node is not None}
        about.update(one for change in changes if change.finding is not None and change.finding.kind == "group"
                     for one in change.finding.partners)
        if len(set(ids)) <= 2:
            about.update(ids)
        return {node.name: self.localiser.view(spec.probe, one).healthy for one in sorted(about)
                if (node := self._inventory.get(one)) is not None}

    def _adopted(self, spec: RunSpec) -> PlannedRun | None:
        """A run that an earlier leader had planned, from what it wrote on it; None for a run of somebody else."""
        ids, number = spec.labels.get("instance-ids"), spec.labels.get("round", "")
        nodes = [self._inventory.get(one) for one in ids.split(",")] if ids else []
        there = [node for node in nodes if node is not None]
        if not there or len(there) < len(nodes) or not number.isdigit() or spec.probe not in self.planner.probes_by_name:
            return None
        stratum = stratum_of(there[0], there[1]) if len(there) == 2 else None
        why: Why = "due" if len(there) == 1 else "round"
        run = PlannedRun(spec.run_id, spec.probe, tuple(there), why, group_of(there[0]), int(number), stratum)
        self.planner.adopt(run)
        return run

    def _ids(self, spec: RunSpec) -> tuple[str, ...] | None:
        """The identities of a foreign run's nodes, None when one of them is not known."""
        nodes = [self._inventory.named(name) for name in spec.nodes]
        return tuple(node.instance_id for node in nodes if node is not None) if None not in nodes and nodes else None


def keep(baselines: Baselines, journal: Journal) -> None:
    """Bring what changed of the baselines into the journal's memory."""
    records, gone = baselines.changed_records()
    for key, record in records.items():
        journal.put(key, record)
    for key in gone:
        journal.drop(key)


def _quiet(config: Config) -> dict[str, Sequence[Quiet]]:
    return {name: probe.schedule.when(config.schedule).quiet for name, probe in config.probes.items()}
