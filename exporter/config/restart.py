"""Which settings a running service does not take over."""

from __future__ import annotations

from exporter.config.root import Config


def needs_restart(before: Config, after: Config) -> list[str]:
    """Dotted paths of the settings that differ and that a running service does not take over."""
    pairs = {"server": (before.server, after.server), "metrics": (before.metrics, after.metrics),
             "launch.local": (before.launch.local, after.launch.local), "launch.grace": (before.launch.grace, after.launch.grace),
             "logging": (before.logging, after.logging), "grafana": (before.grafana, after.grafana),
             "archive": (before.archive, after.archive), "ec2": (before.ec2, after.ec2),
             "conditions": (before.conditions, after.conditions), "inventory.mode": (before.inventory.mode, after.inventory.mode),
             "kubernetes": (before.kubernetes, after.kubernetes),
             "planning.gates.tolerations": (before.planning.gates.tolerations, after.planning.gates.tolerations)}
    return [path for path, (old, new) in pairs.items() if old != new]
