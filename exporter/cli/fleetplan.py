"""`efa-pulse plan` for a fleet: the next rounds, what each probe costs a node, coverage, and why a node is left out. Nothing is started."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from exporter.cli.cluster import Place
from exporter.cli.exits import NotMeasuredError, UsageError
from exporter.cli.progress import status
from exporter.cli.status import ago, clock_time
from exporter.config import Config
from exporter.fleet import Fleet
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.inventory.model import Inventory, Node, snapshot
from exporter.kube import pause
from exporter.kube.api import Api, ApiError
from exporter.kube.journal import ConfigMapJournal
from exporter.launch.fabric import Layout, make_inventory
from exporter.plan.coverage import Coverage, LeftOut, coverage, left_out
from exporter.plan.forecast import ComingRound, Forecast, ProbeCost, forecast
from exporter.plan.needs import needs_of
from exporter.plan.planned import World
from exporter.plan.store import MemoryStore
from probes.efa import instances
from probes.units import show_duration

SYNC_SECONDS = 60.0
MOST_ASSUMED = 20_000
PAIRS_SHOWN = 6
NODES_SHOWN = 8


@dataclass(frozen=True)
class Plan:
    """What is known of a fleet's plan. `about` says whose it is, `notes` what could not be read and what that means."""

    about: str
    nodes: tuple[Node, ...]
    forecast: Forecast
    coverage: tuple[Coverage, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"about": self.about, **self.forecast.to_json(), "notes": list(self.notes),
                "coverage": [{**vars(one), "ratio": one.ratio} for one in self.coverage],
                "left_out": [{"node": one.node.name, "instance_id": one.node.instance_id, "probe": one.probe, "gate": one.gate,
                              "why": one.why, "lasting": one.lasting} for one in self.left_out]}


def assumed(config: Config, text: str, rounds: int) -> Plan:
    """The plan of a fleet that is only assumed, `TYPE=COUNT[,TYPE=COUNT...]`, empty and never measured. Raises UsageError."""
    now = time.time()
    nodes: list[Node] = []
    for part in text.split(","):
        kind, _, count = (piece.strip() for piece in part.partition("="))
        if not kind or not count.isdecimal() or not 0 < int(count) <= MOST_ASSUMED:
            raise UsageError(f"--assume {text}: write TYPE=COUNT, for instance p5en.48xlarge=64, up to {MOST_ASSUMED} nodes of a type")
        if instances.lookup(kind) is None:
            raise UsageError(f"--assume {text}: {kind} is no instance type with EFA in the table")
        if any(node.instance_type == kind for node in nodes):
            raise UsageError(f"--assume {text}: {kind} is named twice")
        made = make_inventory(Layout(int(count), kind), seed=len(nodes), taken=now)
        nodes += [replace(node, name=f"{kind.partition('.')[0]}-{number:05d}") for number, node in enumerate(made)]
    fleet = Fleet(config, MemoryStore(), snapshot(nodes, now, "assumed"), needs=needs_of(config.kubernetes.pods))
    return _planned(f"An assumed fleet of {text}", config, fleet, fleet.world(), rounds, ())


def of_cluster(config: Config, place: Place, console: Console, rounds: int) -> Plan:
    """The plan of the cluster that a kubeconfig names, from where the service's journal stands. Raises UsageError, NotMeasuredError."""
    api = place.connect(config)
    try:
        with status(console, "reading the cluster"):
            inventory, moment = _inventory(api, config), api.now()
            notes: list[str] = []
            kube = config.kubernetes
            store = ConfigMapJournal(api, namespace=kube.namespace, name=f"{kube.install}-journal")
            needs = needs_of(kube.pods)
            try:
                fleet = Fleet(config, store, inventory, needs=needs)
            except OSError as error:
                notes.append(f"{error}; the plan is that of a fleet that was never measured")
                fleet = Fleet(config, MemoryStore(), inventory, needs=needs)
            paused = None
            try:
                found = pause.read(api, kube.namespace)
                paused = str(found) if found is not None else None
            except ApiError as error:
                notes.append(f"whether probing is paused cannot be read: {error}")
        if paused:
            notes.append(f"probing is paused: {paused}")
        skew = moment - time.time()
        if abs(skew) > 30:
            notes.append(f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} the API server's")
        return _planned("The cluster", config, fleet, fleet.world(paused=paused), rounds, notes)
    finally:
        api.close()


def show(plan: Plan, console: Console, *, explain: str | None) -> None:
    """The plan on a terminal. `explain` is a node's name or id, or `all`: say why it is left out. Raises UsageError."""
    found = plan.forecast
    if explain is not None and explain != "all" and not any(explain in (node.name, node.instance_id) for node in plan.nodes):
        known = _some([node.name for node in plan.nodes])
        raise UsageError(f"--explain {explain}: there is no EFA node {explain}; there are {known or 'none'}")
    console.print(f"{plan.about}: {found.nodes} EFA nodes, at most {found.concurrency} runs at a time", style="bold", markup=False)
    for note in plan.notes:
        console.print(note, style="yellow", markup=False)
    if not found.nodes:
        console.print("There is no EFA node: is the device plugin there? kubernetes.efa_resource and node_selector say what is looked for.")
        return
    console.print(_costs(found.probes))
    console.print(f"Together {found.fabric_share:.4%} of a node's fabric time and {found.gpu_share:.4%} of its GPU time "
                  f"(canaries {found.canary_gpu_share:.4%}), from the parameters; measured runs take less. "
                  f"Every node is measured once after {ago(found.first_coverage)}.", markup=False)
    console.print()
    console.print(_rounds(found.rounds))
    if plan.coverage:
        console.print()
        console.print(_coverage(plan.coverage))
    if found.holders:
        console.print()
        console.print("devices are held by " + _some([f"{pod} on {node}" for node, pod in found.holders]), markup=False)
    console.print()
    _why(plan.left_out, console, explain)


