"""What the state of a probe pod means for its rank: pure functions over the pod's JSON, one table for each kind of end.

A worker that could write its result has the last word. Where it left only its mark (`died_in_<phase>`), was asked to stop, or left nothing,
the pod's own state says why: preempted, evicted, out of memory, overdue, lost. What cannot be told is `no_result`, never a verdict about
the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from exporter.launch import names
from exporter.launch.manifest import GATHER, WORKER
from probes.reasons import DIED_IN, Reason
from probes.result import Result, ResultError, decode

Json = dict[str, Any]


class Step(str, Enum):
    """Where a pod stands."""

    PENDING = "pending"
    """It has no node."""
    PULLING = "pulling"
    """It has a node; the worker has not started: image pull, volumes, waiting for the other ranks."""
    RUNNING = "running"
    """The worker runs."""
    ENDED = "ended"
    """Nothing more will come from it."""


@dataclass(frozen=True, slots=True)
class Container:
    """The state of one container. Times are Unix seconds; `message` is the termination message."""

    name: str
    waiting: str = ""
    started: float | None = None
    finished: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """Whether it terminated."""
        return self.exit_code is not None


@dataclass(frozen=True, slots=True)
class PodView:
    """What is kept of a probe pod."""

    uid: str
    name: str
    job: str
    rank: int | None
    node: str | None
    phase: str
    created: float
    bound: float | None = None
    reason: str = ""
    message: str = ""
    unscheduled: str = ""
    """The scheduler's message while the pod has no node."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget: who is about to take the pod away."""
    disruption_message: str = ""
    deleting: bool = False
    gone: bool = False
    """It no longer exists."""
    role: str = ""
    """`launcher` or `worker` in an MPIJob."""
    containers: tuple[Container, ...] = field(default=())

    def container(self, name: str) -> Container:
        """The container of this name; one that has not begun where the kubelet says nothing of it."""
        return next((one for one in self.containers if one.name == name), Container(name))

    @property
    def step(self) -> Step:
        """Where the pod stands."""
        worker = self.container(WORKER)
        # Kubelets before 1.27 fail a pod while its container still runs: its message is yet to come.
        still = worker.started is not None and not worker.ended
        if self.gone or worker.ended or (self.phase in {"Succeeded", "Failed"} and not still):
            return Step.ENDED
        if worker.started is not None:
            return Step.RUNNING
        return Step.PULLING if self.node else Step.PENDING

    @property
    def pull_seconds(self) -> float | None:
        """Seconds from the node to the start of the worker, to a second."""
        started = self.container(WORKER).started
        return max(0.0, started - self.bound) if started is not None and self.bound is not None else None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank ended. `result` is the worker's own document where it left a final one, or its mark."""

    reason: Reason
    message: str = ""
    result: Result | None = None

    @property
    def final(self) -> bool:
        """Whether the worker itself says how it ended, and was not stopped from outside."""
        return self.result is not None and self.result.reason is self.reason and self.reason not in _NOT_FINAL


