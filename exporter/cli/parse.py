"""`efa-pulse parse`: read the output of a tool that ran elsewhere, print its table and what it is worth."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from exporter.cli import render
from exporter.cli.exits import Exit, UsageError, of_outcomes
from exporter.cli.probe import JsonOption
from probes.nccl import parse_file
from probes.reasons import outcome_of

app = typer.Typer(no_args_is_help=True, help="Read the output of a tool and judge it.")


@app.callback()
def _group() -> None:
    """Keeps `nccl-tests` a command of its own while it is the only one."""


@app.command("nccl-tests")
def nccl_tests(file: Annotated[Path, typer.Argument(help="Text or JSON output of an nccl-tests program.")], as_json: JsonOption = False) -> int:
    """Print the rows of an nccl-tests run and the verdict on them. The environment that its JSON holds is dropped unread."""
    try:
        parsed = parse_file(file)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    outcome = outcome_of(parsed.reason)
    if as_json:
        sys.stdout.write(json.dumps(parsed.to_json(), indent=2) + "\n")
    else:
        out = render.console()
        rows = parsed.measurements()
        if rows:
            out.print(render.measurements(rows))
        out.print(f"{outcome.value}: {parsed.reason.value}{': ' + parsed.message if parsed.message else ''}", markup=False)
    return of_outcomes([outcome]) if outcome else Exit.UNKNOWN
