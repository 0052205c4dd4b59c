"""nccl-tests over several nodes as an MPIJob, with a thin CRD. The test plays the MPI operator: it makes the pods as the operator does."""

from __future__ import annotations

import copy
import json
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.controlplane import ControlPlane, eventually
from e2e.installed import Installation, Launched, spec

from exporter.launch import names
from exporter.launch.cluster import ClusterLauncher
from exporter.launch.manifest import Claim
from exporter.runs import Run, RunSpec
from probes.reasons import Reason
from probes.result import Result, encode

Install = Callable[..., Installation]
Json = dict[str, Any]
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "mpijobs.kubeflow.org"},
    "spec": {"group": "kubeflow.org", "scope": "Namespaced",
             "names": {"kind": "MPIJob", "plural": "mpijobs", "singular": "mpijob", "listKind": "MPIJobList"},
             "versions": [{"name": "v2beta1", "served": True, "storage": True, "subresources": {"status": {}},
                           "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]},
}
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def crd(cluster: ControlPlane) -> Iterator[None]:
    cluster.apply(CRD)
    eventually(lambda: _served(cluster), what="the CRD is served")
    yield
    cluster.delete(f"{PATH}/mpijobs.kubeflow.org")


def _served(cluster: ControlPlane) -> bool:
    try:
        cluster.call("GET", "/apis/kubeflow.org/v2beta1/mpijobs")
    except urllib.error.HTTPError:
        return False
    return True


class Launching(Launched):
    """A launcher of both kinds of Jobs."""

    def __init__(self, here: Installation) -> None:
        super().__init__(here.api, here.config, "service", Claim(), None)
        self.launcher.close(0)
        self.both = ClusterLauncher(here.api, here.config, self.finished.put, claims=lambda _: Claim(efa=4, gpu=8),
                                    on_progress=lambda run, said: self.progress[run].append(said))
        self.both.adopt(lambda _: False)


class Operator:
    """Plays the MPI operator for one MPIJob."""

    def __init__(self, here: Installation) -> None:
        self.here = here
        self.path = f"/apis/kubeflow.org/v2beta1/namespaces/{here.config.probe_namespace}/mpijobs"

    def job(self) -> Json:
        (found,) = eventually(lambda: self.here.cluster.items(self.path), what="the MPIJob is there")
        assert isinstance(found, dict)
        return found

    def workers(self, job: Json) -> None:
        for index in range(job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]):
            self._pod(job, "Worker", f"{job['metadata']['name']}-worker-{index}", {names.MPI_ROLE: "worker", names.MPI_INDEX: str(index)})

    def launcher(self, job: Json) -> str:
        name = f"{job['metadata']['name']}-launcher-abcde"
        self._pod(job, "Launcher", name, {names.MPI_ROLE: "launcher"})
        eventually(lambda: self._phase(name) == "Running", what="the launcher runs")
        return name

    def end(self, name: str, document: str, reason: str = "Completed", code: int = 0) -> None:
        times = {"startedAt": "2026-11-29T12:00:00Z", "finishedAt": "2026-11-29T12:00:30Z"}
        state = {"terminated": {"exitCode": code, "reason": reason, "message": document, **times}}
        status = {"phase": "Failed" if code else "Succeeded",
                  "containerStatuses": [{"name": "worker", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}]}
        self.here.cluster.call("PATCH", f"{self.here.probes}/pods/{name}/status", {"status": status}, patch="strategic-merge")

    def _pod(self, job: Json, kind: str, name: str, labels: Json) -> None:
        template = copy.deepcopy(job["spec"]["mpiReplicaSpecs"][kind]["template"])
        meta = template["metadata"]
        meta["labels"] |= {names.MPI_JOB: job["metadata"]["name"], **labels}
        owner = {"apiVersion": job["apiVersion"], "kind": "MPIJob", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
                 "controller": True}
        self.here.cluster.call("POST", f"{self.here.probes}/pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": name, "ownerReferences": [owner]},
            "spec": {**template["spec"], "restartPolicy": "Never"}})

    def _phase(self, name: str) -> str:
        return str(self.here.cluster.call("GET", f"{self.here.probes}/pods/{name}")["status"].get("phase"))


def wanted(nodes: list[str]) -> RunSpec:
    return spec((nodes[0], nodes[1]), "mpi", "nccl", params={"engine": "nccl-tests", "gpus": 8}, deadline=60.0)


def document(run: RunSpec, reason: Reason = Reason.OK) -> str:
    row = {"operation": "all_reduce", "memory": "gpu", "kind": "busbw", "bytes": [1 << 20], "bandwidth": [2e10]}
    return encode(Result.model_validate({
        "run_id": run.run_id, "probe": "nccl", "target": run.target, "node": "launcher-node", "started": 1.0, "finished": 2.0,
        "measure": {"start": 1.2, "end": 1.8}, "reason": reason, "measurements": [row] if reason is Reason.OK else []})).decode()


def test_a_cluster_without_the_crd_says_what_is_missing(install: Install) -> None:
    here = install()
    launching = Launching(here)
    launching.both.start(wanted(["a", "b"]))
    ended = launching.finished.get(timeout=10)
    assert {one.reason for one in ended.results} == {Reason.LAUNCH_FAILED}
    assert "MPI operator" in ended.results[0].message
    launching.both.close(0)


