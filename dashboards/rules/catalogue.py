"""All rules, in the order in which they are written."""

from __future__ import annotations

from dashboards.rules import canary, monitor, neighbours, node, pd
from dashboards.rules.model import Alert, Group
from dashboards.rules.recording import RECORDINGS

GROUPS: tuple[Group, ...] = (*RECORDINGS, node.GROUP, canary.GROUP, pd.GROUP, monitor.GROUP, neighbours.GROUP)
ALERTS: dict[str, Alert] = {rule.name: rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)}
