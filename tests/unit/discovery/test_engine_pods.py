"""Pods, replicas and lists as engine pods; addresses that must not be connected to; findings before any request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exporter.config.pd import PdServing
from exporter.discovery.addresses import usable
from exporter.discovery.findings import findings
from exporter.discovery.model import Configured, EnginePod, Found
from exporter.discovery.ray import RayPods, replicas
from exporter.discovery.reduce import engine_pod, role_by_label, role_by_set
from exporter.discovery.static import static_pods
from probes.canary.pd.fetch import FetchError

EFA = "vpc.amazonaws.com/efa"
LLM_D = PdServing.model_validate({"source": {"labels": {"namespace": "llm"}}, "decode_port": 8000, "prefill_port": 8100,
                                  "metrics_port": 8200})


def pod(role: str = "decode", *, address: str = "10.1.2.3", labels: dict[str, str] | None = None, ready: str = "True", restarts: int = 0,
        containers: list[dict[str, Any]] | None = None, **status: Any) -> dict[str, Any]:
    engine = {"name": "vllm", "image": "vllm/vllm-openai", "args": ["serve", "m", "--kv-transfer-config", json.dumps(
        {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"})], "resources": {"limits": {EFA: "16"}}}
    return {"metadata": {"name": f"{role}-0", "uid": "u1", "labels": {"llm-d.ai/role": role, **(labels or {})}},
            "spec": {"nodeName": "node-a", "containers": containers or [{"name": "routing-proxy", "image": "llm-d/sidecar"}, engine]},
            "status": {"phase": "Running", "podIP": address, "conditions": [{"type": "Ready", "status": ready}],
                       "containerStatuses": [{"name": "vllm", "restartCount": restarts,
                                              "state": {"running": {"startedAt": "2026-11-30T03:00:00Z"}}}], **status}}


def reduced(one: dict[str, Any]) -> EnginePod | None:
    return engine_pod(one, role_by_label("llm-d.ai/role"), LLM_D, efa_resource=EFA)


def test_a_pod_of_llm_d() -> None:
    found = reduced(pod())
    assert found == EnginePod("decode-0", "decode", "http://10.1.2.3:8000", "http://10.1.2.3:8200/metrics", "u1/0", "node-a", ready=True,
                              started=1796007600.0, restarts=0, efa=True,
                              configured=Configured("vllm", "decode", "nixl", "UCX", by_default=True))


def test_prefill_has_its_own_port_and_both_is_mixed() -> None:
    prefill, both = reduced(pod("prefill")), reduced(pod("prefill-decode"))
    assert prefill is not None
    assert prefill.url == "http://10.1.2.3:8100"
    assert both is not None
    assert (both.role, both.prefills, both.decodes) == ("mixed", True, True)


def test_another_start_is_another_life() -> None:
    first, second = reduced(pod()), reduced(pod(restarts=1))
    assert first is not None
    assert second is not None
    assert first.life != second.life


@pytest.mark.parametrize("one", [pod("gateway"), pod(phase="Succeeded"), {"metadata": {}, "spec": {}, "status": {}}, {}],
                         ids=["no role", "ended", "no node", "empty"])
def test_what_is_no_engine_pod(one: dict[str, Any]) -> None:
    assert reduced(one) is None


@pytest.mark.parametrize("one", [pod(ready="False"), pod(address=""), pod(address="169.254.169.254"), pod(address="127.0.0.1"),
                                 {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-11-30T03:00:00Z"}}],
                         ids=["not ready", "no address", "metadata service", "loopback", "terminating"])
def test_pods_that_are_not_visited(one: dict[str, Any]) -> None:
    found = reduced(one)
    assert found is not None
    assert not found.ready


def test_workers_behind_a_leader_take_no_requests() -> None:
    assert reduced(pod(labels={"leaderworkerset.sigs.k8s.io/worker-index": "1"})) is None
    assert reduced(pod(labels={"leaderworkerset.sigs.k8s.io/worker-index": "0"})) is not None


def test_leader_worker_sets_give_the_role() -> None:
    role = role_by_set("p-lws", "d-lws")
    lws, index = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
    assert role({lws: "p-lws", index: "0"}) == "prefill"
    assert role({lws: "d-lws", index: "0"}) == "decode"
    assert role({lws: "d-lws", index: "3"}) is None
    assert role({lws: "other", index: "0"}) is None


@pytest.mark.parametrize(("address", "fine"), [
    ("10.0.0.1", True), ("192.168.3.4", True), ("100.64.0.7", True), ("fd00::7", True), ("2600:1f14::5", True), ("54.1.2.3", True),
    ("127.0.0.1", False), ("127.9.9.9", False), ("169.254.169.254", False), ("::1", False), ("fe80::1", False), ("0.0.0.0", False),
    ("::ffff:127.0.0.1", False), ("::ffff:169.254.169.254", False), ("fd00:ec2::254", False), ("224.0.0.1", False),
    ("255.255.255.255", False), ("", False), ("localhost", False),
    ("10.0.0.1:80", False), ("10.0.0.1/x", False), ("0x7f000001", False), ("2130706433", False)])
def test_addresses_a_pod_can_have(address: str, fine: bool) -> None:
    assert usable(address) is fine


# Ray

RAY = PdServing.model_validate({"source": {"ray": {"url": "http://head:8265", "application": "llm"}}})


def answer(**deployments: list[dict[str, Any]]) -> dict[str, Any]:
    listed = {name.replace("_", ":"): {"status": "HEALTHY", "replicas": found} for name, found in deployments.items()}
    return {"applications": {"llm": {"status": "RUNNING", "deployments": listed}, "other": {"deployments": listed}}}


def replica(name: str, ip: str = "10.2.0.1", state: str = "RUNNING") -> dict[str, Any]:
    return {"replica_id": name, "state": state, "node_ip": ip, "node_id": "n", "actor_id": f"actor-{name}", "start_time_s": 1.7e9}


def test_replicas_by_the_names_of_their_deployments() -> None:
    said = answer(Prefill_m=[replica("p1")], Decode_m=[replica("d1", "10.2.0.2"), replica("d2", "10.2.0.3", "STARTING")],
                  OpenAiIngress=[replica("i")])
    found = list(replicas(said, application="llm", metrics_port=8080,
                          places={"10.2.0.2": ("node-b", "ray-worker-2")}))
    assert [(pod.name, pod.role, pod.metrics, pod.ready, pod.node) for pod in sorted(found, key=lambda pod: pod.name)] == [
        ("d1", "decode", "http://10.2.0.2:8080/metrics", True, "node-b"), ("d2", "decode", "http://10.2.0.3:8080/metrics", False, None),
        ("p1", "prefill", "http://10.2.0.1:8080/metrics", True, None)]


@pytest.mark.parametrize("said", [None, [], {}, {"applications": []}, {"applications": {"llm": None}},
                                  {"applications": {"llm": {"deployments": 3}}},
                                  answer(Prefill=[{"node_ip": "169.254.169.254"}, {"node_ip": None}]),
                                  {"applications": {"llm": {"deployments": {"Prefill": {"replicas": [1, "x", None]}}}}}])
def test_answers_of_another_shape_give_nothing(said: Any) -> None:
    assert list(replicas(said, application="llm", metrics_port=8080)) == []


def test_ray_is_asked_now_and_then_and_what_was_seen_stays() -> None:
    said: list[str] = [json.dumps(answer(Prefill=[replica("p1")]))]
    now = [0.0]
    asked: list[str] = []

    def get(url: str, _seconds: float, _insecure: bool) -> str:
        asked.append(url)
        if not said:
            raise FetchError("head:8265: no whole answer in time")
        return said.pop()

    pods = RayPods(RAY, get=get, monotonic=lambda: now[0])
    assert [pod.name for pod in pods.found().pods] == ["p1"]
    pods.found()
    assert asked == ["http://head:8265/api/serve/applications/"], "not asked again so soon"
    now[0] = 60.0
    late = pods.found()
    assert [pod.name for pod in late.pods] == ["p1"]
    assert "no whole answer" in late.trouble


def test_a_static_list() -> None:
    serving = PdServing.model_validate({"source": {"static": [
        {"name": "p", "role": "prefill", "url": "http://127.0.0.1:8100/v1", "node": "a"},
        {"name": "d", "role": "decode", "url": "http://127.0.0.1:8200", "metrics": "http://127.0.0.1:9000/m"}]}})
    assert [(pod.name, pod.url, pod.metrics, pod.node, pod.ready) for pod in static_pods(serving).pods] == [
        ("p", "http://127.0.0.1:8100/v1", "http://127.0.0.1:8100/metrics", "a", True),
        ("d", "http://127.0.0.1:8200", "http://127.0.0.1:9000/m", None, True)]


# findings

ZONES = {"a": "z1", "b": "z1", "c": "z2"}


def engine(name: str, role: Any, node: str = "a", **more: Any) -> EnginePod:
    return EnginePod(name, role, f"http://{name}", f"http://{name}/metrics", name, node, **more)


def kinds(*pods: EnginePod, efa: bool | None = True) -> list[str]:
    return [one.kind for one in findings(Found(pods), lambda node: (ZONES.get(node or ""), None, None), lambda _: efa)]


def test_nothing_is_said_before_anything_was_seen() -> None:
    assert findings(Found(seen=False), lambda _: (None, None, None), lambda _: None) == []


def test_a_role_without_pods() -> None:
    assert kinds(engine("p", "prefill")) == ["no_pods"]
    assert kinds(engine("m", "mixed")) == []


def test_pairs_across_zones_are_a_finding_before_any_request() -> None:
    found = findings(Found((engine("p", "prefill"), engine("d", "decode", "c"), engine("e", "decode", "b"))),
                     lambda node: (ZONES.get(node or ""), None, None), lambda _: None)
    assert [one.kind for one in found] == ["cross_zone"]
    assert "1 pairs cross zones, e.g. p in z1 and d in z2" in found[0].text
    assert kinds(engine("p", "prefill"), engine("d", "decode", "unknown")) == []


def test_efa_that_is_there_and_not_used() -> None:
    ucx, libfabric = Configured("vllm", "prefill", "nixl", "UCX", by_default=True), Configured("vllm", "decode", "nixl", "LIBFABRIC")
    pair = (engine("p", "prefill", configured=ucx), engine("d", "decode", configured=libfabric))
    assert kinds(*pair) == ["backend_not_efa"]
    assert kinds(*pair, efa=False) == []
    assert kinds(*pair, efa=None) == [], "an unknown node proves nothing"
    assert kinds(engine("p", "prefill", configured=ucx, efa=True), pair[1], efa=None) == ["backend_not_efa"], "the pod asks for EFA itself"


def test_a_label_that_contradicts_the_engine() -> None:
    assert kinds(engine("p", "prefill", configured=Configured("vllm", "decode")), engine("d", "decode")) == ["role_mismatch"]
    assert kinds(engine("p", "prefill", configured=Configured("vllm", "mixed")), engine("d", "decode")) == []
