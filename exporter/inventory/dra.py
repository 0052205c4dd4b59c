"""Devices by dynamic resource allocation: how many a node has by its ResourceSlices, and who holds them by the ResourceClaims."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from exporter.config.kubernetes import Dra

Json = dict[str, Any]

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """What is kept of a ResourceSlice: its node, its pool and the names of the devices of each kind."""

    node: str
    driver: str
    pool: str
    generation: int
    efa: frozenset[str]
    gpu: frozenset[str]


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What is kept of an allocated ResourceClaim: the devices it holds, and the pods that use it as (uid, name)."""

    namespace: str
    name: str
    devices: tuple[tuple[str, str, str], ...]
    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DraHeld:
    """Devices held on one node by one pod."""

    namespace: str
    pod: str
    uid: str
    efa: int
    gpu: int


def slice_facts(one: Json, dra: Dra) -> SliceFacts | None:
    """Reduce a slice; None for one of another driver or without a node."""
    spec = one.get("spec") or {}
    node, driver, pool = spec.get("nodeName"), str(spec.get("driver") or ""), spec.get("pool") or {}
    if not node or driver not in {*dra.efa_drivers, *dra.gpu_drivers}:
        return None
    devices = [device for device in spec.get("devices") or [] if isinstance(device, dict)]
    efa = frozenset(sys.intern(str(device.get("name"))) for device in devices if driver in dra.efa_drivers and is_efa(device))
    gpu = frozenset(sys.intern(str(device.get("name"))) for device in devices if driver in dra.gpu_drivers and is_gpu(device))
    return SliceFacts(sys.intern(str(node)), driver, sys.intern(str(pool.get("name"))), int(pool.get("generation") or 0), efa, gpu)


def claim_facts(one: Json, dra: Dra) -> ClaimFacts | None:
    """Reduce a claim; None for one that holds no device of ours. A claim with adminAccess holds nothing."""
    meta, status = one.get("metadata") or {}, one.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    drivers = {*dra.efa_drivers, *dra.gpu_drivers}
    devices = tuple((str(each.get("driver")), sys.intern(str(each.get("pool"))), sys.intern(str(each.get("device"))))
                    for each in results if each.get("driver") in drivers and not each.get("adminAccess"))
    pods = tuple((str(each.get("uid")), str(each.get("name"))) for each in status.get("reservedFor") or []
                 if each.get("resource") == "pods")
    return ClaimFacts(str(meta.get("namespace")), str(meta.get("name")), devices, pods) if devices else None


def is_efa(device: Json) -> bool:
    """Whether a device can do RDMA: by the attribute `rdma`, `rdmaDevice` or `deviceType: efa`, with or without the driver's domain."""
    for name, value in _attributes(device).items():
        short = name.rpartition("/")[2]
        if (short == "rdma" and value.get("bool") is True) or (short == "rdmaDevice" and value.get("string")):
            return True
        if short == "deviceType" and str(value.get("string", "")).lower() == "efa":
            return True
    return False


def is_gpu(device: Json) -> bool:
    """Whether a device is a whole GPU, not a part of one."""
    kinds = [value.get("string") for name, value in _attributes(device).items() if name.rpartition("/")[2] == "type"]
    return not kinds or "gpu" in kinds


def totals(slices: Iterable[SliceFacts]) -> dict[str, tuple[int, int]]:
    """EFA devices and GPUs by node. Of each pool only the newest generation counts."""
    newest: dict[tuple[str, str, str], int] = {}
    found = list(slices)
    for one in found:
        key = (one.node, one.driver, one.pool)
        newest[key] = max(one.generation, newest.get(key, 0))
    sums: dict[str, tuple[int, int]] = {}
    for one in found:
        if one.generation == newest[one.node, one.driver, one.pool]:
            efa, gpu = sums.get(one.node, (0, 0))
            sums[one.node] = (efa + len(one.efa), gpu + len(one.gpu))
    return sums


def held(slices: Iterable[SliceFacts], claims: Iterable[ClaimFacts]) -> dict[str, list[DraHeld]]:
    """Who holds what, by node. A claim that several pods share is counted for the first by name."""
    places: dict[tuple[str, str], list[SliceFacts]] = defaultdict(list)
    for one in slices:
        places[one.driver, one.pool].append(one)
    sums: dict[str, list[DraHeld]] = defaultdict(list)
    for claim in claims:
        counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for driver, pool, device in claim.devices:
            for place in places.get((driver, pool), ()):
                if device in place.efa or device in place.gpu:
                    counts[place.node][0 if device in place.efa else 1] += 1
                    break
        uid, pod = min(claim.pods, key=lambda each: each[1]) if claim.pods else ("", claim.name)
        for node, (efa, gpu) in counts.items():
            sums[node].append(DraHeld(claim.namespace, pod, uid, efa, gpu))
    return sums


def _attributes(device: Json) -> dict[str, Json]:
    found = device.get("attributes") or (device.get("basic") or {}).get("attributes") or {}
    return {str(name): value for name, value in found.items() if isinstance(value, dict)}
