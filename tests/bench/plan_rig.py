"""What the planning benchmarks share: a fleet of simulated nodes and the service's own planner over it.

Times are CPU time of the planner's thread: what else runs on the machine does not count.
"""

from __future__ import annotations

import platform
import time
from dataclasses import replace
from typing import Any

import probes
from exporter.inventory.model import Inventory
from exporter.launch.fabric import Layout, make_inventory
from exporter.plan.journal import Journal
from exporter.plan.planned import World
from exporter.plan.planner import Ended, Planner
from exporter.plan.probes import probe_plans
from exporter.simulation.scenario import START, default_config
from probes.reasons import Outcome, Reason

ROUNDS = 12


def rows(name: str, nodes: int, goal_ms: float) -> list[dict[str, Any]]:
    """The longest decision in which rounds of both KV probes begin, and how long a changed inventory takes to be taken in."""
    inventory = make_inventory(Layout(nodes, unequal=True), 1, START)
    config = default_config()
    planner = Planner(probe_plans(config), config.planning, Journal(), inventory, START)
    begin: list[float] = []
    usual: list[float] = []
    taken: list[float] = []
    now = START
    for number in range(ROUNDS):
        inventory = changed(inventory, number)
        before = time.thread_time()
        planner.take_in(inventory, now)
        taken.append(time.thread_time() - before)
        begin.append(decide(planner, inventory, now))
        usual += [decide(planner, inventory, now + 1 + step * 20) for step in range(40)]
        for turn in planner.turns.values():
            turn.queue.clear()
        now += 1801.0
    goal = f"at most {goal_ms:g} ms"

    def row(what: str, value: float, holds: bool | None, goal: str | None) -> dict[str, Any]:
        return {"name": name, "what": what, "value": value, "unit": "s", "peer": None, "peer_value": None, "ratio": None,
                "goal": goal, "holds": holds, "versions": {"efa-pulse": probes.__version__, "python": platform.python_version()}}

    return [
        row(f"longest of {ROUNDS} decisions that begin a round over {nodes} nodes", max(begin), max(begin) * 1e3 <= goal_ms, goal),
        row(f"mean of {len(usual)} decisions within rounds", sum(usual) / len(usual), None, None),
        row("longest time to take in an inventory in which one node was replaced", max(taken), max(taken) * 1e3 <= goal_ms, goal),
    ]


def decide(planner: Planner, inventory: Inventory, now: float) -> float:
    """One decision, in seconds; the runs it starts end at once."""
    before = time.thread_time()
    decision = planner.due(World(now, inventory, running=len(planner.flying)))
    passed = time.thread_time() - before
    for run in decision.runs:
        planner.finished(Ended(run.run_id, now + 1, Outcome.OK, Reason.OK))
    return passed


def changed(inventory: Inventory, number: int) -> Inventory:
    """The same nodes, one of them replaced by a new instance under the same name."""
    nodes = list(inventory)
    index = number % len(nodes)
    nodes[index] = replace(nodes[index], instance_id=f"i-{number:017x}")
    return Inventory(tuple(nodes), inventory.taken + 1, inventory.source)
