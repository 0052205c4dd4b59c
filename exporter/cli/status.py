"""`efa-pulse status`: what a running service knows right now."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exporter.cli import render
from exporter.cli.exits import Exit
from exporter.cli.remote import (
    CaOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    PasswordOption,
    Remote,
    ServiceOption,
    TokenOption,
    UrlOption,
    UserOption,
)
from exporter.status.document import SCHEMA
from exporter.status.words import ago, ahead, clock_time, grouped

__all__ = ["CODES", "STATES", "ago", "ahead", "clock_time", "show", "status"]

ROWS = 40
NEXT = 8
CODES = {"ok": Exit.OK, "bad": Exit.BAD, "unknown": Exit.UNKNOWN}
STATES = {"named": "bold red", "group": "bold red", "bad": "bold red", "explained": "red", "suspect": "bold yellow", "cleared": "green",
          "good": "green", "unknown": "bold magenta", "held": "dim"}

Json = dict[str, Any]


def status(
    url: UrlOption = None,
    token_file: TokenOption = None,
    user: UserOption = None,
    password_file: PasswordOption = None,
    ca_file: CaOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    service: ServiceOption = None,
    everything: Annotated[bool, typer.Option("--all", help="List every node and probe, also those that are good.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole document as JSON.")] = False,
) -> int:
    """Show what a running service knows: findings, suspects, nodes, canaries, closed gates, what runs next. Status 1 if anything is bad."""
    remote = Remote(url, token_file, user, password_file, ca_file, kubeconfig, context, namespace, service)
    document = remote.get("/api/status", {} if everything or as_json else {"only": "notable"}, SCHEMA)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        show(document, render.console(), everything=everything)
    return CODES.get(str(document["health"]), Exit.UNKNOWN)


def show(document: Json, out: Console, *, everything: bool) -> None:
    """Print the document for people."""
    out.print(_headline(document))
    for line in _notes(document):
        out.print(line, markup=False)
    now = float(document["now"])
    _section(out, "findings", _findings(document, now), len(document["findings"]))
    _section(out, "suspects", _suspects(document, now), len(document["suspects"]))
    most = len(document["nodes"]) if everything else ROWS
    title = "nodes" if everything else "nodes that are not simply good"
    _section(out, title, _nodes(document["nodes"][:most], now), len(document["nodes"]))
    more = len(document["nodes"]) - most + document["left_out"]["nodes"]
    if more > 0:
        out.print(f"and {more} more; --all lists them", style="dim")
    _section(out, "canaries", _canaries(document["canaries"], now), len(document["canaries"]))
    gates = grouped(document["gates"])
    _section(out, "closed gates", _gates(gates), len(gates))
    _section(out, "next", _next(document, now), len(document["next"]) + len(document["rounds"]))


def _section(out: Console, title: str, table: Table, rows: int) -> None:
    if rows:
        out.print(f"\n{title}", style="bold", markup=False)
        out.print(table)


def _headline(document: Json) -> Text:
    counts = document["counts"]
    health = str(document["health"])
    text = Text()
    text.append(f"{health.upper():<9}", {"ok": "bold green", "bad": "bold red"}.get(health, "bold magenta"))
    states = ", ".join(f"{number} {name}" for name, number in sorted(counts["states"].items())) or "nothing measured yet"
    nodes = f"{counts['nodes']} node{'' if counts['nodes'] == 1 else 's'}"
    text.append(f"efa-pulse {document['version']}  {nodes}; by probe: {states}; {counts['runs']} runs since the start, "
                f"{counts['running']} now")
    return text


def _notes(document: Json) -> list[str]:
    notes: list[str] = []
    if document["stale"]:
        notes.append(f"  the control loop last told of itself {ago(document['now'] - document['at'])} ago: this is not what is now")
    if document["leading"] is not None:
        other = f"  this replica does not lead, {document['leader'] or 'nobody'} does: ask that one for nodes"
        notes.append("  this replica leads" if document["leading"] else other)
    if document["paused"] is not None:
        notes.append(f"  paused: {document['paused']}")
    notes += [f"  {probe}: {why}" for probe, why in sorted(document["quiet"].items())]
    notes += [f"  {trouble}" for trouble in document.get("troubles", [])]
    if not document["config"]["ok"]:
        first = str(document["config"]["error"]).splitlines()[0] if document["config"]["error"] else "no reason told"
        notes.append(f"  the last configuration was refused and the one before is in use: {first}")
    return notes


def _findings(document: Json, now: float) -> Table:
    table = _table("what", "probe", "since", "score", "why")
    for one in document["findings"]:
        told = one["says"] + (f"; explained by {one['explained_by']}" if one["explained_by"] else "")
        table.add_row(Text(f"{one['kind']} {' '.join(one['subjects'])}", "bold red"), one["probe"], ago(now - one["since"]),
                      f"{one['score']:.3f}", Text(f"{one['reason']}: {told}"))
    return table


def _suspects(document: Json, now: float) -> Table:
    table = _table("node", "probe", "since", "score", "good partners", "why not named")
    for one in document["suspects"]:
        why = one["explained_by"] or "; ".join(one["holds_back"])
        table.add_row(one["node"], one["probe"], ago(now - one["since"]), f"{one['score']:.3f}", f"{len(one['agree'])} of {one['needed']}",
                      Text(why))
    return table


def _nodes(rows: list[Json], now: float) -> Table:
    table = _table("node", "probe", "", "transport", "since", "measured", "last run")
    for row in rows:
        table.add_row(row["node"], row["probe"], Text(row["state"], STATES.get(row["state"], "")), row["transport"] or "-",
                      ago(now - row["since"]) if row["since"] else "-", f"{ago(row['age'])} ago" if row["age"] is not None else "never",
                      Text(_said(row)))
    return table


def _canaries(rows: list[Json], now: float) -> Table:
    table = _table("target", "prompt", "", "since", "measured", "last request")
    for row in rows:
        table.add_row(row["target"], row["prompt"], Text(row["state"], STATES.get(row["state"], "")),
                      ago(now - row["since"]) if row["since"] else "-", f"{ago(row['age'])} ago" if row["age"] is not None else "never",
                      Text(_said(row)))
    return table


def _said(row: Json) -> str:
    last = row["last"]
    if last is None:
        return "none yet"
    told = str(last["reason"])
    if last["outcome"] != "ok" and last["message"]:
        told += f": {last['message']}"
    shown = row["conclusive"]
    if shown is not None and shown["run_id"] != last["run_id"]:
        told += f" (before that {shown['reason']})"
    return told


def _gates(gates: dict[tuple[str, str], list[str]]) -> Table:
    table = _table("gate", "nodes", "why")
    for (gate, why), nodes in sorted(gates.items(), key=lambda item: -len(item[1]))[:ROWS]:
        named = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        table.add_row(gate, named, Text(why))
    return table


def _next(document: Json, now: float) -> Table:
    table = _table("what", "when", "")
    for job in document["next"][:NEXT]:
        table.add_row(job["id"], ahead(job["next"] - now), "")
    for one in document["rounds"][:NEXT]:
        stand = "not begun"
        if one["started"]:
            stand = f"round {one['number']} ({one['kind']}), {one['launched']} of {one['total']} runs started"
        table.add_row(f"{one['probe']} {one['group'] or ''}", ahead(one["next"] - now) if one["next"] is not None else "-", stand)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table
