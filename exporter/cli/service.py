"""`efa-pulse run`: the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter import config as configuration
from exporter import log
from exporter.cli.exits import Exit, NotMeasuredError, UsageError
from exporter.cluster import ClusterUnavailableError
from exporter.config import Config
from exporter.kube.api import ClusterError
from exporter.memory import LockedError
from exporter.plan.journal import JournalError
from exporter.publish.webconfig import WebConfigError
from exporter.service import Service


def run(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file; without one the defaults hold.")] = None,
) -> int:
    """Run the service until SIGTERM or Ctrl-C: schedule, launch, judge, publish. SIGHUP and a changed file reload the configuration."""
    loaded = configuration.load(config) if config is not None else Config()
    log.configure(loaded.logging)
    try:
        service = Service(loaded, config)
    except OSError as error:
        raise UsageError(f"server.listen: {error.strerror or error}; choose another address") from None
    except WebConfigError as error:
        raise UsageError(str(error)) from None
    try:
        service.run()
    except (LockedError, JournalError) as error:
        raise UsageError(f"baselines.file: {error}") from None
    except (ClusterError, ClusterUnavailableError) as error:
        raise NotMeasuredError(str(error)) from None
    return Exit.OK
