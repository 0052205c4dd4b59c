"""What the service writes on Kubernetes nodes: nothing, unless it is switched on here.

What an installation must give it when `conditions.enabled`: in a ClusterRole, core API group,

    {"resources": ["nodes/status"], "verbs": ["patch"]}
    {"resources": ["events"], "verbs": ["create"]}       only with `conditions.events`; Events of nodes live in namespace `default`

`nodes` itself is read already. It never gets a right to update or patch `nodes`: it cannot cordon, drain, taint or label. A Role for
`events` in namespace `default` is enough.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from exporter.config.base import Model
from probes.units import Duration


class Conditions(Model):
    """The condition `EfaFabricHealthy` and Events on the nodes of the cluster. The service never cordons, drains, taints or labels."""

    enabled: bool = False
    """Write the condition."""
    events: bool = True
    """Write an Event whenever the condition of a node changes."""
    on: Annotated[tuple[Literal["named", "group"], ...], Field(min_length=1, max_length=2)] = ("named",)
    """What makes a node unhealthy: `named` by localisation; member of a `group` finding. Suspects and slow pairs never do."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Largest share of the nodes that may be flagged within `window`; beyond it the breaker opens and no further node is flagged."""
    least: Annotated[int, Field(ge=1, le=1000)] = 1
    """So many nodes may be flagged however small the fleet is."""
    window: Annotated[Duration, Field(ge=60, le=604800)] = 3600.0
    """How far back flagging counts. The breaker closes when all that want to be flagged have room in it again."""
    heartbeat: Annotated[Duration, Field(ge=30, le=86400)] = 300.0
    """How often `lastHeartbeatTime` of a condition that is False is renewed."""
