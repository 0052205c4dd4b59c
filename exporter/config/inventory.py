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
    """Which nodes are watched. Every node is played by processes of this machine."""

    mode: Literal["local", "static"] = "local"
    """`local`: this machine, one node. `static`: the nodes listed in `nodes`."""
    nodes: Annotated[tuple[Node, ...], Field(max_length=10_000)] = ()
    """The nodes. In mode `local` at most one, to give this machine another name or an instance type."""

    @model_validator(mode="after")
    def _consistent(self) -> Inventory:
        found: list[Found] = [(("nodes", index, "name"), f"node {name!r} is listed twice")
                              for index, name in repeated(node.name for node in self.nodes)]
        if self.mode == "static" and not self.nodes:
            found.append((("nodes",), "mode static needs at least one node"))
        if self.mode == "local" and len(self.nodes) > 1:
            found.append((("nodes",), f"mode local has one node, got {len(self.nodes)}: use mode static"))
        refuse("Inventory", found)
        return self

    def members(self) -> tuple[Node, ...]:
        """The nodes, in mode `local` without an entry the machine under its host name."""
        return self.nodes or (Node(name=_host_name()),)


def _host_name() -> str:
    """The host name, reduced to what a node name may hold."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname())[:63].strip("-._")
    return cleaned or "localhost"
