"""Which nodes there are."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Literal

from pydantic import Field, model_validator

from exporter.config.base import Line, Model, Name
from exporter.config.semantic import Found, refuse, repeated


class Node(Model):
    """One node."""

    name: Name
    """Name of the node, as it appears in metrics."""
    instance_type: Line | None = None
    """EC2 instance type, for what the node should have and reach."""
    zone: Line | None = None
    """Availability zone."""


class Inventory(Model):
    """Which nodes are watched. In the modes `local` and `static` every node is played by processes of this machine."""

    mode: Literal["local", "static", "kubernetes"] = "local"
    """`local`: this machine, one node. `static`: the nodes listed in `nodes`. `kubernetes`: the EFA nodes of a cluster (`kubernetes`)."""
    nodes: Annotated[tuple[Node, ...], Field(max_length=10_000)] = ()
    """The nodes. In mode `local` at most one, to give this machine another name or an instance type."""

    @model_validator(mode="after")
    def _consistent(self) -> Inventory:
        found: list[Found] = [(("nodes", index, "name"), f"node {name!r} is listed twice")
                              for index, name in repeated(node.name for node in self.nodes)]
        if self.mode == "static" and not self.nodes:
            found.append((("nodes",), "mode static needs at least one node"))
        if self.mode == "kubernetes" and self.nodes:
            found.append((("nodes",), "mode kubernetes reads its nodes from the cluster: leave nodes out"))
        if self.mode == "local" and len(self.nodes) > 1:
            found.append((("nodes",), f"mode local has one node, got {len(self.nodes)}: use mode static"))
        refuse("Inventory", found)
        return self

    def members(self) -> tuple[Node, ...]:
        """The nodes, in mode `local` without an entry the machine under its host name. Those of a cluster are not known here."""
        if self.mode == "kubernetes":
            return ()
        return self.nodes or (Node(name=host_name()),)


def host_name() -> str:
    """The host name, reduced to what a node name may hold."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname())[:63].strip("-._")
    return cleaned or "localhost"
