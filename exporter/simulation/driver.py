"""Runs a scenario: simulated time moves from one event to the next, the control loop is the service's own."""

from __future__ import annotations

import math
import queue
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import probes
from exporter.control import Control
from exporter.events import Event, Finished, Inventoried
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory, Room
from exporter.judge.casebook import Change
from exporter.judge.hypotheses import Finding
from exporter.judge.verdict import Verdict
from exporter.launch import Launcher, OnFinished
from exporter.launch.fabric import Fabric, Layout, make_inventory
from exporter.launch.faults import OF_NODES, Fault, FaultKind
from exporter.launch.routed import RoutedLauncher
from exporter.launch.simulated import SimulatedClock, SimulatedLauncher
from exporter.plan.cost import actual_cost, canary_gpu_seconds
from exporter.plan.store import MemoryStore
from exporter.publish.publisher import Publisher
from exporter.publish.store import Snapshot
from exporter.runs import Run
from exporter.scheduler import Scheduler
from exporter.simulation.report import Found, Report
from exporter.simulation.scenario import START, Scenario, default_config, with_floors
from exporter.status import StatusBoard
from exporter.survey import Survey

RENDER_SECONDS = 30.0
SURVEY_SECONDS = 300.0
"""How often gates and coverage are looked at for the page: what is found does not depend on it."""
Progress = Callable[[float, str], None]
"""Called with the seconds that have passed in the simulation and what happened, in words."""


class PacedPublisher(Publisher):
    """A publisher that renders once in `pace` seconds of simulated time: nobody scrapes in between."""

    def __init__(self, clock: Callable[[], float], **settings: Any) -> None:
        self.pace = RENDER_SECONDS
        self._simulated = clock
        self._rendered_at = -math.inf
        super().__init__(probes.__version__, **settings)

    def commit(self) -> Snapshot:
        """Make what was told visible, when it is time to."""
        now = self._simulated()
        if now - self._rendered_at < self.pace:
            return self.snapshot
        self._rendered_at = now
        return super().commit()


