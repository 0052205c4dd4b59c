"""What the service writes about itself."""

from __future__ import annotations

from typing import Literal

from exporter.config.base import Model


class Logging(Model):
    """The service's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["auto", "console", "json"] = "auto"
    """`auto`: for people on a terminal, else JSON, one object a line."""
