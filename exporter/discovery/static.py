"""Engine pods that the configuration lists."""

from __future__ import annotations

from exporter.config.pd import PdServing
from exporter.discovery.model import EnginePod, Found


def static_pods(serving: PdServing) -> Found:
    """The pods of `source.static`, always taken for ready."""
    return Found(tuple(
        EnginePod(name=pod.name, role=pod.role, url=pod.url, metrics=pod.metrics or f"{pod.url.rstrip('/').removesuffix('/v1')}/metrics",
                  life=pod.name, node=pod.node) for pod in serving.source.static))
