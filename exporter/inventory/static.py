"""The inventory of the configuration file: nodes that are there because somebody wrote them down."""

from __future__ import annotations

from exporter.config.inventory import Inventory as Configured
from exporter.inventory.model import Inventory, Node, snapshot


def from_config(configured: Configured, taken: float) -> Inventory:
    """The nodes of `inventory` in the configuration. A name is its own identity there; devices, conditions and topology are unknown."""
    nodes = (Node(instance_id=node.name, name=node.name, instance_type=node.instance_type, zone=node.zone)
             for node in configured.members())
    return snapshot(nodes, taken, configured.mode)
