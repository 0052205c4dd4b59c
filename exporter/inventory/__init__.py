"""Which EFA nodes there are and what is known about each: an immutable snapshot, whatever it was read from."""

from exporter.inventory.model import Holder, Inventory, Node, Room, Stratum, Taint, group_of, stratum_of

__all__ = ["Holder", "Inventory", "Node", "Room", "Stratum", "Taint", "group_of", "stratum_of"]
