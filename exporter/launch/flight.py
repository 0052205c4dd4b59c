"""One run in the cluster, from its Job's creation to its results: what is known of it, and what that means. Pure; times are passed in.

    creating ─> flying ─> reported ─(its result is durable)─> leaving ─> gone
                   └── given up, cancelled ──────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from exporter.config.kubernetes import Kubernetes
from exporter.launch import names
from exporter.launch.manifest import GATHER, WORKER, ManifestError, from_record, job_deadline
from exporter.launch.podstate import WAITING, Ending, PodView, Step, ending, hopeless, lost, stuck, when
from exporter.runs import Run, RunSpec, missing_result
from probes.reasons import Reason, outcome_of
from probes.result import Phase, Result, cleaned

Json = dict[str, Any]

IMAGE_PATIENCE = 60.0
"""Seconds that a failing image pull is given before the run is given up: registries hiccup, and devices are held meanwhile."""
LATE_SECONDS = 60.0
"""Seconds after a worker's deadline in which its end must have been reported."""
CANCEL_SECONDS = 15.0


class Stage(str, Enum):
    """Where a run stands for the launcher."""

    CREATING = "creating"
    FLYING = "flying"
    CANCELLING = "cancelling"
    REPORTED = "reported"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class JobView:
    """What is kept of a Job. `failed` is the reason and message of its condition Failed."""

    uid: str
    name: str
    created: float
    launched_by: str
    spec: RunSpec | None
    problem: str = ""
    failed: str = ""
    done: bool = False
    deleting: bool = False


def job_view(job: Json) -> JobView:
    """Reduce a Job's JSON."""
    meta, status = job.get("metadata") or {}, job.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    spec, problem = None, ""
    try:
        spec = from_record(str(notes.get(names.RECORD)))
    except ManifestError as error:
        problem = str(error)
    ends = {str(one.get("type")): one for one in status.get("conditions") or [] if one.get("status") == "True"}
    bad = ends.get("Failed") or ends.get("FailureTarget") or {}
    return JobView(uid=str(meta.get("uid")), name=str(meta.get("name")), created=when(meta.get("creationTimestamp")) or 0.0,
                   launched_by=str(labels.get(names.LAUNCHED_BY) or ""), spec=spec, problem=problem,
                   failed=f"{bad.get('reason', '')}: {bad.get('message', '')}" if bad else "",
                   done=not ends.keys().isdisjoint({"Complete", "Succeeded", "Failed"}), deleting=bool(meta.get("deletionTimestamp")))