def view(pod: Json, *, gone: bool = False) -> PodView:
    """Reduce a pod's JSON. Never raises: what is missing or odd is left out."""
    meta, spec, status = _dict(pod.get("metadata")), _dict(pod.get("spec")), _dict(pod.get("status"))
    labels, conditions = _dict(meta.get("labels")), {str(one.get("type")): one for one in _dicts(status.get("conditions"))}
    scheduled, target = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    created = when(meta.get("creationTimestamp")) or 0.0
    rank = str(labels.get(names.INDEX) or _dict(meta.get("annotations")).get(names.INDEX) or labels.get(names.MPI_INDEX) or "")
    return PodView(
        uid=str(meta.get("uid")), name=str(meta.get("name")),
        job=str(labels.get(names.MPI_JOB) or labels.get(names.JOB) or labels.get("job-name") or ""),
        rank=int(rank) if rank.isdecimal() else None, node=spec.get("nodeName") or None, phase=str(status.get("phase") or "Pending"),
        created=created, bound=when(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        reason=str(status.get("reason") or ""), message=str(status.get("message") or ""),
        unscheduled=f"{scheduled.get('reason', '')}: {scheduled.get('message', '')}" if scheduled.get("status") == "False" else "",
        disruption=str(target.get("reason") or "") if target.get("status") == "True" else "",
        disruption_message=str(target.get("message") or "") if target.get("status") == "True" else "",
        deleting=bool(meta.get("deletionTimestamp")), gone=gone, role=str(labels.get(names.MPI_ROLE) or ""),
        containers=tuple(_container(one) for part in ("initContainerStatuses", "containerStatuses") for one in _dicts(status.get(part))))


def when(text: object) -> float | None:
    """Unix seconds of a Kubernetes time; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        seconds = datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
    return seconds if seconds > 0 else None  # the kubelet writes 1970 for a container that never started


# Waiting reasons that can last: what the kubelet says while a container cannot start.
WAITING: dict[str, Reason] = {
    "ErrImagePull": Reason.IMAGE_PULL, "ImagePullBackOff": Reason.IMAGE_PULL, "InvalidImageName": Reason.IMAGE_PULL,
    "ErrImageNeverPull": Reason.IMAGE_PULL, "ImageInspectError": Reason.IMAGE_PULL, "RegistryUnavailable": Reason.IMAGE_PULL,
    "SignatureValidationFailed": Reason.IMAGE_PULL, "CreateContainerConfigError": Reason.LAUNCH_FAILED,
    "CreateContainerError": Reason.LAUNCH_FAILED, "CreatePodSandboxError": Reason.LAUNCH_FAILED, "RunContainerError": Reason.LAUNCH_FAILED,
    "PreCreateHookError": Reason.LAUNCH_FAILED, "PreStartHookError": Reason.LAUNCH_FAILED, "PostStartHookError": Reason.LAUNCH_FAILED,
    "CrashLoopBackOff": Reason.LAUNCH_FAILED,
}
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Waiting reasons that no further try can end."""

# status.reason of a failed pod: the kubelet's own words, and those of its admission.
POD_REASONS: dict[str, Reason] = {
    "Evicted": Reason.EVICTED, "Preempting": Reason.PREEMPTED, "Preempted": Reason.PREEMPTED, "NodeShutdown": Reason.EVICTED,
    "Terminated": Reason.EVICTED, "Shutdown": Reason.EVICTED, "NodeLost": Reason.POD_LOST, "DeadlineExceeded": Reason.DEADLINE,
    "UnexpectedAdmissionError": Reason.NO_CAPACITY, "TopologyAffinityError": Reason.NO_CAPACITY, "NodeAffinity": Reason.UNSCHEDULED,
    "NodePorts": Reason.UNSCHEDULED, "NodeName": Reason.UNSCHEDULED, "SysctlForbidden": Reason.ADMISSION_DENIED,
    "AppArmor": Reason.ADMISSION_DENIED, "NoNewPrivs": Reason.ADMISSION_DENIED, "PodOSNotSupported": Reason.ADMISSION_DENIED,
    "InvalidNodeInfo": Reason.UNSCHEDULED, "PodFeatureUnsupported": Reason.ADMISSION_DENIED, "ContainerCannotRun": Reason.LAUNCH_FAILED,
}
# Reason of the condition DisruptionTarget (Kubernetes 1.26 and later).
DISRUPTIONS: dict[str, Reason] = {
    "PreemptionByScheduler": Reason.PREEMPTED, "PreemptionByKubeScheduler": Reason.PREEMPTED, "DeletionByTaintManager": Reason.EVICTED,
    "EvictionByEvictionAPI": Reason.EVICTED, "TerminationByKubelet": Reason.EVICTED, "DeletionByPodGC": Reason.POD_LOST,
}
# state.terminated.reason of a container.
CONTAINER_REASONS: dict[str, Reason] = {
    "OOMKilled": Reason.OOM_KILLED, "StartError": Reason.LAUNCH_FAILED, "ContainerCannotRun": Reason.LAUNCH_FAILED,
    "DeadlineExceeded": Reason.DEADLINE, "ContainerStatusUnknown": Reason.POD_LOST,
}
_SIGKILL = 137
_NOT_FINAL = frozenset({*DIED_IN.values(), Reason.CANCELLED})
"""What a worker leaves when it was stopped from outside: the pod says by whom."""
_ADMISSION = re.compile(r"admission webhook|violates PodSecurity|ValidatingAdmissionPolicy|denied (the )?request|no PriorityClass"
                        r"|error looking up service account|is not allowed|denied by|is forbidden: unable to")
_QUOTA = re.compile(r"exceeded quota|ResourceQuota|is forbidden: (maximum|minimum) ")
_NO_ROOM = re.compile(r"Insufficient |cannot allocate all claims|Too many pods|exceed max")


def ending(pod: PodView, *, run_id: str, rank: int, deadline: float) -> Ending | None:
    """How the rank of this pod ended; None while it goes on. `deadline` is the worker's, in seconds."""
    if pod.step is not Step.ENDED:
        return None
    worker = pod.container(WORKER)
    result, problem = _document(worker.message, run_id, rank)
    if result is not None and result.reason not in _NOT_FINAL:
        return Ending(result.reason, result.message, result)
    gather = pod.container(GATHER)
    if result is None and worker.started is None and gather.exit_code:
        waited, _ = _document(gather.message, run_id, rank)
        if waited is not None and not pod.reason and not pod.disruption:
            return Ending(waited.reason, waited.message, waited)
    reason, why = _cause(pod, worker, deadline)
    if reason is None and result is not None:
        return Ending(result.reason, _join(result.message, _killed(worker)), result)
    where = result.message if result is not None else ""
    if reason is not None:
        return Ending(reason, _join(why, where), result)
    if problem:
        return Ending(Reason.RESULT_UNREADABLE, problem)
    if (pod.gone and not worker.ended) or (pod.deleting and (worker.exit_code or 0) > 128):
        return Ending(Reason.POD_LOST, _join("the pod was deleted", pod.message))
    if worker.ended:
        how = worker.reason or "it ended"
        return Ending(Reason.NO_RESULT, f"the worker left no result: exit code {worker.exit_code} ({how})")
    if gather.exit_code:
        return Ending(Reason.RENDEZVOUS_FAILED, f"waiting for the other ranks ended with exit code {gather.exit_code}")
    stopped = next((one for one in pod.containers if one.exit_code), None)
    if stopped is not None:
        return Ending(Reason.LAUNCH_FAILED, f"container {stopped.name} ended with exit code {stopped.exit_code} ({stopped.reason})")
    return Ending(Reason.NO_RESULT, _join(f"the pod ended as {pod.phase}", _join(pod.reason, pod.message)))


def stuck(pod: PodView) -> Ending:
    """Why a pod that has not started its worker has not, in the words of scheduler and kubelet."""
    if pod.step is Step.PENDING:
        return _unplaced(pod)
    for container in pod.containers:
        known = WAITING.get(container.waiting.partition(":")[0])
        if known is not None:
            return Ending(known, f"container {container.name}: {container.waiting}")
    gather = pod.container(GATHER)
    if gather.started is not None and not gather.ended:
        return Ending(Reason.RANK_MISSING, "this rank waited for the others")
    waiting = next((one for one in pod.containers if one.waiting), None)
    return Ending(Reason.LAUNCH_FAILED, f"the pod has node {pod.node} and did not start" + (f": {waiting.waiting}" if waiting else ""))


def lost(pod: PodView) -> Ending:
    """How a pod ended that started its worker and of which no end was ever reported, long after its deadline."""
    if pod.disruption in DISRUPTIONS:
        return Ending(DISRUPTIONS[pod.disruption], pod.disruption_message or pod.disruption)
    return Ending(Reason.POD_LOST, f"no end was reported of the pod on node {pod.node}: its node or kubelet is gone")


def hopeless(pod: PodView) -> Ending | None:
    """How a pod ends that no time can start: a wrong image name."""
    if pod.step is Step.PULLING and any(one.waiting.partition(":")[0] in HOPELESS for one in pod.containers):
        return stuck(pod)
    return None


def refusal(message: str, status: int = 403) -> Ending:
    """Why the API server did not take a Job or a pod, from its own message."""
    text = message[:600]
    if _QUOTA.search(message):
        return Ending(Reason.QUOTA, text)
    if _ADMISSION.search(message):
        return Ending(Reason.ADMISSION_DENIED, text)
    if status in {401, 403}:
        return Ending(Reason.LAUNCH_FAILED, f"not allowed: {text}")
    return Ending(Reason.LAUNCH_FAILED, text)


def _unplaced(pod: PodView) -> Ending:
    text = pod.unscheduled or "the scheduler has not looked at the pod"
    if pod.disruption:
        return Ending(DISRUPTIONS.get(pod.disruption, Reason.PREEMPTED), pod.disruption_message or pod.disruption)
    if _NO_ROOM.search(text):
        return Ending(Reason.NO_CAPACITY, text)
    return Ending(Reason.UNSCHEDULED, text)


def _cause(pod: PodView, worker: Container, deadline: float) -> tuple[Reason | None, str]:
    """Why the pod ended, by what Kubernetes says of it. The container's own end first: the pod's can be a consequence."""
    if worker.reason == "OOMKilled":
        return Reason.OOM_KILLED, "the worker's memory limit was reached"
    if pod.disruption in DISRUPTIONS:
        return DISRUPTIONS[pod.disruption], pod.disruption_message or pod.disruption
    if pod.reason == "DeadlineExceeded":
        return _overdue(pod, worker, deadline)
    for table, reason, message in ((POD_REASONS, pod.reason, pod.message), (CONTAINER_REASONS, worker.reason, worker.message)):
        if reason in table:
            return table[reason], _join(reason, message if table is POD_REASONS or "{" not in message else "")
    if pod.reason.startswith("OutOf"):
        return Reason.NO_CAPACITY, _join(pod.reason, pod.message)
    return None, ""


def _overdue(pod: PodView, worker: Container, deadline: float) -> tuple[Reason, str]:
    """The pod's deadline has passed. Only a worker that had its whole time is blamed with it."""
    if worker.started is None:
        return stuck_reason(pod), "the pod's deadline passed before the worker started"
    ran = (worker.finished or worker.started) - worker.started
    if worker.finished is not None and ran < deadline:
        return Reason.KILLED, f"the pod's deadline passed {ran:.0f} s after the worker's start, before its own of {deadline:g} s"
    return Reason.DEADLINE, f"the worker did not end by its deadline of {deadline:g} s, nor by the pod's"


def stuck_reason(pod: PodView) -> Reason:
    """The reason for a worker that never started on its node, where the kubelet no longer says what it waited for."""
    named = [WAITING[one.waiting.partition(":")[0]] for one in pod.containers if one.waiting.partition(":")[0] in WAITING]
    return named[0] if named else Reason.IMAGE_PULL


def _document(message: str, run_id: str, rank: int) -> tuple[Result | None, str]:
    """The result in a termination message, or what is wrong with it; neither for an empty one."""
    if not message.strip():
        return None, ""
    try:
        result = decode(message)
    except ResultError as error:
        return None, str(error)
    if (result.run_id, result.rank) != (run_id, rank):
        return None, f"the result is of run {result.run_id} rank {result.rank}"
    return result, ""


def _killed(worker: Container) -> str:
    return "its container was killed (SIGKILL)" if worker.exit_code == _SIGKILL else ""


def _container(status: Json) -> Container:
    state = _dict(status.get("state"))
    ended, running, waiting = _dict(state.get("terminated")), _dict(state.get("running")), _dict(state.get("waiting"))
    if ended:
        code = ended.get("exitCode")
        return Container(str(status.get("name")), started=when(ended.get("startedAt")), finished=when(ended.get("finishedAt")),
                         exit_code=code if isinstance(code, int) else -1, reason=str(ended.get("reason") or ""),
                         message=str(ended.get("message") or ""))
    said = ": ".join(str(part) for part in (waiting.get("reason"), waiting.get("message")) if part)
    return Container(str(status.get("name")), waiting=said[:600], started=when(running.get("startedAt")))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _dict(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
