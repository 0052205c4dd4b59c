"""Gates: why a node is not probed now. Each is one named predicate over a node and what is known at this moment; none has side effects.

A closed gate is no fault of the node. `Stay.LASTING` marks what does not pass by itself (somebody excluded the node, serving holds every
device): such a node leaves the denominator of coverage, with a hint. Everything else passes, and the node stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from exporter.config.planning import Gates, Toleration
from exporter.inventory.model import Holder, Node, Room, Taint
from exporter.plan.probes import Needs
from probes.units import show_duration

EXCLUDE = "efa-pulse.io/exclude"
CORDON = "node.kubernetes.io/unschedulable"
REMOVAL_TAINTS = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption", "aws-node-termination-handler/",
                  "node.cloudprovider.kubernetes.io/shutdown", "node.kubernetes.io/out-of-service")
"""Taints of a node that is on its way out; one that ends with `/` stands for all keys below it."""
IDLE_MARKS = ("DeletionCandidateOfClusterAutoscaler",)
"""Taints by which an autoscaler says that it wants an idle node away. (Karpenter goes straight to its removal taint.)"""


class Stay(str, Enum):
    """Whether a closed gate opens by itself."""

    PASSING = "passing"
    LASTING = "lasting"


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed gate of one node: which, why in words, and whether that passes."""

    gate: str
    why: str
    stay: Stay = Stay.PASSING

    def __str__(self) -> str:
        return f"{self.gate}: {self.why}"


@dataclass(frozen=True)
class Moment:
    """What gates look at beside the node. Times are Unix seconds, `background` bytes per second by instance id.

    `paused` and `quiet` are reasons in words, None when probing goes on. `busy` names the run that occupies a node, whoever launched it.
    """

    now: float
    settings: Gates = field(default_factory=Gates)
    paused: str | None = None
    quiet: str | None = None
    background: Mapping[str, float] = field(default_factory=dict)
    busy: Mapping[str, str] = field(default_factory=dict)


Check = Callable[[Node, Needs, Moment], Closed | None]


