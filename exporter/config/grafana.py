"""Annotations in Grafana: marks on its dashboards where a verdict changed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from exporter.config.base import FilePath, Line, Model, Secret
from exporter.config.semantic import refuse
from probes.units import Duration

Address = Annotated[str, Field(max_length=2048, pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", examples=["http://grafana.monitoring:3000"])]
"""http(s)://host[:port][/path], without name and password."""


class Annotations(Model):
    """Marks of verdict changes. Off unless it is turned on; dashboards show them under the tag `efa-pulse`."""

    enabled: bool = False
    """Whether they are written."""
    min_interval: Annotated[Duration, Field(ge=1, le=86400)] = 30.0
    """Least time between two of them. What changes meanwhile goes into one annotation together."""
    tags: Annotated[tuple[Line, ...], Field(max_length=20)] = ()
    """Tags beside `efa-pulse`, such as the name of the cluster."""


class Grafana(Model):
    """The Grafana that the service writes to. `efa-pulse dashboards` has options of its own and does not read this."""

    url: Address | None = None
    """Its address, with the path below which it is served if there is one."""
    token: Secret | None = None
    """Token of a service account with the right to create annotations."""
    ca_file: FilePath | None = None
    """The only certificate authorities trusted (PEM); default: the system's."""
    annotations: Annotations = Annotations()
    """Marks of verdict changes."""

    @model_validator(mode="after")
    def _complete(self) -> Grafana:
        if self.annotations.enabled:
            refuse("Grafana", [((name,), "annotations are enabled and need it") for name in ("url", "token")
                               if getattr(self, name) is None])
        return self
