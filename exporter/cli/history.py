"""`efa-pulse history`: what was measured, from the archive of a folder or from S3."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from exporter import config as configuration
from exporter.archive.index import Query, Row
from exporter.archive.s3 import S3Store
from exporter.archive.search import Local, NoArchiveError, remote
from exporter.aws import AwsError
from exporter.cli import plot, render
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.config import Config
from exporter.config.archive import S3
from exporter.kube.pause import parse_time
from probes.reasons import Outcome
from probes.units import parse_duration

LIMIT = 50
PLOT_LIMIT = 20_000
COLUMNS = ("finished", "run_id", "probe", "target", "outcome", "reason", "transport", "figure", "value", "unit", "message")


def history(
    node: Annotated[list[str] | None, typer.Option("--node", "-n", help="Runs on this node; twice: on both of them.")] = None,
    pair: Annotated[tuple[str, str] | None, typer.Option(help="Runs between two nodes, in any order.")] = None,
    probe: Annotated[str | None, typer.Option("--probe", "-p", help="Runs of this probe.")] = None,
    target: Annotated[str | None, typer.Option(help="Runs of this target, such as a canary endpoint.")] = None,
    outcome: Annotated[Literal["ok", "degraded", "failed", "unknown"] | None, typer.Option(help="Runs that ended so.")] = None,
    since: Annotated[str | None, typer.Option(help="From then on: `6h` ago, or a time such as 2026-12-01T18:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Up to then, written as --since.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help=f"Most runs, the newest; default {LIMIT} for a table, all otherwise.")] = None,
    form: Annotated[Literal["table", "csv", "json", "plot"], typer.Option("--format", "-f", help="json: whole records.")] = "table",
    svg: Annotated[Path | None, typer.Option(help="Draw the figures over time into this SVG file.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration of the service, for its archive.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the archive; default: that of the configuration.")] = None,
    s3: Annotated[bool, typer.Option("--s3", help="Read from S3 (`archive.s3`); without --since the last day.")] = False,
    bucket: Annotated[str | None, typer.Option(help="Read from this bucket.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What its keys begin with; default efa-pulse.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster in the bucket; default: that of the configuration.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the bucket.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Address of another service with the S3 API.")] = None,
) -> int:
    """Show runs of the past by node, pair, probe and time: as a table, CSV, JSON or plot. Status 2 if nothing is found."""
    now = time.time()
    loaded = configuration.load(config) if config is not None else Config()
    nodes = (*(node or ()), *(pair or ()))
    drawn = svg is not None or form == "plot"
    most = limit or (LIMIT if form == "table" and svg is None else PLOT_LIMIT if drawn else None)
    query = Query(tuple(dict.fromkeys(nodes)), probe, target, outcome, moment(since, now, "--since"), moment(until, now, "--until"), most)
    try:
        if s3 or bucket:
            store = S3Store(_bucket(loaded, bucket, prefix, region, endpoint))
            found = remote(store, cluster or loaded.archive.cluster, query, now)
            rows, records = [row for row, _ in found], (record for _, record in found)
            _tell(rows, records if form == "json" else (), form, svg, query)
        else:
            with Local(folder or loaded.archive.where()) as local:
                rows = local.find(query)
                _tell(rows, local.records(rows) if form == "json" else (), form, svg, query)
    except NoArchiveError as error:
        raise UsageError(str(error)) from None
    except AwsError as error:
        raise NotMeasuredError(str(error)) from None
    return Exit.OK if rows else Exit.UNKNOWN


def moment(text: str | None, now: float, option: str) -> float | None:
    """Unix seconds of `6h` (ago) or of a time. Raises UsageError."""
    if text is None:
        return None
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return parse_time(text)
    except ValueError as error:
        raise UsageError(f"{option}: neither a span such as 6h or 7d nor a time: {error}") from None


def _bucket(loaded: Config, bucket: str | None, prefix: str | None, region: str | None, endpoint: str | None) -> S3:
    known = loaded.archive.s3.model_dump() if loaded.archive.s3 is not None else {}
    told = {"bucket": bucket, "prefix": prefix, "region": region, "endpoint": endpoint}
    merged = {**known, **{name: value for name, value in told.items() if value is not None}}
    if "bucket" not in merged:
        raise UsageError("--s3: no bucket is known: name the configuration with --config, or a bucket with --bucket")
    try:
        return S3.model_validate(merged)
    except ValueError as error:
        raise UsageError(f"--bucket, --prefix, --region or --endpoint: {str(error).splitlines()[-2].strip()}") from None


def _tell(rows: list[Row], records: Any, form: str, svg: Path | None, query: Query) -> None:
    if svg is not None:
        points, unit, title = _points(rows, query)
        try:
            svg.write_text(plot.svg(points, unit, title))
        except OSError as error:
            raise UsageError(f"--svg: {svg} cannot be written: {error.strerror}") from None
        return
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_time(row.finished), *(getattr(row, name) for name in COLUMNS[1:])])
    elif form == "json":
        for record in records:
            sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
    elif form == "plot":
        points, unit, title = _points(rows, query)
        out = render.console()
        out.print(title, style="bold", markup=False)
        for line in plot.terminal(points, unit, width=min(out.width, 120)):
            out.print(line, markup=False)
    else:
        _table(rows, query)


def _points(rows: list[Row], query: Query) -> tuple[list[plot.Point], str, str]:
    """The runs as points of one unit: that which most of them have; others count as without a figure."""
    units = [row.unit for row in rows if row.unit is not None]
    unit = max(sorted(set(units)), key=units.count) if units else ""
    points = [plot.Point(row.finished, row.value if row.unit == unit else None, row.outcome == Outcome.OK.value,
                         Outcome(row.outcome).conclusive) for row in rows]
    figures = sorted({row.figure for row in rows if row.figure is not None and row.unit == unit})
    what = " and ".join(query.nodes) or query.target or "all nodes"
    return points, unit, f"{what}: {', '.join(figures[:3]) or 'no figures'} of {len(rows)} runs"


def _table(rows: list[Row], query: Query) -> None:
    out = render.console()
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("ended (UTC)", "probe", "target", "", "transport", "figure", "reason"):
        table.add_column(name, overflow="fold")
    for row in rows:
        figure = f"{plot.scaled(row.value, row.unit or '')} {row.figure}" if row.value is not None else "-"
        told = "" if row.outcome == "ok" else f"{row.reason}: {row.message}" if row.message else row.reason
        table.add_row(_time(row.finished), Text(row.probe), Text(row.target),
                      Text(row.outcome, render.STYLES.get(Outcome(row.outcome), "")), Text(row.transport or "-"), Text(figure), Text(told))
    out.print(table if rows else "nothing was found")
    if query.limit is not None and len(rows) == query.limit:
        out.print(f"the newest {query.limit}; --limit shows more", style="dim")


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