class Simulation:
    """One scenario while it runs. `control`, `fleet` and `fabric` are the real parts, open to tests.

    It begins at `start`, Unix seconds. `board` is told what happens; with `canaries` requests of canaries go to that launcher.
    """

    def __init__(self, scenario: Scenario, folder: Path, progress: Progress | None = None, *, start: float = START,
                 board: StatusBoard | None = None, canaries: Callable[[OnFinished], Launcher] | None = None,
                 survey_seconds: float = SURVEY_SECONDS) -> None:
        self.scenario = scenario
        self.start = start
        self.clock = SimulatedClock(start)
        self.events: queue.Queue[Event] = queue.Queue()
        inventory = make_inventory(scenario.layout, scenario.seed, start)
        faults = [replace(fault, start=start + fault.start, end=start + fault.end) for fault in scenario.faults]
        self.fabric = Fabric(inventory, scenario.seed, faults, scenario.chance)
        self.launcher = SimulatedLauncher(self.fabric, self.clock, self._ended)
        self.config = with_floors(scenario.config or default_config(), self.fabric, inventory.nodes[0])
        self.store = MemoryStore()
        self.fleet = Fleet(self.config, self.store, inventory, clock=self.clock, monotonic=self.clock)
        self.fleet.listen(self._concluded)
        metrics = self.config.metrics
        self.publisher = PacedPublisher(self.clock, max_series=metrics.max_series, node_interval=metrics.node_interval,
                                        best_of=metrics.best_of, cluster=True)
        self.publisher.leading(True)
        self.canaries = canaries(self._ended) if canaries is not None else None
        launcher = RoutedLauncher(self.launcher, self.canaries) if self.canaries is not None else self.launcher
        self.scheduler = Scheduler(self.events) if self.canaries is not None else Scheduler(self.events, clock=self.clock)
        self.control = Control(self.config, events=self.events, launcher=launcher, scheduler=self.scheduler, publisher=self.publisher,
                               secrets_dir=folder, clock=self.clock, fleet=self.fleet, ask=self.launcher.answers, board=board,
                               survey=Survey(self.publisher, pace=survey_seconds))
        self.control.listen(self._judged)
        self.report = Report(scenario.layout.nodes, scenario.seconds, scenario.faults)
        self._progress = progress
        self._windows = self._gpu_seconds = self._bytes = 0.0
        self._node_seconds = 0.0
        self._changed_at = start
        self._serial = len(inventory)

    def run(self) -> Report:
        """Run to the end of the scenario."""
        began = time.perf_counter()
        end = self.start + self.scenario.seconds
        for after, count in self.scenario.joins:
            self.clock.call_at(self.start + after, lambda count=count: self._join(count))  # type: ignore[misc]
        for after, count in self.scenario.leaves:
            self.clock.call_at(self.start + after, lambda count=count: self._leave(count))  # type: ignore[misc]
        self.control.handle(Inventoried(self.fabric.inventory))
        while self.clock() < end:
            if self.events.empty():
                self.clock.advance(min(max(self.fleet.wake_at, self.clock()), end))
            if self.events.empty():
                self.control.handle(None)
            while not self.events.empty():
                self.control.handle(self.events.get_nowait())
        return self._closed(time.perf_counter() - began)

    def _closed(self, wall: float) -> Report:
        report = self.report
        self._account()
        report.runs = dict(self.launcher.starts)
        report.overlaps = list(self.launcher.overlaps)
        seconds = max(self._node_seconds, 1.0)
        gpus = next((node.gpu.allocatable for node in self.fabric.inventory if node.gpu is not None), 0)
        canaries = sum(canary_gpu_seconds(target.request(kind)) * self.scenario.seconds / (prompt.schedule.interval or 3600.0)
                       for target in self.config.canary.targets if target.enabled
                       for kind, prompt in target.prompts.items() if prompt.enabled)
        report.fabric_time = self._windows / seconds
        report.gpu_time = (self._gpu_seconds + canaries) / (seconds * gpus) if gpus else 0.0
        report.bytes_per_node_day = self._bytes / seconds * 86400
        page = b"".join(segment.text for segment in self.publisher.snapshot.classic.segments)
        report.series = sum(1 for line in page.splitlines() if line and not line.startswith(b"#"))
        report.dropped = _dropped(page)
        report.journal_writes = self.store.writes
        report.wall = wall
        return report

    def _ended(self, run: Run) -> None:
        self.events.put(Finished(run))

    def _judged(self, verdict: Verdict) -> None:
        outcome = verdict.outcome.value
        self.report.outcomes[outcome] = self.report.outcomes.get(outcome, 0) + 1
        self.report.repairs += verdict.run.spec.labels.get("why") == "suspect"
        plan = self.fleet.planner.probes_by_name.get(verdict.run.spec.probe)
        if plan is not None:
            cost = actual_cost(verdict.run, plan.cost)
            ranks = verdict.run.spec.world_size
            self._windows += cost.window * ranks
            self._gpu_seconds += cost.gpu_seconds * ranks
            self._bytes += cost.bytes * ranks

    def _concluded(self, change: Change) -> None:
        after = self.clock() - self.start
        if change.finding is not None and change.what == "found":
            names = self._names(change.finding)
            told = replace(change.finding, says=self._readable(change.finding.says))
            found = Found(told, after, sum(self.launcher.starts.values()), names, self._fault(change.finding, names))
            self.report.found.append(found)
        elif change.finding is not None and change.what == "over":
            self.report.over.append((after, change.finding))
        if self._progress is not None:
            who = self._name(change.node) if change.node is not None else ""
            self._progress(after, f"{change.probe}: {change.what} {who}: {self._readable(change.says)}")

    def _names(self, finding: Finding) -> tuple[str, ...]:
        if finding.kind == "group" or finding.subjects[0] == "link":
            return (f"{finding.subjects[0]} {finding.subjects[1]}",)
        if finding.kind == "nic":
            return (self._name(finding.subjects[0]), finding.subjects[1])
        return tuple(self._name(one) for one in finding.subjects)

    def _readable(self, text: str) -> str:
        """The text with names for instance ids."""
        return re.sub(r"i-[0-9a-f]{17}", lambda found: self._name(found[0]), text)

    def _name(self, instance_id: str) -> str:
        node = self.fabric.inventory.get(instance_id)
        return node.name if node is not None else instance_id

    def _fault(self, finding: Finding, names: tuple[str, ...]) -> Fault | None:
        """The injected fault that a finding names rightly."""
        now = self.clock()
        for fault, told in zip(self.fabric.faults, self.scenario.faults, strict=True):
            if fault.active(now) or (fault.start <= now and finding.since <= fault.end):
                if fault.kind in OF_NODES and (names[0] == fault.where or (finding.kind == "pair" and fault.where in names)):
                    return told
                if finding.kind == "group" and fault.kind in (FaultKind.LOSSY_LEAF, FaultKind.CLOSED_SECURITY_GROUP):
                    return told
                if finding.kind == "path" and fault.kind is FaultKind.LOSSY_PATH:
                    return told
        return None

    def _join(self, count: int) -> None:
        """New nodes, on leaves of their own."""
        layout = replace(self.scenario.layout, nodes=count)
        fresh = make_inventory(layout, self.scenario.seed + self._serial, self.clock())
        nodes = [replace(node, name=f"sim-{self._serial + index:05d}", created=self.clock(),
                         network_nodes=(*node.network_nodes[:-1], f"{node.network_nodes[-1]}-{self._serial}"))
                 for index, node in enumerate(fresh)]
        self._serial += count
        self._change(Inventory((*self.fabric.inventory.nodes, *nodes), self.clock(), "simulated"))

    def _leave(self, count: int) -> None:
        """The nodes that sort first leave, in mid-run as well."""
        self._change(Inventory(self.fabric.inventory.nodes[count:], self.clock(), "simulated"))

    def _change(self, inventory: Inventory) -> None:
        self._account()
        self.fabric.inventory = inventory
        self.events.put(Inventoried(inventory))

    def _account(self) -> None:
        """Add up the time that nodes were there."""
        now = self.clock()
        self._node_seconds += len(self.fabric.inventory) * (now - self._changed_at)
        self._changed_at = now


def simulate(scenario: Scenario, progress: Progress | None = None) -> Report:
    """Run a scenario to its end. Raises ValueError for one that makes no sense."""
    if scenario.layout.nodes < 1:
        raise ValueError("a fabric needs at least one node")
    with tempfile.TemporaryDirectory(prefix="efa-pulse-simulate-") as folder:
        return Simulation(scenario, Path(folder), progress).run()


def occupied(inventory: Inventory, share: float) -> Inventory:
    """The same nodes with `share` of them fully held by production, for tests of gates."""
    count = int(len(inventory) * share)
    nodes = [replace(node, efa=Room(node.efa.allocatable, node.efa.allocatable)) if index < count and node.efa is not None else node
             for index, node in enumerate(inventory)]
    return Inventory(tuple(nodes), inventory.taken, inventory.source)


def layout_of(nodes: int, instance_type: str = "p5.48xlarge") -> Layout:
    """A fabric of equal leaves for so many nodes."""
    return Layout(nodes, instance_type)


def _dropped(page: bytes) -> int:
    return sum(int(float(line.rsplit(b" ", 1)[1])) for line in page.splitlines() if line.startswith(b"efapulse_series_dropped_total{"))
