"""Engine pods followed in a cluster: what is asked for, a pool that selects them, rights that are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted_api import Scripted

from exporter.config.kubernetes import Kubernetes
from exporter.config.pd import PdServing
from exporter.discovery import kubernetes
from exporter.discovery.kubernetes import KubernetesPods
from exporter.discovery.ray import RayPods
from exporter.kube.api import Api

Answer = tuple[int, Any]
POOL = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools/pool"
OLD_POOL = "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferencepools/pool"
PODS = "/api/v1/namespaces/llm/pods"


def pod(name: str, role: str, address: str = "10.1.0.1", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "5", "labels": {"llm-d.ai/role": role, **labels}},
            "spec": {"nodeName": "node-a", "containers": [{"name": "vllm", "args": ["vllm", "serve", "m"]}]},
            "status": {"podIP": address, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def listed(*pods: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "items": list(pods)}


@pytest.fixture
def cluster() -> Iterator[Callable[[dict[str, Answer]], tuple[Scripted, Api]]]:
    """An API server that gives these answers by path; a watch stays open."""
    made: list[tuple[Scripted, Api]] = []

    def make(answers: dict[str, Answer]) -> tuple[Scripted, Api]:
        def answer(_method: str, path: str, query: dict[str, str]) -> Answer:
            if query.get("watch") == "true":
                return 200, iter([60])
            return answers.get(path, (404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": f"no {path}"}))

        scripted = Scripted(answer)
        api = Api(scripted.where)
        made.append((scripted, api))
        return scripted, api

    yield make
    for scripted, api in made:
        api.close()
        scripted.close()


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def serving(**source: Any) -> PdServing:
    return PdServing.model_validate({"source": source})


def test_pods_by_role_label(cluster: Callable[..., tuple[Scripted, Api]]) -> None:
    scripted, api = cluster({PODS: (200, listed(pod("p", "prefill"), pod("d", "decode"), pod("g", "gateway")))})
    pods = KubernetesPods(api, serving(labels={"namespace": "llm", "selector": {"app": "chat"}}), Kubernetes())
    try:
        until(lambda: pods.found().seen)
        assert [(one.name, one.role, one.url) for one in pods.found().pods] == [
            ("d", "decode", "http://10.1.0.1:8000"), ("p", "prefill", "http://10.1.0.1:8000")]
        assert pods.found().trouble == ""
        assert scripted.asked[0] == ("GET", PODS, {"labelSelector": "llm-d.ai/role,app=chat", "limit": "250"})
    finally:
        pods.close()


def test_leaders_of_two_sets(cluster: Callable[..., tuple[Scripted, Api]]) -> None:
    name, index = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
    leader, worker = pod("d-0", "", **{name: "dec", index: "0"}), pod("d-0-1", "", **{name: "dec", index: "1"})
    scripted, api = cluster({PODS: (200, listed(leader, worker, pod("p-0", "", **{name: "pre", index: "0"})))})
    pods = KubernetesPods(api, serving(leader_worker_sets={"namespace": "llm", "prefill": "pre", "decode": "dec"}), Kubernetes())
    try:
        until(lambda: pods.found().seen)
        assert [(one.name, one.role) for one in pods.found().pods] == [("d-0", "decode"), ("p-0", "prefill")]
        assert scripted.asked[0][2]["labelSelector"] == f"{name} in (pre,dec)"
    finally:
        pods.close()


@pytest.mark.parametrize("answers", [
    {POOL: (200, {"spec": {"selector": {"matchLabels": {"app": "chat"}}}})}, {OLD_POOL: (200, {"spec": {"selector": {"app": "chat"}}})},
], ids=["v1", "the API before"])
def test_the_pods_that_a_pool_selects(cluster: Callable[..., tuple[Scripted, Api]], answers: dict[str, Answer]) -> None:
    scripted, api = cluster({**answers, PODS: (200, listed(pod("d", "decode", app="chat")))})
    pods = KubernetesPods(api, serving(inference_pool={"namespace": "llm", "name": "pool"}), Kubernetes())
    try:
        until(lambda: pods.found().seen)
        assert [one.name for one in pods.found().pods] == ["d"]
        assert {asked[2]["labelSelector"] for asked in scripted.asked if asked[1] == PODS} == {"app=chat"}
    finally:
        pods.close()


def test_a_pool_that_is_not_there_is_trouble(cluster: Callable[..., tuple[Scripted, Api]]) -> None:
    _, api = cluster({})
    pods = KubernetesPods(api, serving(inference_pool={"namespace": "llm", "name": "pool"}), Kubernetes())
    found = pods.found()
    assert (found.seen, found.pods) == (False, ())
    assert "InferencePool pool" in found.trouble
    pods.close()


def test_a_pool_that_changes_its_selector_is_followed(cluster: Callable[..., tuple[Scripted, Api]],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "POOL_SECONDS", 0.0)
    answers: dict[str, Answer] = {POOL: (200, {"spec": {"selector": {"matchLabels": {"app": "one"}}}}),
                                  PODS: (200, listed(pod("d", "decode")))}
    scripted, api = cluster(answers)
    pods = KubernetesPods(api, serving(inference_pool={"namespace": "llm", "name": "pool"}), Kubernetes())
    try:
        until(lambda: pods.found().seen)
        answers[POOL] = (200, {"spec": {"selector": {"matchLabels": {"app": "two"}}}})
        until(lambda: pods.found() is not None and any(asked[2].get("labelSelector") == "app=two" for asked in scripted.asked))
        answers[POOL] = (500, {"message": "etcd"})
        until(lambda: "InferencePool pool" in pods.found().trouble)
        assert pods.found().pods, "what was selected before is still there"
    finally:
        pods.close()


def test_a_namespace_that_may_not_be_read_is_trouble(cluster: Callable[..., tuple[Scripted, Api]]) -> None:
    _, api = cluster({PODS: (403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "pods is forbidden"})})
    pods = KubernetesPods(api, serving(labels={"namespace": "llm"}), Kubernetes())
    try:
        until(lambda: "forbidden" in pods.found().trouble)
        assert not pods.found().seen
    finally:
        pods.close()


def test_the_nodes_of_ray_and_its_configuration(cluster: Callable[..., tuple[Scripted, Api]]) -> None:
    config = "applications: [{args: {decode_config: {kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both}}}}]"
    _, api = cluster({PODS: (200, listed(pod("ray-worker-1", "", "10.3.0.1"))),
                      "/apis/ray.io/v1/namespaces/llm/rayservices": (200, {"items": [{"spec": {"serveConfigV2": config}}]})})
    answer = ('{"applications": {"a": {"deployments": {"Decode:m": {"replicas": [{"replica_id": "r1", "state": "RUNNING", '
              '"node_ip": "10.3.0.1", "actor_id": "x"}]}}}}}')
    now = [0.0]

    def clock() -> float:
        now[0] += 20.0
        return now[0]

    pods = RayPods(serving(ray={"url": "http://head:8265", "namespace": "llm"}), api, get=lambda *_: answer, monotonic=clock)
    try:
        until(lambda: bool(pods.found().pods) and pods.found().pods[0].node == "node-a")
        assert pods.found().pods[0].configured.backend == "UCX"
    finally:
        pods.close()
