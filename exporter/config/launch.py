"""How runs are started and ended."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from exporter.config.base import FilePath, Model
from probes.units import Duration


class Local(Model):
    """Workers as processes of this machine."""

    network_namespaces: bool = False
    """Give each rank a network namespace of its own, joined by veth, so that its traffic can be counted. Needs root."""
    work_dir: FilePath | None = None
    """Folder for results and logs of running workers; default: a temporary one, removed at the end."""


class Launch(Model):
    """Limits that hold for every run."""

    concurrency: Annotated[int, Field(ge=1, le=1024)] = 1
    """Probe runs at the same time. More than one on one machine disturb each other's figures."""
    canary_concurrency: Annotated[int, Field(ge=1, le=1024)] = 4
    """Canary requests at the same time, over all targets. They do not count as probe runs."""
    grace: Annotated[Duration, Field(ge=0, le=3600)] = 15.0
    """Time that running probes get to end when the service stops; then they are cancelled."""
    local: Local = Local()
    """Workers as processes of this machine."""
