"""What the workers of each probe ask of their nodes, from the settings of the probe pods: what gates compare with the room there is."""

from __future__ import annotations

from exporter.config.kubernetes import Devices, Pod, Pods
from exporter.plan.probes import DEFAULT_NEEDS, Needs


def needs_of(pods: Pods) -> dict[str, Needs]:
    """The needs of every probe, by its name."""
    return {name: _needs(pods.of(name), pods) for name in DEFAULT_NEEDS}


def _needs(pod: Pod, pods: Pods) -> Needs:
    # A shared pod reaches devices that others hold: it needs no free ones, and no huge pages.
    exclusive = pod.placement == "exclusive"
    return Needs(efa=_count(pod.efa) if exclusive else 0, gpu=_count(pod.gpu) if exclusive else 0,
                 hugepages=pod.hugepages if exclusive else 0, memory=pod.memory, cpu=pod.cpu, image=pod.image or pods.image)


def _count(wanted: Devices) -> int | None:
    return None if wanted == "all" else wanted
