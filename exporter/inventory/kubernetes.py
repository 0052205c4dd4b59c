"""The inventory of a cluster: EFA nodes with their devices, what pods take of them, and what keeps pods away.

Nodes, pods, ResourceSlices and ResourceClaims are each followed by one watch and kept in a few numbers; a snapshot joins them. Nodes are
those that list EFA devices (also none of them: a device plugin that failed), by resource or by slice; with a node selector those that it
selects.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from exporter.config.ec2 import Ec2
from exporter.config.kubernetes import Kubernetes
from exporter.inventory import dra
from exporter.inventory.ec2 import Ec2Facts, InstanceFacts, Wanted
from exporter.inventory.model import Holder, Inventory, Node, Room, snapshot
from exporter.inventory.reduce import (
    CPU,
    HUGEPAGES,
    MEMORY,
    NODEGROUP_LABELS,
    PODS,
    NodeFacts,
    PodLoad,
    canonical,
    node_facts,
    pod_load,
)
from exporter.kube.api import Api
from exporter.kube.watch import Watch
from probes.efa.instances import lookup

BAD_CONDITIONS = ("MemoryPressure", "PIDPressure", "NetworkUnavailable")
UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
SOURCE = "kubernetes"
SYNC_SECONDS = 120.0


class KubernetesInventory:
    """Follows the cluster. `on_change` is called, from threads of the watches, when a new snapshot may differ; it must only take note."""

    def __init__(self, api: Api, config: Kubernetes, *, images: Iterable[str] = (), on_change: Callable[[], None] = lambda: None,
                 clock: Callable[[], float] = time.time, ec2: Ec2 | None = None) -> None:
        self._config, self._on_change, self._clock = config, on_change, clock
        self.ec2 = Ec2Facts(ec2, on_change=lambda: self._changed(None)) if ec2 is not None and ec2.enabled else None
        resources = (config.efa_resource, config.gpu_resource)
        wanted = frozenset(canonical(image) for image in images)
        self._image_names = {canonical(image): image for image in images}
        selector = dict(config.node_selector)
        self._nodes: Watch[NodeFacts] = Watch(
            api, "/api/v1/nodes", lambda one: node_facts(one, resources=resources, selector=selector, images=wanted),
            query={"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())} if selector else None,
            on_change=self._changed)
        self._pods: Watch[PodLoad] = Watch(api, "/api/v1/pods", lambda one: pod_load(one, resources=resources),
                                           query={"fieldSelector": UNFINISHED}, on_change=self._changed)
        self._slices: Watch[dra.SliceFacts] = Watch(api, dra.SLICES, lambda one: dra.slice_facts(one, config.dra), on_change=self._changed,
                                                    absent_is_empty=True)
        self._claims: Watch[dra.ClaimFacts] = Watch(api, dra.CLAIMS, lambda one: dra.claim_facts(one, config.dra), on_change=self._changed,
                                                    absent_is_empty=True)
        self._watches: tuple[Watch[NodeFacts] | Watch[PodLoad] | Watch[dra.SliceFacts] | Watch[dra.ClaimFacts], ...] = (
            self._nodes, self._pods, self._slices, self._claims)
        self._lock = threading.Lock()
        self._fresh = False
        self._last = Inventory(source=SOURCE)

    def start(self) -> None:
        """Begin to follow the cluster."""
        for watch in self._watches:
            watch.start()
        if self.ec2 is not None:
            self.ec2.start()

    def wait(self, seconds: float = SYNC_SECONDS) -> bool:
        """Wait until everything was read once. Returns whether it was."""
        until = time.monotonic() + seconds
        return all(watch.wait(max(0.0, until - time.monotonic())) for watch in self._watches)

    def close(self) -> None:
        """End all watches."""
        for watch in self._watches:
            watch.close()
        if self.ec2 is not None:
            self.ec2.close()

    @property
    def synced(self) -> bool:
        """Whether everything was read at least once: before that a snapshot is not to be planned with."""
        return all(watch.synced for watch in self._watches)

    @property
    def age(self) -> float:
        """Seconds since the server was last known to tell us everything; a planner stops launching when this grows."""
        return max(watch.age for watch in self._watches)

    @property
    def trouble(self) -> str:
        """Why the cluster cannot be followed now; empty when it can."""
        return next((watch.error for watch in self._watches if watch.error), "")

    def snapshot(self) -> Inventory:
        """Every EFA node as known now. Made anew only when something changed."""
        with self._lock:
            if self._fresh:
                return self._last
            self._fresh = True
        made = self._make()
        with self._lock:
            self._last = made
        return made

    def _changed(self, _: object) -> None:
        with self._lock:
            self._fresh = False
        self._on_change()

    def _make(self) -> Inventory:
        slices = list(self._slices.items().values())
        by_claim, claimed = dra.totals(slices), dra.held(slices, self._claims.items().values())
        loads: dict[str, list[PodLoad]] = defaultdict(list)
        for load in self._pods.items().values():
            loads[load.node].append(load)
        nodes: dict[str, Node] = {}
        for facts in self._nodes.items().values():
            devices = by_claim.get(facts.name)
            if facts.selected or self._config.efa_resource in facts.room or (devices is not None and devices[0]):
                node = self._node(facts, loads.get(facts.name, []), devices, claimed.get(facts.name, []))
                # Two objects of one instance can exist for a moment when a node registers again: the newer one counts.
                known = nodes.get(node.instance_id)
                if known is None or (node.created or 0.0) >= (known.created or 0.0):
                    nodes[node.instance_id] = node
        if self.ec2 is not None:
            self.ec2.want(Wanted(node.instance_id, node.instance_type, node.region) for node in nodes.values())
        return snapshot(nodes.values(), self._clock(), SOURCE)

    def _node(self, facts: NodeFacts, loads: list[PodLoad], devices: tuple[int, int] | None, claimed: list[dra.DraHeld]) -> Node:
        config, labels = self._config, facts.labels
        kind = labels.get("node.kubernetes.io/instance-type")
        known = lookup(kind)
        told = self.ec2.instance(facts.instance_id) if self.ec2 is not None else InstanceFacts()
        by_type = self.ec2.type(kind) if self.ec2 is not None else None
        plugin = facts.room.get(config.efa_resource)
        by_claim = not plugin and devices is not None and devices[0] > 0
        holders = _holders(loads, claimed)
        efa_total = devices[0] if by_claim and devices is not None else plugin if plugin is not None else 0
        gpu_plugin = facts.room.get(config.gpu_resource)
        gpu_total = gpu_plugin or (devices[1] if devices is not None and devices[1] else gpu_plugin)
        return Node(
            instance_id=facts.instance_id, name=facts.name, instance_type=kind, zone=labels.get("topology.kubernetes.io/zone"),
            region=labels.get("topology.kubernetes.io/region"),
            placement_group=told.placement_group,
            capacity_block=labels.get("karpenter.k8s.aws/capacity-reservation-id") or told.capacity_reservation
            or ("capacity-block" if labels.get("eks.amazonaws.com/capacityType") == "CAPACITY_BLOCK" else None),
            nodegroup=next((labels[name] for name in NODEGROUP_LABELS if name in labels), None),
            network_nodes=facts.network_nodes or told.network_nodes,
            efa=Room(efa_total, sum(holder.efa for holder in holders)), efa_source="dra" if by_claim else "device-plugin",
            efa_expected=known.efa if known is not None else (by_type.efa or None) if by_type is not None else None,
            line_rate=known.line_rate if known is not None else by_type.line_rate if by_type is not None and by_type.efa else None,
            gpu=Room(gpu_total, sum(holder.gpu for holder in holders)) if gpu_total is not None else None,
            hugepages=_room(facts, HUGEPAGES, sum(load.hugepages for load in loads)),
            memory=_room(facts, MEMORY, sum(load.memory for load in loads)), cpu=_room(facts, CPU, sum(load.cpu for load in loads)),
            pods=_room(facts, PODS, len(loads)), holders=holders, workload_pods=sum(load.workload for load in loads),
            probe_pods=sum(load.probe for load in loads), ready="Ready" in facts.conditions, schedulable=facts.schedulable,
            deleting=facts.deleting, disk_pressure="DiskPressure" in facts.conditions,
            pressures=tuple(name for name in BAD_CONDITIONS if name in facts.conditions), taints=facts.taints, created=facts.created,
            fabric=facts.fabric, labels=labels, annotations=facts.annotations,
            images={self._image_names[name]: size for name, size in facts.images.items()}, images_listed=facts.images_listed,
            image_bytes=facts.image_bytes)


def _room(facts: NodeFacts, name: str, requested: int) -> Room | None:
    return Room(facts.room[name], requested) if name in facts.room else None


def _holders(loads: list[PodLoad], claimed: list[dra.DraHeld]) -> tuple[Holder, ...]:
    by_uid = {load.uid: load for load in loads}
    found = {(load.namespace, load.name): Holder(load.namespace, load.name, load.efa, load.gpu, load.ends, load.probe)
             for load in loads if load.efa or load.gpu}
    for held in claimed:
        load = by_uid.get(held.uid)
        before = found.get((held.namespace, held.pod), Holder(held.namespace, held.pod))
        found[held.namespace, held.pod] = Holder(held.namespace, held.pod, before.efa + held.efa, before.gpu + held.gpu,
                                                 load.ends if load is not None else False, load.probe if load is not None else False)
    return tuple(found[key] for key in sorted(found))
