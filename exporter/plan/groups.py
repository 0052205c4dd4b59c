"""Groups of nodes that can be compared with each other, and how a group falls into leaves and spines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from exporter.inventory.model import Inventory, Node, Stratum, group_of


@dataclass(frozen=True)
class Group:
    """The nodes of one group, by id, and the strata that exist in it."""

    key: str
    ids: tuple[str, ...]
    leaves: dict[str, list[str]] = field(repr=False)
    spines: dict[str, list[str]] = field(repr=False)
    no_topology: int = 0

    def possible(self, stratum: Stratum, node: Node) -> bool:
        """Whether `node` has a partner at this distance in the group."""
        if node.leaf is None:
            return False
        leaf = self.leaves[node.leaf]
        spine = self.spines[node.spine or node.leaf]
        if stratum is Stratum.LEAF:
            return len(leaf) > 1
        if stratum is Stratum.SPINE:
            return node.spine is not None and len(spine) > len(leaf)
        return len(self.ids) - self.no_topology > len(spine)

    def parts(self, stratum: Stratum) -> list[list[list[str]]]:
        """The group cut so that pairs of a stratum are: within one part, between its pieces (leaf: one piece a part)."""
        if stratum is Stratum.LEAF:
            return [[members] for _, members in sorted(self.leaves.items())]
        if stratum is Stratum.CROSS:
            return [[members for _, members in sorted(self.spines.items())]]
        inside: dict[str, list[list[str]]] = {}
        spine_of = {one: spine for spine, members in self.spines.items() for one in members}
        for _, members in sorted(self.leaves.items()):
            inside.setdefault(spine_of[members[0]], []).append(members)
        return [pieces for _, pieces in sorted(inside.items()) if len(pieces) > 1]


def groups_of(inventory: Inventory) -> dict[str, Group]:
    """Every group of an inventory by its key."""
    members: dict[str, list[Node]] = {}
    for node in inventory:
        members.setdefault(group_of(node), []).append(node)
    return {key: _group(key, nodes) for key, nodes in sorted(members.items())}


def _group(key: str, nodes: Iterable[Node]) -> Group:
    leaves: dict[str, list[str]] = {}
    spines: dict[str, list[str]] = {}
    ids: list[str] = []
    bare = 0
    for node in nodes:
        ids.append(node.instance_id)
        if node.leaf is None:
            bare += 1
            continue
        leaves.setdefault(node.leaf, []).append(node.instance_id)
        spines.setdefault(node.spine or node.leaf, []).append(node.instance_id)
    return Group(key, tuple(ids), leaves, spines, bare)
