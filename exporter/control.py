"""The control loop: the one writer of jobs, runs and verdicts. It takes events from one queue; everything else only reads snapshots.

    tick of the scheduler ─> due ─> lanes and caps ─> launcher ─> run ends ─> judge ─> publisher, listeners
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from exporter import log
from exporter.archive.archive import Archive
from exporter.conditions import standings
from exporter.config import Config, Job, SecretError
from exporter.config.restart import needs_restart
from exporter.courtesy import Manners
from exporter.dispatch import Caps, Dispatcher
from exporter.events import Conditions, Event, Finished, Inventoried, Leading, Loaded, Stop
from exporter.flags import Flags
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory
from exporter.judge.judge import judge
from exporter.judge.observation import devices_of
from exporter.judge.verdict import Verdict
from exporter.judge.witnesses import Answers
from exporter.launch import Launcher
from exporter.ledger import Ledger
from exporter.look import Look
from exporter.memory import Memory
from exporter.pairing import Pairing
from exporter.publish.family import Family
from exporter.publish.publisher import Publisher
from exporter.publish.surveyed import Samples
from exporter.residents import Residents
from exporter.runs import Run, RunSpec, missing_result, new_run_id
from exporter.scheduler import Scheduler, Tick
from exporter.status import Looked, StatusBoard
from exporter.survey import Survey
from probes.efa import instances
from probes.reasons import Outcome, Reason

HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 5.0
CANARY = "canary"
ROUTE = "router"


Listener = Callable[[Verdict], None]
Reporter = Callable[[], Iterable[tuple[Family, Samples]]]
"""Tells what a part of the service counts itself: gauges whole, counters as totals."""
MakeFleet = Callable[[Config], Fleet]
"""Reads the journal. Raises OSError when it cannot."""
AskWitnesses = Callable[[Run], Answers]
"""What the witnesses of a run's nodes counted in its window. It must not wait: whoever launched the run asked before it ended."""


class Clock(Protocol):
    """Unix seconds."""

    def __call__(self) -> float:
        """Now."""
        ...


