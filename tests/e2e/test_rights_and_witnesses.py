"""What the service may do in a cluster, and what the witnesses of its nodes tell it: with real tokens, real DaemonSets, real pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.controlplane import ControlPlane, eventually
from e2e.hollowcluster import PROBE_IMAGE, HollowNodes
from e2e.installed import Installation, pairs, spec
from e2e.rights import ACCOUNT, rights
from sysfs_tree import SysfsTree

from exporter.config.kubernetes import Leader
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.judge.transport import Transport, judge_transport
from exporter.kube.api import Api, ApiError, configuration
from exporter.kube.journal import ConfigMapJournal
from exporter.leader import Election
from exporter.plan.journal import encode_shard, shard_of
from exporter.witness import Witnesses
from probes.efa.window import NoAnswer, WitnessAnswer
from probes.reasons import Reason

Install = Callable[..., Installation]
Json = dict[str, Any]


@pytest.fixture
def service_account(install: Install) -> Iterator[tuple[Installation, Api]]:
    here = install(pods={"annotations": {"efa-pulse.test/outcome": "ok"}})
    here.cluster.apply(*rights(here.config))
    yield here, Api(configuration(here.cluster.service_account(here.config.namespace, ACCOUNT)))
    here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{here.config.install}")
    here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{here.config.install}")


def test_these_rights_are_enough(service_account: tuple[Installation, Api]) -> None:
    here, api = service_account
    nodes = here.nodes(2)
    inventory = KubernetesInventory(api, here.config)
    inventory.start()
    assert inventory.wait(20)
    eventually(lambda: len(inventory.snapshot()) == 2)
    election = Election(api, Leader(), namespace=here.config.namespace, identity="me")
    election.turn()
    assert election.leading
    election.close()
    launched = here.launcher(api=api)
    assert {result.reason for result in launched.run(pairs(nodes, "r")[0]).results} == {Reason.OK}
    here.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": here.config.probe_namespace},
                        "spec": {"hard": {"pods": "0"}}})
    store = ConfigMapJournal(api, namespace=here.config.namespace, name="journal")
    store.save({shard_of("a"): encode_shard(shard_of("a"), {"a": {}})})
    store.save({shard_of("a"): encode_shard(shard_of("a"), {"a": {"n": 1}})})
    assert len(ConfigMapJournal(api, namespace=here.config.namespace, name="journal").load()) == 1
    inventory.close()


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "{probes}/secrets"), ("GET", "/api/v1/secrets"), ("POST", "{probes}/pods"), ("DELETE", "{probes}/pods/x"),
    ("GET", "{probes}/pods/x/log"), ("POST", "{probes}/pods/x/exec"), ("DELETE", "/api/v1/nodes/x"), ("PATCH", "/api/v1/nodes/x"),
    ("POST", "/apis/batch/v1/namespaces/{own}/jobs"), ("GET", "/api/v1/configmaps"), ("DELETE", "{probes}/configmaps/efa-pulse-anchor"),
])
def test_and_these_things_are_forbidden(service_account: tuple[Installation, Api], method: str, path: str) -> None:
    here, api = service_account
    with pytest.raises(ApiError) as refused:
        api.request(method, path.format(probes=here.probes, own=here.config.namespace), body={} if method in {"POST", "PATCH"} else None,
                    content_type="application/merge-patch+json" if method == "PATCH" else "application/json")
    assert refused.value.status == 403


@pytest.fixture(scope="module")
def watched(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HollowNodes]:
    folders = {}
    for number in range(3):
        tree = SysfsTree.p5(tmp_path_factory.mktemp("sys"))
        folders[f"watched-{number}"] = {"/sys": str(tree.root)}
    with HollowNodes(cluster, "watched", 3, default_rate="800mbit", host_paths=folders) as nodes:
        yield nodes


@pytest.mark.timeout(180)
def test_the_witnesses_of_both_nodes_are_asked_for_the_runs_window(install: Install, watched: HollowNodes,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.witness.LOOK_BACK_SECONDS", 3.0)  # these witnesses have not lived for longer
    here = install(pods={"image": PROBE_IMAGE})
    here.cluster.apply(_daemon_set(here, ["watched-0", "watched-1"]))
    witnesses = Witnesses(here.api, here.config, through_api=True)
    witnesses.start()
    try:
        eventually(lambda: witnesses.nodes() == {"watched-0": True, "watched-1": True}, seconds=60, what="both witnesses are ready")
        params = {"sizes": [1 << 20], "operations": ["write"], "seconds": 1.5, "batch": 1}
        launched = here.launcher()
        run = launched.run(spec(("watched-0", "watched-1"), "r", params=params, deadline=60.0), 90)
        assert {result.reason for result in run.results} == {Reason.OK}
        answers = witnesses.answers(run)
        assert set(answers) == {"watched-0", "watched-1"}
        for node, answer in answers.items():
            assert isinstance(answer, WitnessAnswer), answer
            assert answer.node == node, "each answers for its own node"
            assert len(answer.window.devices) == 32
            assert {value for device in answer.window.devices.values() for value in device.counters.values()} == {0}
        verdict = judge_transport(run.results, answers)
        assert verdict.transport is Transport.TCP, verdict.why
        assert witnesses.background(["watched-0", "watched-1", "watched-2"]) == {"watched-0": 0.0, "watched-1": 0.0}

        alone = launched.run(spec(("watched-1", "watched-2"), "r", params=params, deadline=60.0), 90)
        assert witnesses.answers(alone)["watched-2"] is None, "a node without a witness is told apart from one that counted nothing"
        here.cluster.call("PATCH", f"/apis/apps/v1/namespaces/{here.config.probe_namespace}/daemonsets/witness",
                          {"spec": {"template": {"spec": {"containers": [{"name": "witness", "command": ["sleep", "1000"]}]}}}},
                          patch="strategic-merge")
        broken = eventually(lambda: [node for node, ready in witnesses.nodes().items() if not ready], what="one witness is not ready")
        assert isinstance(witnesses.answers(run)[broken[0]], NoAnswer)
    finally:
        witnesses.close()


def _daemon_set(here: Installation, nodes: list[str]) -> Json:
    labels = dict(here.config.witness.selector)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    port = here.config.witness.port
    container = {"name": "witness", "image": PROBE_IMAGE, "command": ["python3", "-m", "probes.witness"],
                 "env": [{"name": "EFA_PULSE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                 "ports": [{"name": "http", "containerPort": port}],
                 "readinessProbe": {"httpGet": {"path": "/-/healthy", "port": "http"}, "periodSeconds": 1},
                 "volumeMounts": [{"name": "sys", "mountPath": "/host/sys", "readOnly": True}]}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "witness", "namespace": here.config.probe_namespace},
            "spec": {"selector": {"matchLabels": labels},
                     "template": {"metadata": {"labels": labels},
                                  "spec": {"terminationGracePeriodSeconds": 1, "containers": [container],
                                           "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                                               "nodeSelectorTerms": terms}}},
                                           "volumes": [{"name": "sys", "hostPath": {"path": "/sys"}}]}}}}


