"""What is learned of measured figures, and when a run is too slow for it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from exporter.config.base import FilePath, Model
from probes.units import Duration


class Baselines(Model):
    """Baselines: what runs of one kind usually reach, learned from good runs."""

    enabled: bool = True
    """Learn baselines, judge by them, and look for changes."""
    samples: Annotated[int, Field(ge=8, le=100_000)] = 20
    """Good runs of one kind before its baseline is used."""
    margin: Annotated[float, Field(ge=0.02, le=0.9)] = 0.15
    """A run is `below_baseline` when it is slower than the baseline by more than this share, or by 5 of its spreads where that is more."""
    half_life: Annotated[Duration, Field(ge=86400, le=366 * 86400)] = 14 * 86400.0
    """A run counts half after this time."""
    sanity: bool = True
    """Where EFA is required and neither a floor nor a baseline is known yet, judge by a fraction of published figures."""
    file: FilePath | None = None
    """Where baselines are kept without a cluster; default: in memory. In a cluster they are part of the journal."""
