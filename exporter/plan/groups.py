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
    possible: dict[Stratum, tuple[str, ...]] = field(repr=False)
    """The nodes that have a partner at each distance."""

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
    spine_of: dict[str, str] = {}
    ids: list[str] = []
    for node in nodes:
        ids.append(node.instance_id)
        if node.leaf is not None:
            leaves.setdefault(node.leaf, []).append(node.instance_id)
            spine_of[node.leaf] = node.spine or node.leaf
            spines.setdefault(spine_of[node.leaf], []).append(node.instance_id)
    placed = sum(map(len, leaves.values()))
    possible = {
        Stratum.LEAF: tuple(one for members in leaves.values() if len(members) > 1 for one in members),
        Stratum.SPINE: tuple(one for leaf, members in leaves.items() if len(spines[spine_of[leaf]]) > len(members) for one in members),
        Stratum.CROSS: tuple(one for members in spines.values() if placed > len(members) for one in members),
    }
    return Group(key, tuple(ids), leaves, spines, possible)
