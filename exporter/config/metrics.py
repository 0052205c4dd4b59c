"""What is published, and how much of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from exporter.config.base import Model
from probes.units import Duration


class Metrics(Model):
    """Limits of the published series."""

    max_series: Annotated[int, Field(ge=1000, le=10_000_000)] = 50_000
    """Ceiling of the number of series; above it families are dropped in a fixed order, and counted."""
    node_interval: Annotated[Duration, Field(ge=60, le=366 * 86400)] = 86400.0
    """Every node is measured within this time, or it is shown why not. Older pairs do not count for a node's value."""
    best_of: Annotated[int, Field(ge=1, le=100)] = 3
    """A node's value is the best of its last so many pairs, so that a bad partner does not count against it."""