def efa(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node has EFA devices as Kubernetes sees them, as many as a worker asks for."""
    return _exists("efa", "EFA device", node.efa, needs.efa)


def gpu(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node has GPUs, as many as a worker asks for."""
    return _exists("gpu", "GPU", node.gpu, needs.gpu)


def efa_room(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Enough EFA devices are free: allocatable minus requested."""
    return _room("efa_room", "EFA device", node.efa, needs.efa, node.holders, lambda holder: holder.efa)


def gpu_room(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Enough GPUs are free."""
    return _room("gpu_room", "GPU", node.gpu, needs.gpu, node.holders, lambda holder: holder.gpu)


def memory_room(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Enough memory, huge pages, CPU and pod places are free."""
    for what, room, want in (("memory", node.memory, needs.memory), ("huge pages", node.hugepages, needs.hugepages)):
        if room is not None and want > room.free:
            lasting = Stay.LASTING if want > room.allocatable else Stay.PASSING
            return Closed("room", f"{_gib(want)} of {what} are needed, {_gib(room.free)} are free", lasting)
    if node.cpu is not None and needs.cpu > node.cpu.free:
        lasting = Stay.LASTING if needs.cpu > node.cpu.allocatable else Stay.PASSING
        return Closed("room", f"{needs.cpu} millicores are needed, {node.cpu.free} are free", lasting)
    if node.pods is not None and node.pods.free < 1:
        return Closed("room", f"all {node.pods.allocatable} pod places are taken")
    return None


def ready(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node is Ready."""
    return None if node.ready else Closed("ready", "the node is not Ready")


def schedulable(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node is not cordoned."""
    return None if node.schedulable else Closed("schedulable", "the node is cordoned")


def draining(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node is not on its way out."""
    if node.deleting:
        return Closed("draining", "the node is being deleted")
    for taint in node.taints:
        if any(taint.key == key or (key.endswith("/") and taint.key.startswith(key)) for key in REMOVAL_TAINTS):
            return Closed("draining", f"the node is being removed (taint {taint.key})")
    return None


def taint(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Every taint that keeps pods away is tolerated."""
    for one in node.taints:
        if one.effect != "PreferNoSchedule" and one.key != CORDON and one.key not in IDLE_MARKS \
                and not any(tolerates(toleration, one) for toleration in moment.settings.tolerations):
            lasting = Stay.PASSING if one.key.startswith("node.kubernetes.io/") else Stay.LASTING
            return Closed("taint", f"taint {one} is not tolerated (planning.gates.tolerations)", lasting)
    return None


def age(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """A new node has had time to settle."""
    if node.created is None:
        return None
    left = moment.settings.min_age - (moment.now - node.created)
    return Closed("age", f"the node is new, it settles for {show_duration(float(int(left) + 1))} more") if left > 0 else None


def disk(node: Node, needs: Needs, moment: Moment) -> Closed | None:
    """No DiskPressure, and room for the image where it is still to be pulled."""
    if node.disk_pressure:
        return Closed("disk", "the node has DiskPressure")
    if node.disk_free is None or needs.image is None or node.has_image(needs.image):
        return None
    # Unpacked layers take about twice what the registry sends.
    want = 3 * (needs.image_bytes or 0) + moment.settings.disk_reserve
    return Closed("disk", f"{_gib(want)} are needed to pull the image, {_gib(node.disk_free)} are free") \
        if want > node.disk_free else None


def pressure(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node has no other condition that keeps pods away."""
    return Closed("pressure", f"the node has {', '.join(node.pressures)}") if node.pressures else None


def image(node: Node, needs: Needs, moment: Moment) -> Closed | None:
    """The image is on the node, where only such nodes are probed."""
    if not moment.settings.require_image or needs.image is None or node.has_image(needs.image) is not False:
        return None
    return Closed("image", f"image {needs.image} is not on the node yet (planning.gates.require_image)")


def background(node: Node, needs: Needs, moment: Moment) -> Closed | None:
    """Others use the node's EFA devices little enough for a measurement to mean something."""
    rate = moment.background.get(node.instance_id)
    if rate is None or needs.efa == 0:
        return None
    settings = moment.settings
    ceiling = settings.max_background * node.line_rate if node.line_rate else settings.max_background_rate
    if rate <= ceiling:
        return None
    return Closed("background", f"others move {rate / 1e9:.3g} GB/s over its EFA devices, the ceiling is {ceiling / 1e9:.3g} GB/s")


def idle(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """The node is not an idle one that an autoscaler wants to remove."""
    mode = moment.settings.idle_skip
    if mode == "never":
        return None
    marks = [one.key for one in node.taints if one.key in IDLE_MARKS]
    if marks and not node.workload_pods:
        return Closed("idle", f"an autoscaler wants to remove this idle node ({marks[0]})")
    if mode == "always" and node.workload_pods == 0:
        return Closed("idle", "the node runs no workload (planning.gates.idle_skip: always)")
    return None


def excluded(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Nobody has excluded the node: annotation `efa-pulse.io/exclude: <reason>[;until=<RFC 3339 time>]`."""
    text = node.annotations.get(EXCLUDE)
    if text is None:
        return None
    reason, until, problem = parse_exclude(text)
    if problem:
        return Closed("excluded", f"{reason} (annotation {EXCLUDE}: {problem}, so it holds without an end)", Stay.LASTING)
    if until is None:
        return Closed("excluded", f"{reason} (annotation {EXCLUDE})", Stay.LASTING)
    if until <= moment.now:
        return None
    shown = datetime.fromtimestamp(until, timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
    return Closed("excluded", f"{reason}, until {shown} (annotation {EXCLUDE})", Stay.LASTING)


def paused(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """Probing is not paused."""
    return Closed("paused", moment.paused) if moment.paused is not None else None


def quiet(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """No quiet window."""
    return Closed("quiet", moment.quiet) if moment.quiet is not None else None


def busy(node: Node, needs: Needs, moment: Moment) -> Closed | None:  # noqa: ARG001
    """No probe runs on the node, whoever launched it: a node has one at a time."""
    run = moment.busy.get(node.instance_id)
    if run is not None:
        return Closed("busy", f"run {run} is on the node")
    if node.probe_pods > 0:
        return Closed("busy", "a probe pod is on the node")
    return None


GATES: dict[str, Check] = {
    "paused": paused, "quiet": quiet, "excluded": excluded, "ready": ready, "schedulable": schedulable, "draining": draining,
    "taint": taint, "age": age, "efa": efa, "gpu": gpu, "efa_room": efa_room, "gpu_room": gpu_room, "room": memory_room, "disk": disk,
    "pressure": pressure, "image": image, "background": background, "idle": idle, "busy": busy,
}
"""Every gate by its name, in the order in which they are looked at: what somebody decided first, what passes soonest last."""
BUDGET_GATES = ("budget_bytes", "budget_gpu", "budget_fabric")
"""Gates that `exporter.plan.budget` closes."""
GATE_NAMES = (*GATES, *BUDGET_GATES)


def closed(node: Node, needs: Needs, moment: Moment) -> list[Closed]:
    """Every gate that is closed for a worker with `needs` on `node` at this moment."""
    return [found for check in GATES.values() if (found := check(node, needs, moment)) is not None]


class FirstClosed:
    """The first closed gate of a node, None when all are open. For many nodes at one moment: gates that cannot close are not looked at."""

    def __init__(self, needs: Needs, moment: Moment) -> None:
        self._needs = needs
        self._moment = moment
        settled = {
            "paused": moment.paused is None, "quiet": moment.quiet is None, "efa": needs.efa == 0, "efa_room": needs.efa == 0,
            "gpu": needs.gpu == 0, "gpu_room": needs.gpu == 0, "image": not moment.settings.require_image or needs.image is None,
            "background": not moment.background or needs.efa == 0, "idle": moment.settings.idle_skip == "never",
        }
        self._checks = tuple(check for name, check in GATES.items() if not settled.get(name))
        # What only a node that is somehow marked can close.
        marked = {"excluded", "ready", "schedulable", "draining", "taint", "pressure"} | ({"busy"} if not moment.busy else set()) | (
            {"idle"} if moment.settings.idle_skip == "marked" else set())
        self._plain = tuple(check for name, check in GATES.items() if not settled.get(name) and name not in marked)

    def __call__(self, node: Node) -> Closed | None:
        """Look at one node."""
        plain = node.ready and node.schedulable and not (
            node.taints or node.annotations or node.deleting or node.pressures or node.probe_pods)
        for check in self._plain if plain else self._checks:
            found = check(node, self._needs, self._moment)
            if found is not None:
                return found
        return None


def tolerates(toleration: Toleration, one: Taint) -> bool:
    """Whether a toleration matches a taint, by the rules of Kubernetes."""
    if toleration.effect is not None and toleration.effect != one.effect:
        return False
    if toleration.key is None:
        return True
    return toleration.key == one.key and (toleration.operator == "Exists" or toleration.value == one.value)


_UNTIL = re.compile(r";\s*until=(.*)$", re.DOTALL)


def parse_exclude(text: str) -> tuple[str, float | None, str | None]:
    """Reason, end in Unix seconds, and what is wrong with the end, of an exclude annotation."""
    match = _UNTIL.search(text)
    reason = (text[: match.start()] if match else text).strip() or "no reason given"
    if match is None:
        return reason, None, None
    try:
        moment = datetime.fromisoformat(match[1].strip())
    except ValueError:
        return reason, None, f"until={match[1].strip()!r} is no time such as 2026-12-31T18:00:00Z"
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return reason, moment.timestamp(), None


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _exists(gate: str, what: str, room: Room | None, want: int | None) -> Closed | None:
    if room is None or want == 0:
        return None
    if room.allocatable < (want or 1):
        return Closed(gate, f"{want or 1} {what}{'s' if (want or 1) > 1 else ''} needed, the node lists {room.allocatable} allocatable")
    return None


def _room(gate: str, what: str, room: Room | None, want: int | None, holders: tuple[Holder, ...],
          held: Callable[[Holder], int]) -> Closed | None:
    """Room for `want` devices (None: all of the node's). Lasting when even the end of every pod that ends by itself would not make it."""
    if room is None or want == 0:
        return None
    need = room.allocatable if want is None else want
    if need > room.allocatable or room.free >= need:
        return None
    those = [holder for holder in holders if held(holder)]
    names = ", ".join(str(holder) for holder in those[:3]) + (f" and {len(those) - 3} more" if len(those) > 3 else "")
    why = f"{need} {what}{'s' if need > 1 else ''} needed, {room.free} of {room.allocatable} free" + (f", held by {names}" if names else "")
    staying = sum(held(holder) for holder in those if not holder.ends and not holder.probe)
    if room.allocatable - staying < need:
        return Closed(gate, f"{why}: production that does not end holds them (placement shared or an exclusion helps)", Stay.LASTING)
    return Closed(gate, why)
