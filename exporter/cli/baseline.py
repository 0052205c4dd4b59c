"""`efa-pulse baseline`: what was learned of measured figures, shown, carried elsewhere, or begun anew."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from exporter.cli import render
from exporter.cli.baseline_places import Source, source
from exporter.cli.cluster import ConfigOption, ContextOption, KubeconfigOption, Place
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.judge import exchange
from exporter.judge.baseline import NODE, NORM, Baselines, Watched
from exporter.judge.norm import Norm
from exporter.plan.journal import Journal
from probes.units import show_size

app = typer.Typer(name="baseline", help="What was learned of measured figures: show it, carry it elsewhere, begin anew.",
                  no_args_is_help=True, add_completion=False)

SCHEMA = "efa-pulse/baseline-list/v1"
NODE_BOOK = "node/"

FileOption = Annotated[Path | None, typer.Option("--file", metavar="PATH",
                                                 help="The file of a service without a cluster (`baselines.file`).")]
ProbeOption = Annotated[str | None, typer.Option("--probe", help="Only of this probe.")]
NodeOption = Annotated[str | None, typer.Option("--node", help="Only this node, by name.")]
StoppedOption = Annotated[bool, typer.Option("--stopped", help="The service in the cluster is stopped, whatever its Lease says.")]


@app.command("show")
def show(
    node: NodeOption = None,
    probe: ProbeOption = None,
    file: FileOption = None,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> int:
    """Show baselines with their spread, age and what they were before an upgrade, and how nodes stand to them."""
    now = time.time()
    with source(file, Place(kubeconfig, context, config)) as place:
        journal = _read(place)
        book, _ = exchange.loaded(journal.records, place.settings)
    names = {one: str(record.get("name", one)) for one, record in journal.under(NODE_BOOK)}
    if node is not None:
        wanted = [one for one in book.nodes if names.get(one, one) == node or one == node]
        if not wanted:
            raise NotMeasuredError(f"nothing is learned of node {node!r} in {place.where}")
    else:
        wanted = sorted(book.nodes, key=lambda one: names.get(one, one))
    norms = sorted((norm for norm in book.norms.values() if probe in (None, norm.key.probe)), key=lambda norm: norm.key)
    rows = [_norm(norm, book, now) for norm in norms] if node is None else []
    nodes = [_node(names.get(one, one), one, name, its) for one in wanted for name, its in sorted(book.nodes[one].items())
             if probe in (None, name)]
    if as_json:
        sys.stdout.write(json.dumps({"schema": SCHEMA, "now": now, "baselines": rows, "nodes": nodes}, indent=2) + "\n")
    else:
        _print(rows, nodes if node is not None else [one for one in nodes if one["state"] == "changed"], len(wanted))
    return Exit.BAD if any(one["state"] == "changed" for one in nodes) else Exit.OK


@app.command("export")
def export(
    target: Annotated[Path | None, typer.Argument(help="File to write; default: standard output.")] = None,
    file: FileOption = None,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> int:
    """Write everything that is learned as one JSON document."""
    with source(file, Place(kubeconfig, context, config)) as place:
        text = exchange.export(_read(place).records, time.time())
    if target is None:
        sys.stdout.write(text)
        return Exit.OK
    try:
        target.write_text(text)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from None
    return Exit.OK


@app.command("import")
def import_(
    document: Annotated[Path, typer.Argument(help="What `baseline export` wrote; - for standard input.")],
    replace: Annotated[bool, typer.Option("--replace", help="Forget every baseline that the document does not have.")] = False,
    file: FileOption = None,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    stopped: StoppedOption = False,
) -> int:
    """Take in a document, as a whole or not at all. The service must be stopped: it would write over what it does not know."""
    try:
        text = sys.stdin.read() if str(document) == "-" else document.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{document} cannot be read: {error}") from None
    try:
        records = exchange.parse(text)
    except exchange.ExchangeError as error:
        raise UsageError(f"{document} was not imported: {error}") from None
    with source(file, Place(kubeconfig, context, config), stopped=stopped, create=True) as place:
        journal = place.read()
        for key in [key for key in journal.records if replace and key.startswith((NODE, NORM)) and key not in records]:
            journal.drop(key)
        for key, record in records.items():
            journal.put(key, record)
        place.write(journal)
    norms = sum(key.startswith(NORM) for key in records)
    sys.stdout.write(f"{norms} baselines and {len(records) - norms} nodes are in {place.where} now\n")
    return Exit.OK


@app.command("reset")
def reset(
    node: NodeOption = None,
    probe: ProbeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget everything.")] = False,
    file: FileOption = None,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    stopped: StoppedOption = False,
) -> int:
    """Begin anew: with one node (in a cluster while the service runs), with one probe, or with everything (while it is stopped)."""
    if sum((node is not None, probe is not None, everything)) != 1:
        raise UsageError("one of --node NAME, --probe PROBE and --all says what is to begin anew")
    with source(file, Place(kubeconfig, context, config), stopped=stopped) as place:
        if node is not None:
            sys.stdout.write(place.reset_node(node) + "\n")
            return Exit.OK
        journal = place.read()
        gone = _forget(journal, probe)
        if not gone:
            raise NotMeasuredError(f"there is no baseline{f' of {probe}' if probe else ''} in {place.where}")
        place.write(journal)
    sys.stdout.write(f"{gone} records of {probe or 'all probes'} are gone from {place.where}: they are learned anew\n")
    return Exit.OK


def _forget(journal: Journal, probe: str | None) -> int:
    """Drop what belongs to a probe, or everything. Returns the number of records that changed."""
    gone = 0
    for key, record in [(key, record) for key, record in journal.records.items() if key.startswith((NODE, NORM))]:
        if probe is None or (key.startswith(NORM) and record.get("key", {}).get("probe") == probe):
            journal.drop(key)
        elif key.startswith(NODE) and probe in record:
            rest = {name: its for name, its in record.items() if name != probe}
            journal.drop(key)
            if rest:
                journal.put(key, rest)
        else:
            continue
        gone += 1
    return gone


def _read(place: Source) -> Journal:
    journal = place.read()
    _, problems = exchange.loaded(journal.records, place.settings)
    for problem in [*journal.problems, *problems]:
        sys.stderr.write(f"efa-pulse: {problem}\n")
    return journal


def _norm(norm: Norm, book: Baselines, now: float) -> dict[str, Any]:
    key, sketch = norm.key, norm.sketch
    samples = sketch.samples(now)
    before = norm.before
    return {
        "id": key.id, "probe": key.probe, "operation": key.operation, "bytes": key.bytes, "memory": key.memory, "kind": key.kind,
        "instance_type": key.instance_type, "stratum": key.stratum, "software": key.software, "software_says": norm.says,
        "current": book.current.get(norm.kin) is norm, "used": samples >= book.settings.samples, "samples": samples,
        "bandwidth": sketch.centre, "spread": sketch.spread, "learned": sketch.last,
        "before": None if before is None else {"software": before.software, "software_says": before.says, "bandwidth": before.centre,
                                               "spread": before.spread, "samples": before.samples, "frozen": before.at,
                                               "ratio": sketch.centre / before.centre},
    }


def _node(name: str, identity: str, probe: str, its: Watched) -> dict[str, Any]:
    tracker = its.tracker
    state = "changed" if tracker.changed is not None else "learned" if tracker.learned else "learning"
    operation, size, memory, kind = its.figure or (None, None, None, None)
    values = [pair.value for pair in its.pairs.values()]
    before = tracker.before
    return {
        "node": name, "instance_id": identity, "probe": probe, "operation": operation, "bytes": size, "memory": memory, "kind": kind,
        "state": state, "samples": tracker.samples, "bandwidth": max(values) if values else None,
        "change": None if tracker.changed is None else {"kind": tracker.changed, "since": tracker.since, "size": tracker.size},
        "before": None if before is None else {"software": before.software, "bandwidth": before.value, "spread": before.spread,
                                               "samples": before.samples, "frozen": before.at},
    }


def _print(rows: list[dict[str, Any]], nodes: list[dict[str, Any]], known: int) -> None:
    out = render.console()
    if rows:
        table = Table(title="baselines")
        for column in ("probe", "operation", "size", "where", "distance", "median", "spread", "runs", "before", "software"):
            table.add_column(column, overflow="fold")
        for one in rows:
            before = f"{one['before']['ratio']:.1%} of {one['before']['software_says']}" if one["before"] is not None else ""
            used = "" if one["used"] else " (learning)"
            what = f"{show_size(one['bytes'])} {one['memory']}"
            table.add_row(one["probe"], one["operation"], what, one["instance_type"], one["stratum"], f"{one['bandwidth'] / 1e9:.4g} GB/s",
                          f"{one['spread']:.1%}", f"{one['samples']:.0f}{used}", before, one["software_says"])
        out.print(table)
    for one in nodes:
        figure = f"{one['operation']} of {show_size(one['bytes'])}" if one["bytes"] is not None else "no figure yet"
        value = f", {one['bandwidth'] / 1e9:.4g} GB/s with the best of its last partners" if one["bandwidth"] is not None else ""
        out.print(f"{one['node']} {one['probe']}: {one['state']}, {figure}{value}, {one['samples']} runs", markup=False)
        if one["change"] is not None:
            since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["change"]["since"]))
            out.print(f"  {one['change']['kind']}: {-one['change']['size']:.1%} slower than it was, seen {since}", markup=False,
                      style="bold red")
        if one["before"] is not None:
            out.print(f"  with software {one['before']['software']} it reached {one['before']['bandwidth'] / 1e9:.4g} GB/s "
                      f"({one['before']['samples']} runs)", markup=False)
    if not rows and not nodes:
        out.print("nothing is learned yet", markup=False)
    elif rows and not nodes:
        out.print(f"{known} nodes are watched, none has changed", markup=False)
