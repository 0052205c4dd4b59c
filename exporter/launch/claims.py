"""How many devices each worker of a run gets, from the probe's pod settings and the nodes it goes to."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.config.kubernetes import Devices, Kubernetes
from exporter.inventory.model import Node, Room
from exporter.launch.manifest import SHARED, Claim, ManifestError, pod_of
from exporter.runs import RunSpec


def claim_of(spec: RunSpec, nodes: Sequence[Node], config: Kubernetes) -> Claim:
    """What each worker of `spec` asks for on `nodes`. `all` is what the smallest of them has: the workers of a run are alike.

    Raises ManifestError for a probe that does not run in pods, for devices that no node is known to have, and for nodes whose devices come
    in different ways: one Job has one pod template.
    """
    pod = pod_of(spec, config)
    if pod.placement == SHARED and not config.dra.admin_access:
        return Claim()
    efa = _count(pod.efa, [node.efa for node in nodes], "EFA devices", spec)
    gpu = _count(pod.gpu, [node.gpu for node in nodes], "GPUs", spec)
    sources = {node.efa_source for node in nodes} if efa else set()
    if len(sources) > 1:
        raise ManifestError(f"the nodes of {spec.target} offer their EFA devices in different ways, by device plugin and by dynamic "
                            "allocation: one Job cannot ask for both")
    by_claim = "dra" in sources
    return Claim(efa=efa, gpu=gpu, efa_by_claim=by_claim, admin=by_claim and pod.placement == SHARED)


def _count(wanted: Devices, rooms: Sequence[Room | None], what: str, spec: RunSpec) -> int:
    if wanted != "all":
        return wanted
    counts = [room.allocatable for room in rooms if room is not None]
    if not counts or min(counts) == 0:
        raise ManifestError(f"{spec.probe} asks for all {what} of {spec.target}, and not every node lists any")
    return min(counts)
