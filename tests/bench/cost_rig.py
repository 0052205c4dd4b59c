"""What the cost benchmarks share: a day of the default configuration on a simulated fabric, with NCCL and one canary target switched on."""

from __future__ import annotations

import functools
from typing import Any

import probes
from exporter import log
from exporter.config import Config
from exporter.config.log import Logging
from exporter.inventory.model import Inventory
from exporter.launch.fabric import Layout, make_inventory
from exporter.launch.faults import Fault, FaultKind
from exporter.plan.forecast import Forecast, forecast
from exporter.plan.journal import Journal
from exporter.plan.planned import World
from exporter.plan.planner import Planner
from exporter.plan.probes import probe_plans
from exporter.simulation.driver import simulate
from exporter.simulation.report import Report
from exporter.simulation.scenario import START, Scenario, default_config

NODES = 32
LAYOUT = Layout(NODES, "p5.48xlarge", unequal=True)
DAY = 86400.0


def config() -> Config:
    """The defaults with EFA, NCCL on one GPU every 6 h, and a canary target with both prompts."""
    made = default_config(canary={"targets": [{"name": "chat", "url": "http://router:8000", "model": "m"}]})
    nccl = made.probes.nccl.model_copy(update={"enabled": True})
    return made.model_copy(update={"probes": made.probes.model_copy(update={"nccl": nccl})})


@functools.cache
def day() -> Report:
    """A day with one slow node, one that hangs for an hour, and one run in a hundred that cannot be measured."""
    log.configure(Logging(level="error"))
    faults = (Fault(FaultKind.SLOW_NODE, "sim-00003", start=3600), Fault(FaultKind.HANG, "sim-00009", start=7200, end=10800),
              Fault(FaultKind.UNKNOWN, "all", severity=0.01))
    return simulate(Scenario(LAYOUT, DAY, seed=3, faults=faults, chance=0.001, config=config()))


def declared() -> Forecast:
    """What `plan` prints for the same configuration and nodes."""
    inventory: Inventory = make_inventory(LAYOUT, 3, START)
    made = config()
    return forecast(Planner(probe_plans(made), made.planning, Journal(), inventory, START), World(START, inventory), made.canary)


def row(name: str, what: str, value: float, goal: float) -> dict[str, Any]:
    """A share of a node's time against its goal."""
    return {"name": name, "what": what, "value": value, "unit": "", "peer": None, "peer_value": None, "ratio": None,
            "goal": f"below {goal:g}", "holds": value < goal, "versions": {"efa-pulse": probes.__version__}}
