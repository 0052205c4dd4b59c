"""Who of the fleet is published: nodes that joined, left or changed, by name, and what a journal knows of them."""

from __future__ import annotations

from collections.abc import Set

from exporter.fleet import Fleet
from exporter.inventory.model import Inventory
from exporter.publish.publisher import Publisher
from exporter.status import StatusBoard


class Residents:
    """The nodes that a publisher shows. `ids` are their instance ids by name."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.ids: dict[str, str] = {}
        self._described: dict[str, tuple[str, str | None, str | None, str | None]] = {}

    def leave(self) -> None:
        """Another replica leads and publishes the nodes: what this one knew grows old and must not contradict it."""
        self.begin(frozenset())

    def begin(self, there: Set[str]) -> None:
        """This replica leads from now on: nodes that are not `there` any more go, the others are told anew."""
        for name in sorted(self.ids.keys() - there):
            self._publisher.node_removed(name)
        self.ids, self._described = {}, {}

    def take_in(self, inventory: Inventory, fleet: Fleet) -> None:
        """Nodes joined, left or are described otherwise."""
        now = {node.name: node.instance_id for node in inventory}
        efa = [plan.name for plan in fleet.plans if plan.transport == "efa"]
        for name in sorted(self.ids.keys() - now.keys()):
            self._publisher.node_removed(name)
            self._described.pop(name, None)
        for name, instance_id in sorted(now.items()):
            known = self.ids.get(name)
            if known is not None and known != instance_id:
                self._publisher.node_removed(name)  # the name is used again by another instance, which starts clean
            if known != instance_id:
                self._publisher.node_seen(name, fleet.planner.books[instance_id].first_seen, efa)
            node = fleet.node(name)
            told = (instance_id, node.instance_type, node.zone, node.placement_group) if node is not None else None
            if told is not None and (known != instance_id or self._described.get(name) != told):
                self._publisher.node_described(name, *told)
                self._described[name] = told
        self.ids = now

    def restore(self, fleet: Fleet, board: StatusBoard | None) -> None:
        """Publish the values of the journal with their own times, so that a new leader leaves no gap."""
        for book in fleet.planner.books.values():
            for probe, entry in book.entries.items():
                if entry.values is not None and self.ids.get(book.name) is not None:
                    self._publisher.restore(book.name, probe, entry.values)
                if board is not None and entry.outcome is not None and entry.reason is not None and entry.verdict_at is not None:
                    board.remember(book.name, probe, entry.outcome, entry.reason, entry.verdict_at)
