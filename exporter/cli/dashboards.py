"""`efa-pulse dashboards`: the shipped dashboards, in Grafana or as files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

import probes
from dashboards.store import shipped
from exporter.cli import render
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.config.base import Secret, SecretError
from exporter.grafana.client import Grafana, GrafanaError, Trouble
from exporter.grafana.publish import MEANINGS, Publisher, Standing, State, Wishes

NOT_THERE = (Trouble.UNREACHABLE, Trouble.SERVER)
STYLES = {State.CURRENT: "green", State.EDITED: "bold yellow", State.FOREIGN: "bold yellow", State.PROVISIONED: "bold yellow"}
DIFF_LINES = 400

app = typer.Typer(help="The shipped dashboards: push them into Grafana, compare, list, or write them as files.", no_args_is_help=True)

UrlOption = Annotated[str, typer.Option("--url", metavar="URL", help="Address of Grafana, with its path if it has one.")]
TokenOption = Annotated[Path, typer.Option("--token-file", help="File with a service account's token; Editor on the folder is enough.")]
FolderOption = Annotated[str, typer.Option("--folder", metavar="TITLE", help="Title of the folder, if it has to be made.")]
FolderUidOption = Annotated[str, typer.Option("--folder-uid", help="Uid of the folder; empty: the root.")]
SourceOption = Annotated[str | None, typer.Option("--data-source", metavar="NAME", help="Name or uid of the Prometheus data source that "
                                                                                        "the boards open with; default: Grafana's own.")]
RunbooksOption = Annotated[str | None, typer.Option("--runbooks", metavar="URL", help="Where the runbooks are read.")]
CaOption = Annotated[Path | None, typer.Option("--ca-file", help="Certificate authorities to trust instead of the system's (PEM).")]


@app.command("push")
def push(url: UrlOption, token_file: TokenOption, folder: FolderOption = "efa-pulse", folder_uid: FolderUidOption = "efa-pulse",
         data_source: SourceOption = None, runbooks: RunbooksOption = None, ca_file: CaOption = None,
         force: Annotated[bool, typer.Option("--force", help="Overwrite what somebody edited in Grafana.")] = False,
         dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False) -> int:
    """Make Grafana have the shipped dashboards. What somebody saved there since is left alone, status 1, unless forced."""
    out = render.console()
    try:
        publisher = _publisher(url, token_file, folder, folder_uid, data_source, runbooks, ca_file)
        if dry_run:
            return _differences(publisher.standings(), force=force)
        outcomes = publisher.push(force=force)
    except GrafanaError as error:
        raise _told(error) from None
    table = render_table("dashboard", "", "")
    for one in outcomes:
        can = one.did == "held" and one.standing.state is not State.PROVISIONED
        table.add_row(one.standing.title, one.did, one.why + ("; --force overwrites it, dashboards diff shows what" if can else ""))
    out.print(table)
    return Exit.BAD if any(one.did in ("held", "conflict") for one in outcomes) else Exit.OK


@app.command("diff")
def diff(url: UrlOption, token_file: TokenOption, folder: FolderOption = "efa-pulse", folder_uid: FolderUidOption = "efa-pulse",
         data_source: SourceOption = None, runbooks: RunbooksOption = None, ca_file: CaOption = None) -> int:
    """Show what a push would change; status 1 if anything would."""
    try:
        return _differences(_publisher(url, token_file, folder, folder_uid, data_source, runbooks, ca_file).standings(), force=True)
    except GrafanaError as error:
        raise _told(error) from None


@app.command("list")
def list_(url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of a Grafana to compare with.")] = None,
          token_file: Annotated[Path | None, typer.Option("--token-file", help="File with its token.")] = None,
          folder_uid: FolderUidOption = "efa-pulse", data_source: SourceOption = None, runbooks: RunbooksOption = None,
          ca_file: CaOption = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """List the shipped dashboards, and with --url how they stand in that Grafana."""
    documents = shipped()
    found: dict[str, Standing] = {}
    if url is not None:
        if token_file is None:
            raise UsageError("--url needs --token-file")
        try:
            publisher = _publisher(url, token_file, "", folder_uid, data_source, runbooks, ca_file)
            found = {one.uid: one for one in publisher.standings()}
        except GrafanaError as error:
            raise _told(error) from None
    if as_json:
        rows = [{"uid": uid, "title": document["title"], "panels": _panels(document),
                 **({"state": found[uid].state.value, "version": found[uid].version, "folder_uid": found[uid].folder_uid,
                     "url": found[uid].url} if uid in found else {})} for uid, document in documents.items()]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return Exit.OK
    table = render_table("uid", "title", "panels", *(("in Grafana", "", "address") if found else ()))
    for uid, document in documents.items():
        row: list[str | Text] = [uid, str(document["title"]), str(_panels(document))]
        if uid in found:
            one = found[uid]
            row += [Text(one.state.value, STYLES.get(one.state, "default")), MEANINGS[one.state], one.url]
        table.add_row(*row)
    render.console().print(table)
    return Exit.OK


@app.command("write")
def write(folder: Annotated[Path, typer.Argument(help="Folder for the files; made if it is not there.")]) -> int:
    """Write the JSON of every dashboard, to import or provision it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for uid, document in shipped().items():
            (folder / f"{uid}.json").write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}") from None
    return Exit.OK


def _publisher(url: str, token_file: Path, folder: str, folder_uid: str, data_source: str | None, runbooks: str | None,
               ca_file: Path | None) -> Publisher:
    if ca_file is not None and not ca_file.is_file():
        raise UsageError(f"--ca-file {ca_file}: no such file")
    try:
        token = Secret(file=token_file).read()
    except SecretError as error:
        raise UsageError(f"--token-file: {error}") from None
    wishes = Wishes(folder_uid, folder, data_source, runbooks)
    return Publisher(Grafana(url, token, ca_file=ca_file), shipped(), wishes, probes.__version__)


def _differences(standings: list[Standing], *, force: bool) -> int:
    """Print what would change. Status 1 if anything would, or is held."""
    changed = [one for one in standings if one.state is not State.CURRENT]
    for one in changed:
        held = " (a push leaves it alone)" if one.state.held and not force else ""
        sys.stdout.write(f"{one.title}: {one.state.value}, {MEANINGS[one.state]}{held}\n")
        lines = one.diff() if one.there is not None else []
        sys.stdout.writelines(f"{line}\n" for line in lines[:DIFF_LINES])
        if len(lines) > DIFF_LINES:
            sys.stdout.write(f"... and {len(lines) - DIFF_LINES} more lines\n")
    if not changed:
        sys.stdout.write("nothing would change\n")
    return Exit.BAD if changed else Exit.OK


def _told(error: GrafanaError) -> Exception:
    return NotMeasuredError(str(error)) if error.trouble in NOT_THERE else UsageError(str(error))


def _panels(document: dict[str, object]) -> int:
    panels = document["panels"]
    return sum(panel["type"] != "row" for panel in panels) if isinstance(panels, list) else 0


def render_table(*names: str) -> Table:
    """A table as the other commands print it."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table
