"""What is wrong with the configuration of prefill and decode before any request is sent. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from exporter.discovery.model import EnginePod, Found
from exporter.discovery.visits import Topology

Kind = Literal["cross_zone", "backend_not_efa", "role_mismatch", "metrics_missing", "no_pods"]
KINDS: tuple[Kind, ...] = ("cross_zone", "backend_not_efa", "role_mismatch", "metrics_missing", "no_pods")


@dataclass(frozen=True)
class Finding:
    """One of them, in words that name the pods and what to do."""

    kind: Kind
    text: str


def findings(found: Found, topology: Topology, has_efa: Callable[[str | None], bool | None]) -> list[Finding]:
    """Zones, backends and roles of these pods. `has_efa` tells of a node whether it has EFA devices; None: not known."""
    if not found.seen:
        return []
    said: list[Finding] = []
    prefill, decode = found.of("prefill"), found.of("decode")
    for role, pods in (("prefill", prefill), ("decode", decode)):
        if not pods:
            said.append(Finding("no_pods", f"no {role} pod is found: check the labels, the namespace and the rights of the exporter"))
    said += _zones(prefill, decode, topology)
    for pod in found.pods:
        backend = pod.configured.backend
        if backend is not None and pod.configured.efa is False and (pod.efa or has_efa(pod.node)):
            default = " (its default)" if pod.configured.by_default else ""
            wanted = "LIBFABRIC as backend" if pod.configured.connector == "nixl" else "efa as protocol"
            uses = f"{pod.configured.connector} uses {backend}{default}"
            said.append(Finding("backend_not_efa", f"{pod.name} has EFA and {uses}: set {wanted}"))
        told = pod.configured.role
        if told is not None and told not in ("mixed", pod.role) and pod.role != "mixed":
            said.append(Finding("role_mismatch", f"{pod.name} is labelled {pod.role} and its engine is told to be {told}"))
    return said


def _zones(prefill: Sequence[EnginePod], decode: Sequence[EnginePod], topology: Topology) -> list[Finding]:
    """EFA does not cross zones: a pair in two of them moves its KV by TCP."""
    where = {pod.life: topology(pod.node)[0] for pod in (*prefill, *decode)}
    crossing = [(one, other) for one in prefill for other in decode
                if where[one.life] and where[other.life] and where[one.life] != where[other.life]]
    if not crossing:
        return []
    one, other = crossing[0]
    return [Finding("cross_zone", f"{len(crossing)} pairs cross zones, e.g. {one.name} in {where[one.life]} and {other.name} in "
                                  f"{where[other.life]}: EFA does not, so their KV takes TCP; keep both roles in one zone")]
