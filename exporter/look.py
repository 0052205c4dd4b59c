"""What the control loop tells the status board in one turn: the scheduler's jobs, the planner's rounds, closed gates, what runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import probes
from exporter.config import Config, Job
from exporter.config.quiet import holding
from exporter.dispatch import Dispatcher
from exporter.fleet import Fleet
from exporter.inventory.model import Node
from exporter.plan.gates import Moment, Stay, closed
from exporter.plan.planner import Planner
from exporter.plan.probes import ProbePlan
from exporter.scheduler import Scheduler
from exporter.status import Looked

NODES_AT_ONCE = 250
"""Nodes whose gates are looked at in one turn, so that a large fleet does not hold up the loop; the planner looks for itself."""

Json = dict[str, Any]


class Look:
    """Reads the parts of the control loop, in its thread. `fleet` of `now` may be another one each time: a new leader makes its own."""

    def __init__(self) -> None:
        self._gates: dict[str, dict[str, list[Json]]] = {}
        self._next = 0
        self._gates_of: Fleet | None = None

    def now(self, at: float, *, config: Config, jobs: Iterable[Job], scheduler: Scheduler, dispatcher: Dispatcher, fleet: Fleet | None,
            leading: bool | None, paused: str | None, background: Mapping[str, float],
            loaded: tuple[bool, str | None, float]) -> Looked:
        """What there is to see at `at` (Unix seconds). `loaded` is whether the last configuration was taken, why not, and when."""
        due = scheduler.next_runs()
        known: list[Json] = [{"id": job.id, "probe": job.probe, "target": job.target, "nodes": job.nodes, "next": due.get(job.id),
                  "prompt": str(job.spec.get("prompt", "short")) if job.probe == "canary" else None} for job in jobs]
        running: list[Json] = [{"run_id": run_id, "probe": job.probe, "target": job.target, "job": job.id, "why": "schedule"}
                               for run_id, job in dispatcher.running.items()]
        names = frozenset(node for job in known if job["probe"] != "canary" for node in job["nodes"])
        held = paused if paused is not None else "the scheduler is paused" if scheduler.paused else None
        base = Looked(at, probes.__version__, known, waiting=dispatcher.waiting, running=running, leading=leading, paused=held,
                      quiet=_quiet(config, at), nodes=names if leading is None else None, config_ok=loaded[0], config_error=loaded[1],
                      config_at=loaded[2])
        if fleet is None:
            return base
        planner = fleet.planner
        running += [{"run_id": run.run_id, "probe": run.probe, "target": run.target, "job": None, "why": run.why}
                    for run in planner.flying.values()]
        alone: dict[str, dict[str, str]] = {name: {} for name in planner.probes_by_name}
        for (probe, _), turn in planner.turns.items():
            alone[probe].update({book.name: why for one, why in turn.alone.items() if (book := planner.books.get(one)) is not None})
        return replace(base, planned=tuple(planner.probes_by_name), rounds=_rounds(planner),
                      inventory=planner.inventory, nodes=names | {node.name for node in planner.inventory},
                      gates=self._look_at_gates(fleet, at, background), alone=alone, wake_at=fleet.wake_at, unplaced=fleet.unplaced,
                      localiser=fleet.localiser)

    def _look_at_gates(self, fleet: Fleet, at: float, background: Mapping[str, float]) -> Mapping[str, Mapping[str, list[Json]]]:
        """Closed gates by node and probe; the next few nodes are looked at anew. A pause, quiet windows and our own runs are told apart."""
        planner = fleet.planner
        if fleet is not self._gates_of:
            self._gates, self._next, self._gates_of = {}, 0, fleet
        nodes = planner.inventory.nodes
        self._next = self._next if self._next < len(nodes) else 0
        part = nodes[self._next:self._next + NODES_AT_ONCE]
        found = {name: gates for name, gates in self._gates.items() if planner.inventory.named(name) is not None}
        moment = Moment(at, planner.settings.gates, background=background)
        for node in part:
            shut = {plan.name: gates for plan in planner.probes_by_name.values() if (gates := _closed(planner, node, plan, moment))}
            found.pop(node.name, None)
            if shut:
                found[node.name] = shut
        self._next += len(part)
        self._gates = found
        return found


def _closed(planner: Planner, node: Node, plan: ProbePlan, moment: Moment) -> list[Json]:
    shut = closed(node, plan.needs, moment)
    spent = planner.accounts.closed(node, plan.cost, moment.now)
    return [{"gate": one.gate, "why": one.why, "lasting": one.stay is Stay.LASTING} for one in (*shut, *((spent,) if spent else ()))]


def _rounds(planner: Planner) -> list[Json]:
    """Where each probe stands in each group. `next` is when the next run of the round may start, or the next round."""
    found: list[Json] = []
    for (probe, group), turn in planner.turns.items():
        at = turn.next_allowed(planner.settings.spread, turn.plan.start_spread) if turn.queue else turn.due_at()
        found.append({"probe": probe, "group": group, "number": turn.number, "kind": turn.kind, "started": turn.started,
                      "launched": turn.launched, "total": turn.total, "next": at if math.isfinite(at) else None})
    return found


def _quiet(config: Config, at: float) -> dict[str, str]:
    """Why a probe is not started now, for those that are in a quiet window."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    return {name: window.reason or "quiet window" for name, probe in config.probes.items()
            if (window := holding(probe.schedule.when(config.schedule).quiet, moment)) is not None}