class Control:
    """Turns ticks into runs and runs into published verdicts. All methods but `run` and `events` belong to the loop's own thread.

    With a `fleet`, probes without targets of their own are planned there, over its nodes, and not by the scheduler. With `make_fleet` this
    is one of several replicas: it waits for `Leading`, then makes the fleet from the journal; `on_fleet` and `on_durable` tell the launcher
    which runs are known and which have a durable result.
    """

    def __init__(self, config: Config, *, events: queue.Queue[Event], launcher: Launcher, scheduler: Scheduler, publisher: Publisher,
                 secrets_dir: Path, clock: Clock = time.time, fleet: Fleet | None = None, ask: AskWitnesses | None = None,
                 make_fleet: MakeFleet | None = None, on_fleet: Callable[[Callable[[str], bool]], None] = lambda _: None,
                 on_durable: Callable[[str], None] = lambda _: None, conditions: Callable[[], Conditions] = Conditions,
                 board: StatusBoard | None = None, survey: Survey | None = None,
                 archive: Archive | None = None, pairing: Pairing | None = None,
                 flags: Flags | None = None) -> None:
        self.events = events
        self._launcher = launcher
        self._scheduler = scheduler
        self._publisher = publisher
        self._secrets_dir = secrets_dir
        self._clock = clock
        self._fleet = fleet
        self._ask = ask
        self._make_fleet, self._on_fleet, self._on_durable, self._conditions = make_fleet, on_fleet, on_durable, conditions
        self._leading = make_fleet is None
        self._archive, self._flags = archive, flags
        self._pairing = pairing
        self._ledger = Ledger(fleet.journal, archiving=archive is not None) if fleet is not None else None
        self._inventory: Inventory | None = None
        self._try_again_at = 0.0
        self._residents = Residents(publisher)
        self._listeners: list[Listener] = [board.verdict] if board is not None else []
        self._reporters: list[Reporter] = []
        self._worries: list[Callable[[], Iterable[str]]] = []
        self._board, self._look = board, Look()
        self._survey = survey or Survey(publisher)
        self._memory = Memory(config, publisher, fleet=fleet, alone=make_fleet is None and fleet is None)
        self._taken: tuple[bool, str | None, float] = (True, None, clock())
        self._config = config
        self._jobs: dict[str, Job] = {}
        self._dispatcher, self._manners = Dispatcher(Caps(1, 1)), Manners()
        self._log = log.get()
        self._stopping = False
        self._apply(config)
        if make_fleet is None:
            self._recall()
        publisher.config_loaded(True, clock())
        publisher.commit()

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every verdict, in the loop's thread."""
        self._listeners.append(listener)

    def report(self, reporter: Reporter) -> None:
        """Publish what `reporter` tells, every few seconds, from the loop's thread; it must not wait."""
        self._reporters.append(reporter)

    def worry(self, troubles: Callable[[], Iterable[str]]) -> None:
        """Show on the status page what `troubles` tells, in words; it is asked in the loop's thread and must not wait."""
        self._worries.append(troubles)

    @property
    def jobs(self) -> list[Job]:
        """What is configured."""
        return list(self._jobs.values())

    def run(self) -> None:
        """Handle events until Stop. One event that fails is logged and never ends the loop."""
        while not self._stopping:
            try:
                event = self.events.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                event = None
            self.handle(event)

    def drain(self) -> None:
        """Handle what is still queued, after everything that produces events has ended."""
        while True:
            try:
                self.handle(self.events.get_nowait())
            except queue.Empty:
                return

    def save(self) -> None:
        """Write everything that the journal owes, at the end of the service."""
        self._memory.close()
        if self._fleet is None:
            return
        try:
            self._fleet.save(everything=True)
        except (OSError, ValueError) as error:
            self._log.warning("the journal could not be written at the end", error=str(error))

    def handle(self, event: Event | None) -> None:
        """One turn of the loop: an event, or None for the heartbeat."""
        try:
            match event:
                case Tick():
                    self._due(event)
                case Finished(run):
                    self._finished(run)
                case Loaded():
                    self._loaded(event)
                case Inventoried(inventory):
                    self._inventoried(inventory)
                case Leading(leading):
                    self._lead(leading)
                case Stop():
                    self._stopping = True
                case None:
                    pass
            if self._leading and self._make_fleet is not None and self._fleet is None:
                self._take_over()
            self._hear_of_archive()
            if not self._stopping and self._leading:
                self._due_visits()
                self._start_ready()
                self._start_planned()
            self._tell_of_fleet()
            state = self._scheduler.state
            self._publisher.scheduler_tick(state.last_tick, state.skipped.items())
            self._publisher.commit()
            if self._board is not None:
                self._board.turn(self._looked)
        except Exception as error:  # noqa: BLE001 - one bad event must not end the loop
            self._log.exception("an event could not be handled", kind=type(event).__name__, error=str(error))

    def _looked(self) -> Looked:
        """What the status board is told of this turn."""
        conditions = self._conditions()
        looked = self._look.now(self._clock(), config=self._config, jobs=self._jobs.values(), scheduler=self._scheduler,
                                dispatcher=self._dispatcher, fleet=self._fleet,
                                leading=self._leading if self._make_fleet is not None else None, paused=conditions.held,
                                background=conditions.background, loaded=self._taken)
        return replace(looked, troubles=tuple(trouble for worry in self._worries for trouble in worry()))

    def _tell_of_fleet(self) -> None:
        """Publish what is seen of the fleet, and of the connection to the cluster, when it is time to look."""
        conditions, now = self._conditions(), self._clock()
        held = {"paused": conditions.paused is not None or self._scheduler.paused, "stale_inventory": conditions.stale,
                "standby": not self._leading}
        if conditions.other_leads and not self._leading:
            self._residents.leave()
        looked = self._survey.turn(now, self._config, self._fleet, held=held, background=conditions.background)
        if looked:
            self._publisher.reported(self._memory.report(now))
        if looked and self._flags is not None and self._fleet is not None and self._leading and not conditions.stale:
            self._flags.tell(standings(self._fleet, self._flags.on))
        for reporter in self._reporters if looked else ():
            self._publisher.reported(reporter())
        if looked and conditions.requests is not None:
            complete_at = now - conditions.inventory_age if math.isfinite(conditions.inventory_age) else None
            self._publisher.cluster_followed(conditions.trouble, complete_at, conditions.requests)

    def _due(self, tick: Tick) -> None:
        job = self._jobs.get(tick.job_id)
        if job is None or not self._leading:
            return
        self._publisher.run_started(tick.lag)
        if tick.missed:
            self._publisher.runs_left_out("missed", tick.missed)
        if job.probe == CANARY and (why := self._unwelcome(job)):
            self._publisher.runs_left_out(why)
            self._log.info("left out: the target is left alone", job=job.id, why=why)
        elif not self._dispatcher.due(job):
            self._publisher.runs_left_out("busy")
            self._log.info("left out: the target is busy", job=job.id)

    def _unwelcome(self, job: Job) -> str | None:
        """Why a canary is not sent now: an operator paused everything, or its target turned the last one away."""
        if self._conditions().paused is not None:
            return "paused"
        return "shed" if self._manners.waits(job.target, self._clock()) > 0 else None

    def _due_visits(self) -> None:
        """Visits to pairs of engine pods come from what was found of them, not from the scheduler."""
        if self._pairing is None or self._scheduler.paused or self._conditions().held is not None:
            return
        for job in self._pairing.due(self._clock()):
            if self._unwelcome(job) is not None or not self._dispatcher.due(job):
                self._pairing.left_out(job)

    def _start_ready(self) -> None:
        for job in self._dispatcher.ready():
            run_id = new_run_id(job.probe, self._clock())
            labels = {"job": job.id}
            if job.probe == CANARY:
                labels |= {"prompt": str(job.spec.get("prompt", "short")), "route": ROUTE, **job.labels}
            spec = RunSpec(run_id, job.probe, job.target, job.nodes, job.transport, job.deadline, job.spec, labels)
            self._dispatcher.started(job, run_id)
            self._scheduler.busy(job.id, True)
            try:
                told = job.spec_with(self._secrets_dir)
                self._launcher.start(replace(spec, spec=self._pairing.prepare(job, told) if self._pairing is not None else told))
            except (SecretError, RuntimeError) as error:
                self._finished(_unstarted(spec, str(error), self._clock()))

    def _start_planned(self) -> None:
        """Start what the fleet's planner wants now, on nodes that no job of the scheduler occupies."""
        if self._fleet is None:
            return
        jobs = {run_id: job for run_id, job in self._dispatcher.running.items() if job.probe != CANARY}
        busy = {self._residents.ids[name]: run_id for run_id, job in jobs.items() for name in job.nodes if name in self._residents.ids}
        # Runs of an earlier leader go on without this planner's doing: they hold places as well.
        others = sum(run_id not in self._dispatcher.running for run_id in self._launcher.running())
        running = len(jobs) + max(len(self._fleet.planner.flying), others)
        conditions = self._conditions()
        self._publisher.paused(conditions.paused is not None)
        world = self._fleet.world(busy=busy, running=running, paused=conditions.held, background=conditions.background)
        for spec in self._fleet.due(world):
            try:
                self._launcher.start(spec)
            except RuntimeError as error:
                self._finished(_unstarted(spec, str(error), self._clock()))
        try:
            self._fleet.save()
        except (OSError, ValueError) as error:
            self._log.warning("the journal could not be written, it is tried again", error=str(error))
        if self._ledger is not None:
            for run_id in self._ledger.durable(self._clock()):
                self._on_durable(run_id)

    def _hear_of_archive(self) -> None:
        """What the archive holds now, and what it recalls of nodes that the journal knows nothing of."""
        if self._archive is None:
            return
        for run_id in self._archive.settled():
            if self._ledger is not None:
                self._ledger.archived(run_id)
        for name, verdict in self._archive.recalled():
            probe = verdict.run.spec.probe
            there = name in self._residents.ids if self._fleet is not None else name in self._nodes_of(self._jobs)
            if there and self._publisher.kept(name, probe) is None:
                self._publisher.recalled(verdict, name)
                if self._board is not None:
                    self._board.remember(name, probe, verdict.outcome.value, verdict.reason.value, verdict.run.finished)

    def _recall(self) -> None:
        """Ask the archive for what is published of no node yet: the journal was lost, or there is none."""
        if self._archive is None:
            return
        wanted: set[tuple[str, str | None, str]]
        if self._fleet is not None:
            probes = [plan.name for plan in self._fleet.plans]
            wanted = {(name, one, probe) for name, one in self._residents.ids.items() for probe in probes
                      if self._publisher.kept(name, probe) is None}
        else:
            wanted = {(node, None, job.probe) for job in self._jobs.values() if job.probe != CANARY for node in job.nodes}
        self._archive.recall(wanted)

    def _lead(self, leading: bool) -> None:
        """This replica begins or ceases to lead. What it launched goes on either way; whoever leads takes in the results."""
        if self._make_fleet is None or leading == self._leading:
            return
        self._leading = leading
        self._try_again_at = 0.0
        self._log.info("this replica leads" if leading else "this replica no longer leads")
        self._publisher.leading(leading)
        if self._archive is not None:
            self._archive.leading(leading)
        if self._flags is not None and not leading:
            self._flags.stand_down()
        if not leading:
            self._fleet, self._ledger = None, None
            self._memory.adopt(None, self._clock())
            self._dispatcher.keep(())

    def _take_over(self) -> None:
        """Make the fleet from the journal, publish what it knows, and adopt the runs of the leader before."""
        if self._make_fleet is None or self._clock() < self._try_again_at:
            return
        try:
            fleet = self._make_fleet(self._config)
        except OSError as error:
            self._log.error("the journal could not be read, it is tried again", error=str(error))
            self._try_again_at = self._clock() + RETRY_SECONDS
            return
        for problem in fleet.problems:
            self._log.warning("a part of the journal could not be used", problem=problem)
        self._fleet, self._ledger = fleet, Ledger(fleet.journal, archiving=self._archive is not None)
        self._apply(self._config)
        self._residents.begin({node.name for node in self._inventory or ()})
        if self._inventory is not None:
            self._inventoried(self._inventory)
        self._residents.restore(fleet, self._board)
        self._memory.adopt(fleet, self._clock())
        self._on_fleet(self._ledger.settled)
        self._recall()

    def _inventoried(self, inventory: Inventory) -> None:
        """Nodes joined or left."""
        self._inventory = inventory
        if self._fleet is None:
            return
        for change in self._fleet.take_in(inventory):
            if self._board is not None:
                self._board.change(change)
        self._residents.take_in(inventory, self._fleet)

    def _finished(self, run: Run) -> None:
        if self._archive is not None and self._ledger is not None and self._ledger.unkept(run.spec.run_id):
            # Taken in by a leader that ended before the archive had it: nothing of it counts again.
            self._ledger.finished(run.spec.run_id, self._clock())
            self._keep(self._judge(run)[0])
            return
        if self._make_fleet is not None and run.spec.probe != CANARY and (self._ledger is None or self._ledger.knows(run.spec.run_id)):
            # Not the leader: its result waits in pod status for whoever is. Known: another leader has taken it in.
            if self._ledger is not None:
                self._on_durable(run.spec.run_id)
            return
        job = self._dispatcher.finished(run.spec.run_id)
        if job is not None:
            self._scheduler.busy(job.id, False)
        verdict, answers = self._judge(run)
        self._manners.heard(verdict, self._clock())
        health: Mapping[str, bool | None] = {}
        if self._fleet is not None and run.spec.probe != CANARY:
            concluded = self._fleet.finished(verdict, devices_of(answers))
            health = concluded.health
            for change in concluded.changes:
                if self._board is not None:
                    self._board.change(change)
                self._log.info(f"localisation: {change.what}", probe=change.probe, node=change.node, says=change.says,
                               finding=change.finding.key if change.finding is not None else None)
        self._publish(verdict, job, answers, health)
        self._memory.finished(verdict, self._clock())
        if self._ledger is not None and run.spec.probe != CANARY:
            self._keep_published(run)
            if self._fleet is not None:
                self._fleet.sync()
            self._ledger.finished(run.spec.run_id, self._clock())
        level = self._log.info if verdict.outcome is Outcome.OK else self._log.warning
        level("run finished", run_id=run.spec.run_id, probe=run.spec.probe, target=run.spec.target, outcome=verdict.outcome.value,
              reason=verdict.reason.value, message=verdict.message, transport=verdict.transport.value if verdict.transport else None,
              seconds=round(run.finished - run.started, 3))
        self._keep(verdict)
        for listener in self._listeners:
            listener(verdict)

    def _publish(self, verdict: Verdict, job: Job | None, answers: Answers, health: Mapping[str, bool | None]) -> None:
        """Publish a verdict, unless its job is no longer wanted, and tell the pairing of a canary's."""
        if job is None or job.id in self._jobs or (self._pairing is not None and self._pairing.knows(job)):
            self._publisher.run_finished(verdict, devices_of(answers), health)
        if self._pairing is not None and verdict.run.spec.probe == CANARY:
            for start in self._pairing.finished(verdict, job):
                self._publisher.pod_started(verdict.run.spec.target, start.role, "cold" if start.cold else "warm", start.seconds)

    def _judge(self, run: Run) -> tuple[Verdict, Answers]:
        """The verdict on a run, and what the witnesses of its nodes said."""
        answers = self._ask(run) if self._ask is not None else {}
        types = self._instance_types(run)
        return judge(run, floors=self._config.thresholds.floors, instance_types=types, answers=answers,
                     rdma_hardware=instances.all_rdma(types.values()), limits=self._memory.limits(run)), answers

    def _keep(self, verdict: Verdict) -> None:
        """Hand a verdict to the archive."""
        if self._archive is not None:
            nodes = [self._fleet.node(name) if self._fleet is not None else None for name in verdict.run.spec.nodes]
            types = self._instance_types(verdict.run)
            self._archive.offer(verdict, [node.instance_id if node is not None else None for node in nodes],
                                [types.get(name) for name in verdict.run.spec.nodes])

    def _keep_published(self, run: Run) -> None:
        """What is published of a run's nodes goes into the journal."""
        if self._fleet is None:
            return
        for name in dict.fromkeys(run.spec.nodes):
            node = self._fleet.node(name)
            if node is not None:
                self._fleet.keep_values(node.instance_id, run.spec.probe, self._publisher.kept(name, run.spec.probe))

    def _loaded(self, event: Loaded) -> None:
        self._publisher.config_loaded(event.config is not None, event.at)
        self._taken = (event.config is not None, event.error, event.at)
        if event.config is None:
            self._log.error("the configuration was refused, the last good one stays in use", error=event.error)
            return
        late = needs_restart(self._config, event.config)
        self._apply(event.config)
        self._log.info("configuration loaded", jobs=len(self._jobs))
        if late:
            self._log.warning("these settings changed and hold only after a restart", settings=late)

    def _apply(self, config: Config) -> None:
        """Make `config` the one in use. What runs goes on; what waits and is no longer wanted is forgotten."""
        jobs = {job.id: job for job in config.jobs()}
        now = self._clock()
        planned: set[str] = set()
        if self._fleet is not None:
            self._fleet.configure(config)
            planned = {plan.name for plan in self._fleet.plans}
            jobs = {job_id: job for job_id, job in jobs.items() if job.probe not in planned}
        efa = {node: {job.probe for job in jobs.values() if job.transport == "efa" and node in job.nodes}
               for node in {node for job in jobs.values() if job.probe != CANARY for node in job.nodes}}
        for node, probes in sorted(efa.items()):
            self._publisher.node_seen(node, now, probes)
        for node in self._nodes_of(self._jobs) - efa.keys():
            self._publisher.node_removed(node)
        for probe in sorted({job.probe for job in jobs.values()} | planned):
            self._publisher.declare_probe(probe)
        visited = self._pairing.configure(config) if self._pairing is not None else []
        served = {target.name for target in config.canary.targets if target.pd is not None}
        for job in jobs.values():
            if job.probe == CANARY:
                self._publisher.declare_canary(job.target, job.labels.get("route", ROUTE), str(job.spec.get("prompt", "short")),
                                               pods=job.target in served)
        for name, route, prompt in visited:
            self._publisher.declare_canary(name, route, prompt, pods=True)
        targets = {job.target for job in jobs.values() if job.probe == CANARY}
        for target in {job.target for job in self._jobs.values() if job.probe == CANARY} - targets:
            self._publisher.canary_removed(target)
        self._memory.configure(config)
        self._config, self._jobs = config, jobs
        self._dispatcher.caps = Caps(config.launch.concurrency, config.launch.canary_concurrency)
        self._manners.settings = config.canary.courtesy
        self._manners.keep({target.name for target in config.canary.targets})
        self._dispatcher.keep([*jobs, *(self._pairing.visits if self._pairing is not None else ())])
        self._scheduler.apply(list(jobs.values()))

    @staticmethod
    def _nodes_of(jobs: Mapping[str, Job]) -> set[str]:
        return {node for job in jobs.values() if job.probe != CANARY for node in job.nodes}

    def _instance_types(self, run: Run) -> dict[str, str | None]:
        if self._fleet is not None:
            return {name: node.instance_type for name in run.spec.nodes if (node := self._fleet.node(name)) is not None}
        return {node.name: node.instance_type for node in self._config.inventory.members()}


def _unstarted(spec: RunSpec, why: str, now: float) -> Run:
    results = tuple(missing_result(spec, rank, Reason.LAUNCH_FAILED, why, now, now) for rank in range(spec.world_size))
    return Run(spec, results, now, now)
