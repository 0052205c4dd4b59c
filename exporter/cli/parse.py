"""`efa-pulse parse`: read the output of a tool that ran elsewhere, print its table and what it is worth."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from exporter.cli import render
from exporter.cli.exits import UsageError, of_outcomes
from exporter.cli.probe import JsonOption
from probes.nccl import parse_file
from probes.units import show_size

app = typer.Typer(no_args_is_help=True, help="Read the output of a tool and judge it.")


@app.callback()
def _group() -> None:
    """Keeps `nccl-tests` a command of its own while it is the only one."""


@app.command("nccl-tests")
def nccl_tests(
    file: Annotated[Path, typer.Argument(help="Text or JSON output of an nccl-tests program.")],
    as_json: JsonOption = False,
) -> int:
    """Print the rows of an nccl-tests run and the verdict on them. The environment that its JSON holds is dropped unread."""
    try:
        parsed = parse_file(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    if as_json:
        document = {"source": parsed.source, "outcome": parsed.outcome.value, "reason": parsed.reason.value, "message": parsed.message,
                    "rows": parsed.rows(), "failures": [failure.text for failure in parsed.failures], "problems": parsed.problems,
                    "notes": parsed.notes}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return of_outcomes([parsed.outcome])
    out = render.console()
    if parsed.rows():
        out.print(_table(parsed.rows()))
    for text in (*(failure.text for failure in parsed.failures), *parsed.problems, *parsed.notes):
        out.print(f"  {text}", markup=False, style="dim")
    out.print(f"{parsed.outcome.value}: {parsed.reason.value}{': ' + parsed.message if parsed.message else ''}", markup=False)
    return of_outcomes([parsed.outcome])


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("operation", "ranks", "size", "type", "placement", "time", "algbw GB/s", "busbw GB/s", "wrong"):
        table.add_column(name, justify="left" if name in {"operation", "type", "placement"} else "right")
    for row in rows:
        wrong = row["wrong"]
        speeds = ("-" if row[key] is None else f"{row[key] / 1e9:.4g}" for key in ("algbw", "busbw"))
        table.add_row(str(row["operation"] or "?"), str(row["ranks"] or "?"), show_size(row["bytes"]), row["dtype"] or "",
                      row["placement"], render.duration(row["seconds"]), *speeds, "-" if wrong is None else f"{wrong:g}")
    return table
