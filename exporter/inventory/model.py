"""One EFA node and the snapshot of all of them. Nothing here reads anything; sources fill it.

A field that a source cannot tell is None, never zero or false: what is unknown closes no gate and opens none by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Literal

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_SIZES: Mapping[str, int] = MappingProxyType({})
IMAGES_LISTED = 50
"""A kubelet lists at most this many images on its node (`nodeStatusMaxImages`), largest first: beyond it absence proves nothing."""


class Stratum(str, Enum):
    """How far apart two nodes are in the EC2 network topology."""

    LEAF = "same_leaf"
    SPINE = "same_spine"
    CROSS = "cross"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Room:
    """A countable resource of a node: devices, bytes or millicores. `requested` is what bound, unfinished pods ask for, probes included."""

    allocatable: int
    requested: int = 0

    @property
    def free(self) -> int:
        """What a new pod could get; never negative, also where a device vanished under a pod that holds it."""
        return max(self.allocatable - self.requested, 0)


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint as in `spec.taints`; `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""

    key: str
    effect: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds EFA devices or GPUs of a node.

    `ends` is whether the pod is of a kind that finishes by itself (a Job's, or one that is not restarted always); `probe` whether it is one
    of ours, whoever launched it.
    """

    namespace: str
    pod: str
    efa: int = 0
    gpu: int = 0
    ends: bool = False
    probe: bool = False

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Fabric:
    """The condition `EfaFabricHealthy` as it stands on a node, whoever wrote it. `since` is its last transition, Unix seconds."""

    status: str
    reason: str
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class Node:
    """One node at one moment.

    `instance_id` is its identity (EC2 instance id from the providerID; elsewhere the name): EKS reuses names, and a new id starts clean.
    `network_nodes` are the ids of the network layers above the instance, top first, as `DescribeInstanceTopology` and the labels
    `topology.k8s.aws/network-node-layer-N` give them; the last is the leaf. Times are Unix seconds, sizes bytes, `cpu` millicores.
    """

    instance_id: str
    name: str
    instance_type: str | None = None
    zone: str | None = None
    region: str | None = None

    placement_group: str | None = None
    capacity_block: str | None = None
    nodegroup: str | None = None
    network_nodes: tuple[str, ...] = ()

    efa: Room | None = None
    """EFA devices; allocatable 0 means the node lists the resource and has none."""
    efa_source: Literal["device-plugin", "dra"] | None = None
    efa_expected: int | None = None
    """What the instance type should have, from the instance table."""
    line_rate: float | None = None
    """Bytes per second that all EFA devices of the node reach together in one direction, from the instance table."""
    gpu: Room | None = None
    hugepages: Room | None = None
    """2 MiB pages, bytes."""
    memory: Room | None = None
    cpu: Room | None = None
    pods: Room | None = None
    holders: tuple[Holder, ...] = ()
    """Pods that hold EFA devices or GPUs, sorted by name."""
    workload_pods: int | None = None
    """Bound, unfinished pods that neither a DaemonSet owns nor we launched."""
    probe_pods: int = 0
    """Bound, unfinished probe pods, whoever launched them."""

    ready: bool = True
    schedulable: bool = True
    """Not cordoned (`spec.unschedulable`)."""
    deleting: bool = False
    """`metadata.deletionTimestamp` is set."""
    disk_pressure: bool = False
    pressures: tuple[str, ...] = ()
    """Other conditions that are true and should not be: `MemoryPressure`, `PIDPressure`, `NetworkUnavailable`."""
    disk_free: int | None = None
    """Bytes free on the image file system."""
    taints: tuple[Taint, ...] = ()
    fabric: Fabric | None = None
    created: float | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Only those that a gate, a selector or a metric looks at."""
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Only those below `efa-pulse.io/` and those of autoscalers."""
    images: Mapping[str, int] | None = None
    """Every name of every image listed on the node, with its size in bytes."""
    images_listed: int = 0
    """How many images (not names) the kubelet listed."""
    image_bytes: int | None = None
    """Bytes of all listed images together."""

    @property
    def leaf(self) -> str | None:
        """The network node the instance hangs on."""
        return self.network_nodes[-1] if self.network_nodes else None

    @property
    def spine(self) -> str | None:
        """The network node above the leaf."""
        return self.network_nodes[-2] if len(self.network_nodes) > 1 else None

    def has_image(self, image: str) -> bool | None:
        """Whether `image` lies on the node; None when that cannot be told."""
        if self.images is None:
            return None
        if image in self.images:
            return True
        return None if self.images_listed >= IMAGES_LISTED else False


@dataclass(frozen=True)
class Inventory:
    """Every known node at one moment, sorted by identity. `taken` is Unix seconds; `source` says where it was read."""

    nodes: tuple[Node, ...] = ()
    taken: float = 0.0
    source: str = "static"
    _by_id: Mapping[str, Node] = field(init=False, repr=False, compare=False)
    _by_name: Mapping[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.nodes, key=lambda node: node.instance_id))
        by_id = {node.instance_id: node for node in ordered}
        by_name = {node.name: node for node in ordered}
        if len(by_id) != len(ordered) or len(by_name) != len(ordered):
            raise ValueError(f"{len(ordered)} nodes have {len(by_id)} instance ids and {len(by_name)} names: each must be its own")
        object.__setattr__(self, "nodes", ordered)
        object.__setattr__(self, "_by_id", MappingProxyType(by_id))
        object.__setattr__(self, "_by_name", MappingProxyType(by_name))

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._by_id

    def get(self, instance_id: str) -> Node | None:
        """The node of this identity, or None when it left."""
        return self._by_id.get(instance_id)

    def named(self, name: str) -> Node | None:
        """The node that has this name now."""
        return self._by_name.get(name)

    @property
    def ids(self) -> frozenset[str]:
        """Every identity."""
        return frozenset(self._by_id)


def group_of(node: Node) -> str:
    """The key of the nodes that a node can be paired and compared with: instance type, zone and whether it has EFA.

    It survives a device plugin that lost its devices.
    """
    return "/".join((node.instance_type or "any", node.zone or "any", "efa" if node.efa is not None else "net"))


def stratum_of(one: Node, other: Node) -> Stratum:
    """How far apart two nodes are: same leaf, same spine (the layer above the leaf), or neither. Unknown without topology of both."""
    if one.leaf is None or other.leaf is None:
        return Stratum.UNKNOWN
    if one.leaf == other.leaf:
        return Stratum.LEAF
    if one.spine is not None and one.spine == other.spine:
        return Stratum.SPINE
    return Stratum.CROSS


def snapshot(nodes: Iterable[Node], taken: float, source: str) -> Inventory:
    """An inventory of `nodes`. Raises ValueError when two share an identity or a name."""
    return Inventory(tuple(nodes), taken, source)
