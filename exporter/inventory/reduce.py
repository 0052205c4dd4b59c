"""What is kept of nodes and pods of the cluster: a few numbers each, so that 20,000 pods fit into a few megabytes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from exporter.inventory.model import Fabric, Taint
from exporter.kube import quantity

Json = dict[str, Any]

TOPOLOGY = "topology.k8s.aws/"
KEPT_LABELS = ("kubernetes.io/hostname", "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
               "karpenter.sh/nodepool", "karpenter.sh/capacity-type", "karpenter.k8s.aws/capacity-reservation-id",
               "eks.amazonaws.com/nodegroup", "eks.amazonaws.com/capacityType", "sagemaker.amazonaws.com/instance-group-name",
               "sagemaker.amazonaws.com/node-health-status", f"{TOPOLOGY}ultraserver-id")
KEPT_ANNOTATIONS = ("efa-pulse.io/", "cluster-autoscaler.kubernetes.io/", "karpenter.sh/")
NODEGROUP_LABELS = ("eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool", "sagemaker.amazonaws.com/instance-group-name")
FENCE = "efa-pulse.io/fence"
FABRIC = "EfaFabricHealthy"
"""Type of the node condition that the service writes where it is switched on."""
CPU, MEMORY, PODS, HUGEPAGES = "cpu", "memory", "pods", "hugepages-2Mi"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is kept of a node. `room` is its allocatable by resource: whole numbers, `cpu` in millicores."""

    name: str
    instance_id: str
    room: Mapping[str, int]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    network_nodes: tuple[str, ...]
    taints: tuple[Taint, ...]
    conditions: frozenset[str]
    """Types of the conditions that are true."""
    fabric: Fabric | None
    schedulable: bool
    deleting: bool
    created: float | None
    images: Mapping[str, int]
    images_listed: int
    image_bytes: int
    selected: bool


@dataclass(frozen=True, slots=True)
class PodLoad:
    """What a bound, unfinished pod takes of its node."""

    node: str
    namespace: str
    name: str
    uid: str
    efa: int
    gpu: int
    cpu: int
    memory: int
    hugepages: int
    ends: bool
    probe: bool
    workload: bool


def node_facts(node: Json, *, resources: tuple[str, str], selector: Mapping[str, str], images: Collection[str]) -> NodeFacts:
    """Reduce a node. `resources` are the names of EFA and GPU resources, `images` those of the probes, as `canonical` writes them."""
    meta, spec, status = node.get("metadata") or {}, node.get("spec") or {}, node.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    listed = status.get("images") or []
    there = {canonical(name): int(one.get("sizeBytes") or 0) for one in listed for name in one.get("names") or []}
    layers = [str(labels[key]) for number in range(1, 5) if (key := f"{TOPOLOGY}network-node-layer-{number}") in labels]
    taints = tuple(Taint(sys.intern(str(one.get("key"))), sys.intern(str(one.get("effect"))), str(one.get("value") or ""))
                   for one in spec.get("taints") or [])
    return NodeFacts(
        name=str(meta.get("name")), instance_id=instance_id(str(spec.get("providerID") or ""), str(meta.get("name"))),
        room=_room(status.get("allocatable") or {}, resources), labels=_kept(labels, (*KEPT_LABELS, *selector)),
        annotations={key: str(value) for key, value in notes.items() if key.startswith(KEPT_ANNOTATIONS)},
        network_nodes=tuple(layers), taints=taints,
        conditions=frozenset(sys.intern(str(one.get("type"))) for one in status.get("conditions") or [] if one.get("status") == "True"),
        fabric=_fabric(status.get("conditions") or []),
        schedulable=not spec.get("unschedulable"), deleting=bool(meta.get("deletionTimestamp")),
        created=_time(meta.get("creationTimestamp")),
        images={name: size for name, size in there.items() if name in images}, images_listed=len(listed),
        image_bytes=sum(int(one.get("sizeBytes") or 0) for one in listed),
        selected=bool(selector) and all(labels.get(key) == value for key, value in selector.items()))


def pod_load(pod: Json, *, resources: tuple[str, str]) -> PodLoad | None:
    """Reduce a pod; None for one that has no node or has ended."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    asked = requests(spec, (*resources, CPU, MEMORY, HUGEPAGES))
    owner: Json = next((one for one in meta.get("ownerReferences") or [] if one.get("controller")), {})
    probe = FENCE in (meta.get("labels") or {})
    ends = owner.get("kind") == "Job" or spec.get("restartPolicy") in {"Never", "OnFailure"} or bool(meta.get("deletionTimestamp"))
    mirror = "kubernetes.io/config.mirror" in (meta.get("annotations") or {})
    return PodLoad(node=sys.intern(str(spec["nodeName"])), namespace=sys.intern(str(meta.get("namespace"))), name=str(meta.get("name")),
                   uid=str(meta.get("uid")), efa=asked[resources[0]], gpu=asked[resources[1]], cpu=asked[CPU], memory=asked[MEMORY],
                   hugepages=asked[HUGEPAGES], ends=ends, probe=probe,
                   workload=not probe and not mirror and owner.get("kind") not in {"DaemonSet", "Node"})


def requests(spec: Json, wanted: Collection[str]) -> dict[str, int]:
    """What a pod asks for, as the scheduler counts: its containers together with its sidecars, or the largest init container beside the
    sidecars started before it, whichever is more; and its overhead."""
    main = dict.fromkeys(wanted, 0)
    for container in spec.get("containers") or []:
        _add(main, container)
    sidecars, peak = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            _add(sidecars, container)
            _add(main, container)
            now = sidecars
        else:
            now = dict(sidecars)
            _add(now, container)
        peak = {name: max(peak[name], now[name]) for name in peak}
    overhead = spec.get("overhead") or {}
    return {name: max(main[name], peak[name]) + _amount(name, overhead.get(name)) for name in main}


def instance_id(provider_id: str, name: str) -> str:
    """`i-0abc…` of `aws:///us-west-2a/i-0abc…`; the node's name where there is no providerID."""
    return sys.intern(provider_id.rstrip("/").rpartition("/")[2] or name)


def canonical(image: str) -> str:
    """An image name as container runtimes list it: with its registry, and a tag where there is neither tag nor digest."""
    first, slash, _ = image.partition("/")
    if not slash:
        image = f"docker.io/library/{image}"
    elif "." not in first and ":" not in first and first != "localhost":
        image = f"docker.io/{image}"
    tail = image.rpartition("/")[2]
    return image if "@" in image or ":" in tail else f"{image}:latest"


def _room(allocatable: Json, resources: tuple[str, str]) -> dict[str, int]:
    return {name: _amount(name, allocatable[name]) for name in (*resources, CPU, MEMORY, PODS, HUGEPAGES) if name in allocatable}


def _fabric(conditions: list[Json]) -> Fabric | None:
    for one in conditions:
        if one.get("type") == FABRIC:
            return Fabric(str(one.get("status")), str(one.get("reason") or ""), str(one.get("message") or ""),
                          _time(one.get("lastTransitionTime")) or 0.0)
    return None


def _add(total: dict[str, int], container: Json) -> None:
    resources = container.get("resources") or {}
    # A limit without a request is also the request.
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for name in total:
        if name in asked:
            total[name] += _amount(name, asked[name])


def _amount(name: str, text: object) -> int:
    if text is None:
        return 0
    with contextlib.suppress(ValueError):
        return quantity.milli(text) if name == CPU else quantity.whole(text)
    return 0


def _kept(labels: Json, names: Collection[str]) -> dict[str, str]:
    return {name: sys.intern(str(labels[name])) for name in names if name in labels}


def _time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