def write(plan: Plan) -> None:
    """The plan as JSON on standard output."""
    sys.stdout.write(json.dumps(plan.to_json(), indent=2, default=str) + "\n")


def _planned(about: str, config: Config, fleet: Fleet, world: World, rounds: int, notes: Iterable[str]) -> Plan:
    planner = fleet.planner
    problems = [f"a part of the journal could not be used: {problem}" for problem in fleet.problems]
    covered = tuple(coverage(planner, world, config.metrics.node_interval))
    return Plan(about, world.inventory.nodes, forecast(planner, world, config.canary, rounds), covered, tuple(left_out(planner, world)),
                (*notes, *problems))


def _inventory(api: Api, config: Config) -> Inventory:
    kube = config.kubernetes
    images = sorted({need.image for need in needs_of(kube.pods).values() if need.image is not None})
    rights = "it takes the rights to list nodes and pods"
    for path in ("/api/v1/nodes", "/api/v1/pods"):
        try:
            api.get(path, {"limit": 1})
        except ApiError as error:
            raise NotMeasuredError(f"{error}; {rights}") from None
    inventory = KubernetesInventory(api, kube, images=images)
    try:
        inventory.start()
        if not inventory.wait(SYNC_SECONDS):
            raise NotMeasuredError(f"the cluster could not be read within {SYNC_SECONDS:g} s: {inventory.trouble or 'no answer'}; {rights}")
        return inventory.snapshot()
    finally:
        inventory.close()


def _costs(probes: Iterable[ProbeCost]) -> Table:
    table = _table(("probe", "left"), ("every", "left"), ("takes at most", "right"), ("moves a node", "right"), ("GPU time", "right"),
                   ("a day", "right"), ("fabric", "right"), ("GPU", "right"), ("image", "right"), ("a round takes", "right"),
                   ("all pairs met after", "right"))
    for one in probes:
        gpu = f"{one.cost.gpu_seconds:.3g} s" if one.cost.gpu_seconds else "-"
        table.add_row(one.probe, show_duration(one.interval), show_duration(round(one.cost.wall, 1)), _size(one.cost.bytes) or "-", gpu,
                      f"{one.runs_per_day:.3g} runs", f"{one.fabric_share:.4%}", f"{one.gpu_share:.4%}",
                      _size(one.image_bytes) or "not known", _time(one.round_seconds), _time(one.cycle_seconds))
    return table


def _rounds(rounds: Iterable[ComingRound]) -> Table:
    table = _table(("next rounds", "left"), ("begins", "left"), ("pairs", "left"), ("without a partner", "left"))
    for one in rounds:
        pairs = _some([f"{a} + {b}" for a, b in one.pairs], PAIRS_SHOWN)
        table.add_row(f"{one.probe} #{one.number} ({one.group})", clock_time(one.begins), pairs or "-", _some(one.alone) or "-")
    return table


def _coverage(rows: Iterable[Coverage]) -> Table:
    table = _table(("coverage", "left"), ("distance", "left"), ("measured", "right"), ("of", "right"), ("oldest", "right"),
                   ("cannot be measured", "right"))
    for one in rows:
        table.add_row(one.probe, one.stratum, str(one.measured), str(one.nodes), _time(one.oldest), str(one.lasting or "-"))
    return table


def _why(rows: Iterable[LeftOut], console: Console, explain: str | None) -> None:
    """Who is left out. Without `explain` one line a reason, with the nodes that it holds back counted."""
    rows = tuple(rows)
    if explain is not None:
        rows = tuple(row for row in rows if explain in ("all", row.node.name, row.node.instance_id))
        if not rows:
            console.print("No gate is closed: nothing keeps probes away" + ("." if explain == "all" else f" from {explain}."), markup=False)
            return
        table = _table(("node", "left"), ("probe", "left"), ("gate", "left"), ("why", "left"), ("passes by itself", "left"))
        for row in rows:
            table.add_row(row.node.name, row.probe, row.gate or "-", row.why, "no" if row.lasting else "yes")
        console.print(table)
        return
    kinds: dict[tuple[str, bool], dict[str, None]] = {}
    for row in rows:
        kinds.setdefault((row.gate or "alone", row.lasting), {})[row.node.name] = None
    if not kinds:
        console.print("No node is left out.")
        return
    table = _table(("left out now", "left"), ("nodes", "right"), ("which", "left"), ("passes by itself", "left"))
    for (gate, lasting), names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        table.add_row(gate, str(len(names)), _some(names, 4), "no" if lasting else "yes")
    console.print(table)
    console.print("`efa-pulse plan --explain all` says why, node by node.", style="dim", markup=False)


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _some(names: Iterable[str], most: int = NODES_SHOWN) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else ago(seconds)


def _size(count: int | None) -> str:
    return f"{count / 1e9:.3g} GB" if count else ""
