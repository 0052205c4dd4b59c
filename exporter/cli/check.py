"""`efa-pulse check-config`: is this configuration right, and what does it mean?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from exporter import config
from exporter.cli import render
from exporter.cli.exits import Exit, UsageError
from exporter.publish.webconfig import WebConfigError, check_web_config


def check_config(
    file: Annotated[Path | None, typer.Argument(help="The configuration file.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the configuration and exit.")] = False,
    reference: Annotated[bool, typer.Option("--reference", help="Print every key with its meaning and default and exit.")] = False,
) -> int:
    """Check a configuration file: every problem with its place and what to do. Status 0 when it is right, 64 when not."""
    if schema:
        sys.stdout.write(json.dumps(config.schema(), indent=2) + "\n")
        return Exit.OK
    if reference:
        sys.stdout.write(config.reference())
        return Exit.OK
    if file is None:
        raise UsageError("check-config needs a file, or --schema")
    loaded = config.load(file)
    if loaded.server.web_config is not None:
        try:
            check_web_config(loaded.server.web_config)
        except WebConfigError as error:
            raise UsageError(str(error)) from None
    jobs = loaded.jobs()
    render.console().print(f"{file}: right; {len(jobs)} jobs on {len(loaded.inventory.members())} nodes", markup=False)
    return Exit.OK