@pytest.mark.usefixtures("crd")
class TestAnMpiJob:
    def test_the_launchers_result_is_that_of_every_node(self, install: Install) -> None:
        here = install()
        nodes = here.nodes(2)
        launching, operator = Launching(here), Operator(here)
        run = wanted(nodes)
        launching.both.start(run)
        job = operator.job()
        operator.workers(job)
        launching.until(run.run_id, "running")
        operator.end(operator.launcher(job), document(run))
        ended = launching.finished.get(timeout=30)
        assert [(one.rank, one.world_size, one.reason) for one in ended.results] == [(0, 2, Reason.OK), (1, 2, Reason.OK)]
        assert {one.node for one in ended.results} == set(nodes)
        assert [len(one.measurements) for one in ended.results] == [1, 0], "the tool reports once for all"
        assert all(one.measure is not None for one in ended.results), "the witnesses of both nodes can be asked"
        assert launching.both.jobs == 1
        launching.both.release(run.run_id)
        eventually(lambda: here.cluster.items(operator.path) == [] and launching.both.jobs == 0, what="the MPIJob is deleted")
        launching.both.close(0)

    def test_the_fence_and_the_devices_are_the_workers(self, install: Install) -> None:
        here = install()
        nodes = here.nodes(2)
        fence = here.fence()
        launching, operator = Launching(here), Operator(here)
        launching.both.start(wanted(nodes))
        job = operator.job()
        specs = job["spec"]["mpiReplicaSpecs"]
        assert (job["spec"]["slotsPerWorker"], specs["Worker"]["replicas"], specs["Launcher"]["replicas"]) == (8, 2, 1)
        assert job["spec"]["runPolicy"]["backoffLimit"] == 0
        assert job["metadata"]["ownerReferences"][0]["kind"] == "ConfigMap"
        node, launcher = specs["Worker"]["template"], specs["Launcher"]["template"]
        assert node["spec"]["containers"][0]["resources"]["limits"]["vpc.amazonaws.com/efa"] == "4"
        assert "command" not in node["spec"]["containers"][0], "the operator starts sshd"
        assert names.FENCE in node["metadata"]["labels"]
        assert names.FENCE not in launcher["metadata"]["labels"], "it may share a node with a worker"
        assert launcher["spec"]["containers"][0]["command"] == ["python3", "-m", "probes", "run"]
        assert "affinity" not in launcher["spec"]
        assert "vpc.amazonaws.com/efa" not in json.dumps(launcher["spec"])
        operator.workers(job)
        other = here.launcher(claim=Claim())
        other.launcher.start(spec((nodes[0],), "r", "node"))
        eventually(lambda: len(fence.seen) == 2)
        assert fence.broken == []
        launching.both.close(0)

    def test_a_worker_that_is_taken_away_is_the_cause_whatever_the_launcher_says(self, install: Install) -> None:
        here = install()
        nodes = here.nodes(2)
        launching, operator = Launching(here), Operator(here)
        run = wanted(nodes)
        launching.both.start(run)
        job = operator.job()
        operator.workers(job)
        launching.until(run.run_id, "running")
        name = operator.launcher(job)
        victim = f"{job['metadata']['name']}-worker-1"
        here.cluster.call("POST", f"{here.probes}/pods/{victim}/eviction",
                          {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}})
        eventually(lambda: not [pod for pod in here.pods() if pod["metadata"]["name"] == victim])
        operator.end(name, document(run, Reason.ENGINE_ERROR))
        ended: Run = launching.finished.get(timeout=30)
        assert [one.reason for one in ended.results] == [Reason.ENGINE_ERROR, Reason.EVICTED]
        launching.both.close(0)

    def test_no_room_for_the_workers(self, install: Install) -> None:
        here = install(bind_limit=5)
        nodes = here.nodes(2, efa=1)
        launching, operator = Launching(here), Operator(here)
        launching.both.start(wanted(nodes))
        operator.workers(operator.job())
        ended = launching.finished.get(timeout=30)
        assert {one.reason for one in ended.results} == {Reason.NO_CAPACITY}
        eventually(lambda: here.cluster.items(operator.path) == [], what="the MPIJob is deleted")
        launching.both.close(0)

    def test_it_is_adopted_after_a_restart(self, install: Install) -> None:
        here = install()
        nodes = here.nodes(2)
        first, operator = Launching(here), Operator(here)
        run = wanted(nodes)
        first.both.start(run)
        job = operator.job()
        operator.workers(job)
        first.until(run.run_id, "running")
        first.both.close(0)
        second = Launching(here)
        operator.end(operator.launcher(job), document(run))
        ended = second.finished.get(timeout=30)
        assert (ended.spec, {one.reason for one in ended.results}) == (run, {Reason.OK})
        second.both.close(0)


def test_other_runs_are_plain_jobs(install: Install) -> None:
    here = install(pods={"annotations": {"efa-pulse.test/outcome": "ok"}})
    nodes = here.nodes(2)
    launching = Launching(here)
    launching.both.start(spec((nodes[0], nodes[1]), "r", "nccl", params={"engine": "nccl4py"}))
    assert {one.reason for one in launching.finished.get(timeout=30).results} == {Reason.OK}
    launching.both.close(0)
