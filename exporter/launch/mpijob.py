"""nccl-tests over several nodes: a run as an MPIJob of the Kubeflow MPI operator (v2beta1), where that CRD exists.

The operator's workers are the nodes: they hold the devices, carry the fence and wait for mpirun. Its launcher pod runs our worker, which
starts the tool over them and leaves the one result; every rank of the run gets it under its own node's name. The launcher holds no device
and may run anywhere. It is created when all workers are ready, so that no image pull counts against its deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from exporter.kube.api import Api, ApiError
from exporter.launch import names
from exporter.launch.flight import Flight
from exporter.launch.manifest import Claim, job, job_deadline
from exporter.launch.podstate import Ending, PodView, Step, ending
from exporter.launch.requests import JobRequests
from exporter.runs import RunSpec
from probes.reasons import Reason
from probes.result import Phase, Result

Json = dict[str, Any]

GROUP = "kubeflow.org/v2beta1"
LAUNCHER = "launcher"
SMALL = {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}


def needs_mpi(spec: RunSpec) -> bool:
    """Whether a run is one of nccl-tests over several nodes."""
    return spec.probe == "nccl" and spec.world_size > 1 and spec.spec.get("engine") == "nccl-tests"


def available(api: Api) -> bool:
    """Whether the cluster knows MPIJobs. Raises ApiError when it does not say."""
    try:
        resources = api.get(f"/apis/{GROUP}").get("resources") or []
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return any(one.get("name") == "mpijobs" for one in resources)


def mpi_job(plain: Json, spec: RunSpec, claim: Claim, deadline: int) -> Json:
    """The MPIJob of a run, made of the Job that it would be without MPI."""
    template = plain["spec"]["template"]
    pod = {key: value for key, value in template["spec"].items() if key not in {"initContainers", "subdomain", "activeDeadlineSeconds"}}
    worker = pod["containers"][0]
    dropped = {"command", "env"}  # the operator's own: sshd
    nodes = {**pod, "containers": [{key: value for key, value in worker.items() if key not in dropped}]}
    alone = {key: value for key, value in pod.items() if key not in {"affinity", "resourceClaims", "tolerations"}}
    environment = [one for one in worker["env"] if one["name"] not in {"EFA_PULSE_RANK", "EFA_PULSE_WORLD_SIZE", "EFA_PULSE_RENDEZVOUS"}]
    launcher = {**alone, "containers": [{**worker, "env": environment, "resources": SMALL}]}
    unfenced = {key: value for key, value in template["metadata"]["labels"].items() if key != names.FENCE}
    return {
        "apiVersion": GROUP, "kind": "MPIJob", "metadata": plain["metadata"],
        "spec": {
            "slotsPerWorker": max(claim.gpu, 1), "mpiImplementation": "OpenMPI", "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": "Running", "activeDeadlineSeconds": deadline,
                          "ttlSecondsAfterFinished": plain["spec"]["ttlSecondsAfterFinished"]},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "restartPolicy": "Never",
                             "template": {"metadata": {**template["metadata"], "labels": unfenced}, "spec": launcher}},
                "Worker": {"replicas": spec.world_size, "restartPolicy": "Never",
                           "template": {"metadata": template["metadata"], "spec": nodes}},
            },
        },
    }


@dataclass
class MpiFlight(Flight):
    """A run as an MPIJob: the launcher pod says how it ended, the worker pods where it ran."""

    launcher: PodView | None = field(default=None)

    def see(self, pod: PodView, now: float) -> None:
        """Take in a pod's new state."""
        if pod.role == LAUNCHER:
            self._see_launcher(pod, now)
            return
        held = self.launcher is not None and self.launcher.step is Step.ENDED
        rank = pod.rank
        if rank is None or not 0 <= rank < self.spec.world_size or held:
            return  # once the launcher has ended the operator removes the workers: that is no end of theirs
        super().see(pod, now)
        self._started.pop(rank, None)  # a worker waits for the launcher for as long as that takes

    def _see_launcher(self, pod: PodView, now: float) -> None:
        self.launcher = pod
        if pod.step is Step.RUNNING:
            for rank in range(self.spec.world_size):
                self._started.setdefault(rank, now)
        found = ending(pod, run_id=self.spec.run_id, rank=0, deadline=self.spec.deadline)
        if found is None:
            return
        if self.cancelled is not None and not found.final:
            found = Ending(Reason.CANCELLED, "stopped on request", found.result)
        for rank in range(self.spec.world_size):
            self.endings.setdefault(rank, found)

    def _result(self, rank: int, end: Ending, finished: float) -> Result:
        made = super()._result(rank, end, finished)
        update: Json = {"rank": rank, "world_size": self.spec.world_size, "node": self._node(rank)}
        if rank:
            update["measurements"] = []  # the tool reports once for all
        if self.launcher is not None and self.launcher.pull_seconds is not None:
            update["phases"] = {**made.phases, Phase.PULL: self.launcher.pull_seconds}
        return made.model_copy(update=update)


class MpiRequests(JobRequests):
    """Creates, deletes and explains MPIJobs."""

    RESOURCE: ClassVar[tuple[str, str]] = (GROUP, "mpijobs")
    PODS: ClassVar[str] = names.MPI_JOB
    NAME_LABEL: ClassVar[str] = names.MPI_JOB
    FLIGHT: ClassVar[type[Flight]] = MpiFlight

    def _manifest(self, spec: RunSpec, claim: Claim) -> Json:
        plain = job(spec, self._config, claim, self.anchor.owner(), launched_by=self._launched_by, tolerations=self._tolerations)
        return mpi_job(plain, spec, claim, math.ceil(job_deadline(spec, self._config)))


