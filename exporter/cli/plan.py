"""`efa-pulse plan`: what a configuration would run, when, and what it costs, before anything runs.

Of this machine or a static list: every job. Of a cluster, or of one that is only assumed: `exporter.cli.fleetplan`.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from exporter import config as configuration
from exporter.cli import fleetplan, render
from exporter.cli.cluster import ContextOption, KubeconfigOption, Place
from exporter.cli.exits import Exit, UsageError
from exporter.cli.probe import JsonOption
from exporter.config import Config, Job
from exporter.plan.cost import canary_gpu_seconds, declared
from exporter.scheduler import Scheduler
from probes.canary.params import CanaryParams
from probes.units import show_duration

DAY = 86_400.0


def plan(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; without one the defaults hold.")] = None,
    assume: Annotated[str | None, typer.Option(metavar="TYPE=COUNT,...", help="Plan a fleet of so many nodes, without a cluster.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="NODE|all", help="Say why this node, or every one, is left out now.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Coming rounds to print, of each probe and group.")] = 2,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print what would run next and what it costs: time, bytes, GPU time, coverage. Nothing is started.

    With inventory mode `kubernetes`, or with --kubeconfig or --context, the fleet is that of a cluster, planned from where its journal
    stands; --assume needs no cluster at all.
    """
    place = Place(kubeconfig, context, config)
    loaded = place.load()
    in_cluster = kubeconfig is not None or context is not None
    if assume is not None and in_cluster:
        raise UsageError("--assume makes the nodes up: it does not go with --kubeconfig or --context")
    if assume is not None or in_cluster or loaded.inventory.mode == "kubernetes":
        out = render.console(stderr=as_json)
        found = fleetplan.assumed(loaded, assume, rounds) if assume is not None else fleetplan.of_cluster(loaded, place, out, rounds)
        if as_json:
            fleetplan.write(found)
        else:
            fleetplan.show(found, out, explain=explain)
        return Exit.OK
    if explain is not None:
        raise UsageError("--explain is about the nodes of a cluster: set inventory.mode to kubernetes, or give --kubeconfig or --assume")
    loaded = configuration.load(config) if config is not None else Config()
    scheduler = Scheduler(queue.Queue())
    scheduler.apply(loaded.jobs())
    due = scheduler.next_runs()
    scheduler.stop(1.0)
    rows = sorted((_row(loaded, job, due.get(job.id)) for job in loaded.jobs()), key=lambda row: (row["next"] or 1e18, row["job"]))
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
    else:
        _print(rows)
    return Exit.OK


def _row(loaded: Config, job: Job, due: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"job": job.id, "probe": job.probe, "target": job.target, "nodes": list(job.nodes), "transport": job.transport,
                           "deadline": job.deadline, "interval": job.when.interval, "cron": job.when.cron, "next": due}
    if job.probe == "canary":
        seconds = canary_gpu_seconds(CanaryParams.model_validate(job.spec))
        return {**row, "wall": None, "bytes": None, "gpu_seconds": seconds}
    section = dict(loaded.probes.items())[job.probe]  # type: ignore[index]
    cost = declared(job.probe, section.params)
    return {**row, "wall": cost.wall, "bytes": cost.bytes, "gpu_seconds": cost.gpu_seconds}


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, justify in (("job", "left"), ("every", "left"), ("next", "left"), ("transport", "left"), ("takes at most", "right"),
                          ("moves at most", "right"), ("GPU time", "right"), ("runs a day", "right")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        often = show_duration(row["interval"]) if row["interval"] else str(row["cron"])
        when = "never" if row["next"] is None else f"in {max(0.0, row['next'] - time.time()):.0f} s"
        table.add_row(row["job"], often, when, row["transport"], "-" if row["wall"] is None else show_duration(round(row["wall"], 1)),
                      "-" if not row["bytes"] else f"{row['bytes'] / 1e9:.2f} GB",
                      f"{row['gpu_seconds']:.2g} s" if row["gpu_seconds"] else "-",
                      f"{DAY / row['interval']:.0f}" if row["interval"] else "-")
    out = render.console()
    out.print(table)
    gpu = sum(row["gpu_seconds"] * DAY / row["interval"] for row in rows if row["interval"])
    moved = sum((row["bytes"] or 0) * DAY / row["interval"] for row in rows if row["interval"])
    out.print(f"{len(rows)} jobs; a day moves at most {moved / 1e9:.0f} GB between the nodes and takes at most {gpu:.0f} GPU seconds. "
              "Bounds from the parameters; measured runs take less.")
