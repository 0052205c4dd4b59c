"""`efa-pulse simulate`: the service's own control loop on a simulated fabric with injected faults, in accelerated time."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from exporter import config as configuration
from exporter import log
from exporter.cli import render
from exporter.cli.demo import ENDPOINT, free_address, simulated_endpoint
from exporter.cli.exits import Exit, UsageError
from exporter.cli.probe import JsonOption
from exporter.config.canary import Canary
from exporter.config.log import Logging
from exporter.launch.fabric import make_inventory
from exporter.launch.faults import FaultKind, parse_fault
from exporter.simulation.driver import Progress, layout_of
from exporter.simulation.driver import simulate as run_scenario
from exporter.simulation.live import LiveSimulation
from exporter.simulation.report import Report
from exporter.simulation.scenario import START, Scenario, default_config
from probes.efa import instances

FAULT_HELP = f"Inject a fault; may be repeated. WHERE may be a node's number. Kinds: {', '.join(kind.value for kind in FaultKind)}."

SERVE_HELP = ("Then go on at the pace of the wall clock and serve metrics and status pages here. Canaries go to the bundled simulated "
              "endpoint unless --config names others.")


def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="Nodes of the fabric.")] = 64,
    fault: Annotated[list[str] | None, typer.Option(metavar="KIND:WHERE[,start=S,end=S,severity=X,device=N]", help=FAULT_HELP)] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=24 * 366, help="Simulated time.")] = 4.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same simulation.")] = 0,
    instance_type: Annotated[str, typer.Option(help="EC2 instance type of the nodes.")] = "p5.48xlarge",
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration; default: the defaults, EFA required.")] = None,
    serve: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=SERVE_HELP)] = None,
    seconds: Annotated[float | None, typer.Option(min=1, help="With --serve: end after so many seconds.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Print what was injected, what was found, when, and how many probe runs it cost. Status 0: all found and nobody else named."""
    if seconds is not None and serve is None:
        raise UsageError("--seconds: only together with --serve")
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

    def show(report: Report) -> None:
        if as_json:
            sys.stdout.write(json.dumps(report.to_json(), indent=2) + "\n")
        else:
            for line in report.lines():
                out.print(line, markup=False, highlight=False, soft_wrap=True)

    scenario = Scenario(layout, hours * 3600.0, seed, faults, config=loaded)
    progress = told if out.is_terminal else None
    if serve is not None:
        return _serve(scenario, serve, seconds, progress, show, out)
    report = run_scenario(scenario, progress)
    show(report)
    return Exit.OK if report.ok else Exit.BAD


def _serve(scenario: Scenario, listen: str, seconds: float | None, progress: Progress | None, show: Callable[[Report], None],
           out: Console) -> int:
    """Play the scenario up to now, then live on until the time is up or the command is interrupted."""
    reports: list[Report] = []
    with contextlib.ExitStack() as stack:
        config = scenario.config
        if config is None or not config.canary.targets:
            url = stack.enter_context(simulated_endpoint())
            canary = Canary.model_validate({"targets": [{"name": ENDPOINT, "url": url, "model": "simulated-pd", "prompts": {
                "short": {"schedule": {"interval": "10s", "stagger": False}, "params": {"total_timeout": 8}},
                "long": {"schedule": {"interval": "60s", "stagger": False}, "params": {"total_timeout": 15}}}}]})
            config = default_config(canary=canary.model_dump(mode="json", exclude_unset=True)) if config is None else config.model_copy(
                update={"canary": canary})
        server = config.server.model_copy(update={"listen": free_address(listen, out, "--serve")})
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efa-pulse-simulate-")))
        live = LiveSimulation(replace(scenario, config=config), folder, server, progress)

        def ready(report: Report) -> None:
            reports.append(report)
            show(report)
            out.print(f"It goes on at the pace of the wall clock: {live.url}status and {live.url}metrics. Ctrl-C ends it.", markup=False)

        end = time.monotonic() + seconds if seconds is not None else math.inf
        with contextlib.suppress(KeyboardInterrupt):
            live.run(ready, lambda: time.monotonic() >= end)
    return Exit.OK if reports and reports[0].ok else Exit.BAD