@dataclass
class Flight:
    """A run on its way. `began` is Unix seconds, `created` and all other times are monotonic seconds of the launcher."""

    spec: RunSpec
    name: str
    began: float
    created: float
    stage: Stage = Stage.CREATING
    job_uid: str | None = None
    pods: dict[str, PodView] = field(default_factory=dict)
    endings: dict[int, Ending] = field(default_factory=dict)
    cancelled: float | None = None
    job_gone: bool = False
    attempts: int = 0
    retry_at: float = 0.0
    maybe_there: bool = False
    """A create without a clear answer: the Job may exist."""
    busy: bool = False
    """A request of ours about this Job is on its way."""
    _bound: float | None = None
    _started: dict[int, float] = field(default_factory=dict)
    _pull_trouble: dict[int, float] = field(default_factory=dict)

    def pod(self, rank: int) -> PodView | None:
        """The newest pod of a rank."""
        mine = [pod for pod in self.pods.values() if pod.rank == rank]
        return max(mine, key=lambda pod: (pod.created, not pod.gone)) if mine else None

    def see(self, pod: PodView, now: float) -> None:
        """Take in a pod's new state."""
        self.pods[pod.uid] = pod
        rank = pod.rank
        if rank is None or not 0 <= rank < self.spec.world_size:
            return
        if rank not in self.endings:
            found = ending(pod, run_id=self.spec.run_id, rank=rank, deadline=self.spec.deadline)
            if found is not None:
                stopped = self.cancelled is not None and not found.final
                self.endings[rank] = Ending(Reason.CANCELLED, "stopped on request", found.result) if stopped else found
        if pod.step in {Step.RUNNING, Step.ENDED}:
            self._started.setdefault(rank, now)
        if any(WAITING.get(one.waiting.partition(":")[0]) is Reason.IMAGE_PULL for one in pod.containers):
            self._pull_trouble.setdefault(rank, now)
        else:
            self._pull_trouble.pop(rank, None)
        placed = [self.pod(each) for each in range(self.spec.world_size)]
        if self._bound is None and all(one is not None and one.step is not Step.PENDING for one in placed):
            self._bound = now

    @property
    def complete(self) -> bool:
        """Whether every rank has ended."""
        return len(self.endings) == self.spec.world_size

    def overdue(self, config: Kubernetes, now: float) -> dict[int, Ending] | None:
        """The endings of the ranks that have none, when no more is to be expected of the run; None while it goes on.

        A rank without a pod gets `launch_failed` with an empty message: the Job's events say why.
        """
        open_ranks = [rank for rank in range(self.spec.world_size) if rank not in self.endings]
        if not open_ranks:
            return {}
        pods = {rank: self.pod(rank) for rank in open_ranks}
        if self.cancelled is not None:
            end = Ending(Reason.CANCELLED, "stopped on request")
            return dict.fromkeys(pods, end) if now - self.cancelled > CANCEL_SECONDS else None
        if self.job_gone:
            return dict.fromkeys(pods, Ending(Reason.POD_LOST, "its Job was deleted by somebody else"))
        idle = all(pod is None or pod.step in {Step.PENDING, Step.PULLING} for pod in pods.values())
        dead = [rank for rank in self.endings if (pod := self.pod(rank)) is not None and pod.container(WORKER).started is None]
        if idle and dead:
            return dict.fromkeys(pods, Ending(Reason.RANK_MISSING, f"rank {dead[0]} ended before its worker began"))
        no_hope = {rank: found for rank, pod in pods.items() if pod is not None and (found := hopeless(pod)) is not None}
        trouble = {rank: stuck(pod) for rank, pod in pods.items() if pod is not None and rank in self._pull_trouble}
        if no_hope or any(now - self._pull_trouble[rank] > IMAGE_PATIENCE for rank in trouble):
            return self._blame(pods, {**trouble, **no_hope})
        if self._bound is None:
            if now - self.created < config.bind_limit:
                return None
            return self._blame(pods, {rank: stuck(pod) if pod is not None else Ending(Reason.LAUNCH_FAILED)
                                      for rank, pod in pods.items() if pod is None or pod.step is Step.PENDING})
        waiting = {rank: pod for rank, pod in pods.items() if pod is not None and pod.step is Step.PULLING}
        if waiting and now - self._bound > config.pull_limit:
            causes = {rank: stuck(pod) for rank, pod in waiting.items()}
            return self._blame(pods, {rank: one for rank, one in causes.items() if one.reason is not Reason.RANK_MISSING} or causes)
        if any(now - since > self.spec.deadline + LATE_SECONDS for rank, since in self._started.items() if rank in pods):
            return self._blame(pods, {rank: lost(pod) for rank, pod in pods.items() if pod is not None})
        if now - self.created > job_deadline(self.spec, config) + LATE_SECONDS:
            return self._blame(pods, {rank: lost(pod) if pod is not None else Ending(Reason.POD_LOST, "it never had a pod")
                                      for rank, pod in pods.items()})
        return None

    def finish(self, more: dict[int, Ending], finished: float) -> Run:
        """The run's results: those of the ranks that ended, and `more` for the others. `finished` is Unix seconds."""
        ends = {rank: self.endings.get(rank) or more[rank] for rank in range(self.spec.world_size)}
        ran_on = [pod.node for rank in ends if (pod := self.pod(rank)) is not None and pod.node]
        if len(set(self.spec.nodes)) == len(self.spec.nodes) and len(set(ran_on)) < len(ran_on):
            # The fence keeps pods apart in time only: a rank that ended early left its place to the next.
            why = f"the ranks ran one after the other on node {ran_on[0]}"
            ends = {rank: Ending(Reason.UNSCHEDULED, why, end.result) for rank, end in ends.items()}
        results = tuple(self._result(rank, end, finished) for rank, end in ends.items())
        return Run(self.spec, results, self.began, finished)

    def progress(self) -> dict[int, str]:
        """Each rank's state in words."""
        said: dict[int, str] = {}
        for rank in range(self.spec.world_size):
            pod, end = self.pod(rank), self.endings.get(rank)
            if end is not None:
                said[rank] = f"ended: {end.reason.value}"
            elif pod is None:
                said[rank] = self.stage.value
            else:
                gather = pod.container(GATHER)
                waits = pod.step is Step.PULLING and gather.started is not None and not gather.ended
                said[rank] = ("waiting for the other ranks" if waits else pod.step.value) + (f" on {pod.node}" if pod.node else "")
        return said

    def _blame(self, pods: dict[int, PodView | None], causes: dict[int, Ending]) -> dict[int, Ending]:
        """`causes`, and for the ranks that are not the cause that they waited for it."""
        ranks = ", ".join(str(rank) for rank in sorted(causes))
        return {rank: causes.get(rank) or Ending(Reason.RANK_MISSING, f"rank {ranks} did not come") for rank in pods}

    def _node(self, rank: int) -> str:
        """The node of a rank: its pod's; else one that no other rank has."""
        pod = self.pod(rank)
        if pod is not None and pod.node:
            return pod.node
        taken = {pod.node for other in range(self.spec.world_size) if (pod := self.pod(other)) is not None and pod.node}
        free = [node for node in self.spec.nodes if node not in taken]
        return self.spec.nodes[rank] if self.spec.nodes[rank] in free or not free else free[0]

    def _result(self, rank: int, end: Ending, finished: float) -> Result:
        pod = self.pod(rank)
        pull = pod.pull_seconds if pod is not None else None
        if end.result is None:
            plain = missing_result(self.spec, rank, end.reason, end.message, self.began, finished)
            phases = {Phase.PULL: pull} if pull is not None else {}
            return plain.model_copy(update={"node": self._node(rank), "phases": phases})
        phases = {**({Phase.PULL: pull} if pull is not None else {}), **end.result.phases}
        return end.result.model_copy(update={"reason": end.reason, "outcome": outcome_of(end.reason), "message": cleaned(end.message),
                                             "phases": phases})
