"""The inventory of the configuration file: nodes that are there because somebody wrote them down."""

from __future__ import annotations

from exporter.config.inventory import Inventory as Configured
from exporter.config.inventory import Node as ConfiguredNode
from exporter.inventory.model import Inventory, Node, snapshot
from probes.efa.instances import lookup


def from_config(configured: Configured, taken: float) -> Inventory:
    """The nodes of `inventory` in the configuration.

    A name is its own identity there; what the instance type should have comes from the table, devices in place, conditions and topology
    are unknown.
    """
    return snapshot((_node(node) for node in configured.members()), taken, configured.mode)


def _node(node: ConfiguredNode) -> Node:
    row = lookup(node.instance_type)
    return Node(instance_id=node.name, name=node.name, instance_type=node.instance_type, zone=node.zone,
                efa_expected=row.efa if row is not None else None, line_rate=row.line_rate if row is not None else None)
