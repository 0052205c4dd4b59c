"""`efa-pulse simulate`: the service's own control loop on a simulated fabric with injected faults, in accelerated time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from exporter import config as configuration
from exporter import log
from exporter.cli import render
from exporter.cli.exits import Exit, UsageError
from exporter.cli.probe import JsonOption
from exporter.config.log import Logging
from exporter.launch.fabric import make_inventory
from exporter.launch.faults import FaultKind, parse_fault
from exporter.simulation.driver import layout_of
from exporter.simulation.driver import simulate as run_scenario
from exporter.simulation.scenario import START, Scenario
from probes.efa import instances

FAULT_HELP = f"Inject a fault; may be repeated. WHERE may be a node's number. Kinds: {', '.join(kind.value for kind in FaultKind)}."


def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="Nodes of the fabric.")] = 64,
    fault: Annotated[list[str] | None, typer.Option(metavar="KIND:WHERE[,start=S,end=S,severity=X,device=N]", help=FAULT_HELP)] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=24 * 366, help="Simulated time.")] = 4.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same simulation.")] = 0,
    instance_type: Annotated[str, typer.Option(help="EC2 instance type of the nodes.")] = "p5.48xlarge",
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration; default: the defaults, EFA required.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Print what was injected, what was found, when, and how many probe runs it cost. Status 0: all found and nobody else named."""
    if instances.lookup(instance_type) is None:
        raise UsageError(f"--instance-type {instance_type}: no such type with EFA in the table")
    loaded = configuration.load(config, references=False) if config is not None else None
    layout = layout_of(nodes, instance_type)
    names = sorted(node.name for node in make_inventory(layout, seed, START))
    try:
        faults = tuple(parse_fault(text, names) for text in fault or [])
    except ValueError as error:
        raise UsageError(f"--fault: {error}") from None
    log.configure(Logging(level="error"))
    out = render.console(stderr=as_json)

    def told(after: float, what: str) -> None:
        out.print(f"{after / 3600:6.2f} h  {what}", markup=False, style="dim")

    report = run_scenario(Scenario(layout, hours * 3600.0, seed, faults, config=loaded), told if out.is_terminal else None)
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
    else:
        for line in report.lines():
            out.print(line, markup=False, highlight=False, soft_wrap=True)
    return Exit.OK if report.ok else Exit.BAD
