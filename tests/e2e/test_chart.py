"""The chart on a real control plane: installed by Helm, run on hollow nodes with the rights that it gives and no others, scraped and
alerted on by what the Prometheus Operator makes of it, upgraded, rolled back, removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest
import realtools
import yaml
from charting import CHART, kubectl, template
from e2e import cell
from e2e.controlplane import ControlPlane, eventually
from e2e.hollowcluster import HollowNodes, this_checkout
from e2e.monitoring import Monitoring, audit_policy
from e2e.release import Audit, Release, Right
from sysfs_tree import SysfsTree

from exporter.kube.api import Api, ApiError, configuration

Json = dict[str, Any]
NAME = SPACE = "efa-pulse"
PROBES = "efa-pulse-probes"
ACCOUNT = f"system:serviceaccount:{SPACE}:{NAME}"
NODES = ("chart-0", "chart-1")
MODEL = "tiny"
LIGHT = {"sizes": ["1MiB"], "operations": ["write"], "seconds": 0.3, "batch": 1}
ALERT = "EfaPulseCanaryDown"

VALUES: Json = {
    # Nodes of a test are young, and its answers are wanted soon.
    "config": {
        "planning": {"spread": 0, "gates": {"min_age": "0s"}, "budget": {"fabric_time": 1, "gpu_time": 1}},
        "schedule": {"start_spread": "1s"}, "conditions": {"enabled": True}, "archive": {"logs": True}, "ec2": {"enabled": False},
        "kubernetes": {"leader": {"duration": "6s", "renew_deadline": "4s", "retry": "1s"}},
        "probes": {"node": {"enabled": False}, "nixl": {"enabled": False},
                   "mooncake": {"deadline": "14s", "params": LIGHT, "schedule": {"interval": "20s", "jitter": "0s", "stagger": False}}},
        "canary": {"targets": [{
            "name": "chat", "url": "http://llm.serving.svc:8000", "model": MODEL, "key": {"file": "/etc/efa-pulse/secrets/router/api-key"},
            "params": {"total_timeout": "4s", "max_tokens": 4},
            "prompts": {"short": {"schedule": {"interval": "5s"}}, "long": {"enabled": False}}}]},
    },
    "secrets": [{"name": "router", "secretName": "llm-router-key"}],
    "exporter": {"resources": {"limits": {"memory": "2Gi"}}},
    "prometheus": {
        "serviceMonitor": {"interval": "5s", "scrapeTimeout": "4s"}, "podMonitor": {"interval": "5s", "scrapeTimeout": "4s"},
        "rules": {"alerts": {ALERT: {"for": "0s", "parameters": {"window": "30s", "failures": 1}}}}},
}

SELDOM: dict[Right, str] = {
    (PROBES, "batch", "jobs", "get"): "an answer to a create was lost, or another leader was faster: launch/requests.py",
    (PROBES, "", "events", "list"): "why a Job got no pods: launch/requests.py",
    (PROBES, "resource.k8s.io", "resourceclaimtemplates", "create"): "devices by dynamic allocation: launch/requests.py",
    ("", "", "nodes", "get"): "before a node's condition is written: flags.py",
    ("", "", "nodes/status", "patch"): "the node's condition: flags.py",
    ("default", "", "events", "create"): "Events about nodes",
    (PROBES, "", "pods/log", "get"): "logs of runs that were not ok",
    **{(PROBES, "kubeflow.org", "mpijobs", verb): "nccl-tests over several nodes: launch/mpijob.py"
       for verb in ("get", "list", "watch", "create", "delete")},
}
"""Rights that this installation has no need of, each with the one that has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that keeps an audit log of the service's requests."""
    if why := cell.why_not():
        realtools.absent(why)
    work = tmp_path_factory.mktemp("cluster")
    policy = audit_policy(work / "audit-policy.json", ACCOUNT)
    flags = ("--audit-policy-file", str(policy), "--audit-log-path", str(work / "audit.log"), "--audit-log-mode", "blocking")
    with ControlPlane(work, api_flags=flags) as plane:
        yield plane


@pytest.fixture(scope="module")
def nodes(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HollowNodes]:
    folders = {name: {"/sys": str(SysfsTree.p5(tmp_path_factory.mktemp("sys")).root)} for name in NODES}
    images = (this_checkout("ghcr.io/efa-pulse/*"),)
    with HollowNodes(cluster, "chart", len(NODES), default_rate="800mbit", host_paths=folders, images=images) as hollow:
        yield hollow


@pytest.fixture(scope="module")
def monitoring(cluster: ControlPlane) -> Iterator[Monitoring]:
    one = Monitoring(cluster)
    try:
        one.start()
        yield one
    finally:
        print(one.log())
        one.close()


@pytest.fixture(scope="module")
def release(cluster: ControlPlane, nodes: HollowNodes, monitoring: Monitoring,
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart, installed as its guide says, with a served model to look at."""
    for command in (f"create namespace {SPACE}", f"label namespace {SPACE} pod-security.kubernetes.io/enforce=restricted",
                    f"create secret generic llm-router-key -n {SPACE} --from-literal=api-key=secret-key"):
        kubectl(*command.split(), kubeconfig=cluster.kubeconfig)
    cluster.apply(*serving())
    values = tmp_path_factory.mktemp("values") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    one = Release(cluster, NAME, SPACE, values)
    one.install()
    try:
        eventually(lambda: one.ready(2), seconds=120, every=0.5, what="both replicas are ready")
        yield one
    finally:
        for pod in one.pods():
            print(f"--- {pod['metadata']['name']}\n{nodes.container_log(pod['metadata']['uid'], 'exporter')[-3000:]}")
        print(f"--- hollow\n{nodes.log()[-2000:]}")


@pytest.fixture(scope="module")
def audit(cluster: ControlPlane) -> Audit:
    return Audit(cluster.work / "audit.log")


def serving() -> list[Json]:
    """A small inference service: a Deployment and its Service."""
    labels = {"app": "llm"}
    command = ["python3", "-m", "probes.canary.simulated", "--listen", "0.0.0.0:8000", "--model", MODEL, "--ttft", "0.02", "--gap", "0.01"]
    pod = {"containers": [{"name": "llm", "image": "ghcr.io/efa-pulse/probe:0.1.0", "command": command,
                           "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}], "terminationGracePeriodSeconds": 1}
    meta = {"name": "llm", "namespace": "serving"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
         "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"selector": labels, "ports": [{"port": 8000}]}},
    ]


@pytest.mark.timeout(300)
def test_a_whole_cycle_runs_with_the_rights_of_the_chart_and_uses_them_all(release: Release, audit: Audit) -> None:
    for node in NODES:
        eventually(lambda node=node: release.values("node_healthy", node=node, probe="mooncake") == [1.0],  # type: ignore[misc]
                   seconds=150, every=1.0, what=f"{node} was measured and is well")
    eventually(lambda: sum(release.values("canary_requests_total", target="chat", result="ok")) >= 2, seconds=60, every=1.0,
               what="canaries are answered")
    audit.until_used((PROBES, "batch", "jobs", "delete"), 60)
    audit.until_used((SPACE, "", "configmaps", "update"), 90)
    owned = release.cluster.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/{NAME}")["metadata"]["ownerReferences"]
    assert owned[0]["name"] == f"{NAME}-state"
    assert release.values("node_transport", node=NODES[0], probe="mooncake", transport="tcp") == [1.0], "the witnesses were asked"
    assert audit.refused() == []
    granted, used = release.granted(), audit.used()
    anywhere = {right for right in used if ("", *right[1:]) in granted}
    assert used - granted - anywhere == set(), "used, not granted"
    unused = granted - used
    assert unused - set(SELDOM) == set(), "granted, and nothing needs it"
    assert set(SELDOM) <= granted


def test_both_namespaces_have_the_pod_security_that_they_need(release: Release) -> None:
    space = release.cluster.call("GET", f"/api/v1/namespaces/{PROBES}")["metadata"]["labels"]
    assert space["pod-security.kubernetes.io/enforce"] == "privileged"
    privileged = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big", "namespace": SPACE},
                  "spec": {"containers": [{"name": "c", "image": "x", "securityContext": {"privileged": True}}]}}
    with pytest.raises(urllib.error.HTTPError, match=r"violates PodSecurity .*restricted:latest"):
        release.cluster.create(privileged)
    dry = f"/api/v1/namespaces/{PROBES}/pods?dryRun=All"
    assert release.cluster.call("POST", dry, {**privileged, "metadata": {"name": "big", "namespace": PROBES}})["kind"] == "Pod"
    assert len(release.pods()) == 2, "and the service's own pods were admitted"


def test_helm_test_finds_it_ready(release: Release) -> None:
    assert "Phase:          Succeeded" in release.helm("test", NAME, "--timeout", "90s")


def test_the_command_line_finds_it_by_its_names(release: Release) -> None:
    command = [sys.executable, "-m", "exporter", "status", "--json", "-n", SPACE, "--kubeconfig", str(release.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert document["leading"], "the replica that leads was asked"
    assert all(node in done.stdout for node in NODES)


@pytest.mark.parametrize(("change", "refused"), [
    ({"status": {"conditions": [{"type": "{ours}", "status": "False", "reason": "Test", "message": "m"}]}}, None),
    ({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Test", "message": "m"}]}}, "and no other"),
    ({"metadata": {"labels": {"evil": "true"}}}, "may not change labels"),
    ({"status": {"capacity": {"cpu": "1"}}}, "what a node reports"),
], ids=["its own condition", "another condition", "a label", "the capacity"])
def test_of_a_node_it_may_change_its_own_condition_only(release: Release, change: Json, refused: str | None) -> None:
    ours = (CHART / "files" / "condition.txt").read_text().strip()
    node = release.cluster.call("GET", f"/api/v1/nodes/{NODES[0]}")
    change = json.loads(json.dumps(change).replace("{ours}", ours))
    api = Api(configuration(release.cluster.service_account(SPACE, NAME)))

    def patch() -> None:
        api.request("PATCH", f"/api/v1/nodes/{NODES[0]}/status", body=change,
                    content_type="application/strategic-merge-patch+json")

    if refused is None:
        patch()
        types = {one["type"] for one in release.cluster.call("GET", f"/api/v1/nodes/{NODES[0]}")["status"]["conditions"]}
        assert types == {ours} | {one["type"] for one in node["status"]["conditions"]}
        return
    with pytest.raises(ApiError, match=refused) as error:
        patch()
    assert error.value.status == 403


@pytest.mark.timeout(400)
def test_prometheus_as_the_operator_configures_it_scrapes_both_and_fires_for_a_dead_endpoint(
        release: Release, monitoring: Monitoring) -> None:
    monitors = {f"serviceMonitor/{SPACE}/{NAME}/0", f"podMonitor/{SPACE}/{NAME}-witness/0"}
    prometheus = monitoring.watch(monitors)
    prometheus.until("count(efapulse_leader)", lambda value: value == 2.0, 90)
    prometheus.until('count(count by (node) (efapulse_witness_efa_tx_bytes_total))', lambda value: value == 2.0, 60)
    prometheus.until('max(efapulse:node_healthy{probe="mooncake"})', lambda value: value == 1.0, 60)
    assert prometheus.value('count(ALERTS{alertname=~"EfaPulse.*",alertstate="firing",severity!="info"})') is None, "all is well"
    labels = {name for series in prometheus.query("efapulse_node_healthy") for name, _ in series}
    assert {"node", "probe", "pod", "namespace"} <= labels
    assert not {name for name in labels if name.startswith("exported_")}
    release.cluster.call("PATCH", "/apis/apps/v1/namespaces/serving/deployments/llm", {"spec": {"replicas": 0}})
    found = eventually(lambda: [one for one in monitoring.alerts() if one["labels"]["alertname"] == ALERT], seconds=150, every=1.0,
                       what="the alert is in Alertmanager")
    assert found[0]["labels"]["target"] == "chat"
    assert found[0]["annotations"]["runbook_url"].endswith(f"/{ALERT}.md")
    release.cluster.call("PATCH", "/apis/apps/v1/namespaces/serving/deployments/llm", {"spec": {"replicas": 1}})
    prometheus.until(f'count(ALERTS{{alertname="{ALERT}",alertstate="firing"}})', lambda value: value is None, 90)


def test_applied_twice_nothing_changes(release: Release) -> None:
    def seen() -> dict[str, str]:
        # What a controller writes into a status is no change of ours.
        return {f"{one['kind']} {one['metadata']['name']}": json.dumps(
            [one["metadata"].get("generation"), one.get("data"), one["metadata"]["uid"], ours(one)]) for one in release.objects()}

    def ours(one: Json) -> list[str]:
        return [entry["time"] for entry in one["metadata"]["managedFields"] if entry["manager"].startswith("helm")]

    before = seen()
    release.upgrade()
    after = seen()
    assert list(after) == list(before)
    assert [name for name in before if after[name] != before[name]] == [], "these were written again"


@pytest.mark.timeout(400)
def test_what_can_be_read_again_needs_no_restart_and_what_cannot_loses_nothing(release: Release) -> None:
    pods = {pod["metadata"]["uid"] for pod in release.pods()}
    loaded = release.values("config_last_reload_success_timestamp_seconds")
    release.upgrade("--set", "config.launch.canary_concurrency=3")
    eventually(lambda: (now := release.values("config_last_reload_success_timestamp_seconds")) and now > loaded, seconds=60, every=1.0,
               what="the changed file was read")
    assert {pod["metadata"]["uid"] for pod in release.pods()} == pods
    measured = release.values("node_last_measured_timestamp_seconds", node=NODES[0])
    release.upgrade("--set", "config.logging.level=debug", "--set", "config.probes.mooncake.enabled=false")
    eventually(lambda: release.ready(2) and not pods & {pod["metadata"]["uid"] for pod in release.pods()}, seconds=120, every=0.5,
               what="the pods were replaced")
    again = eventually(lambda: release.values("node_healthy", node=NODES[0], probe="mooncake"), seconds=60, every=0.5,
                       what="the new leader publishes what was known")
    assert again == [1.0]
    assert release.values("node_last_measured_timestamp_seconds", node=NODES[0])[0] >= measured[0]
    release.helm("rollback", NAME, "1")
    text = release.cluster.call("GET", f"/api/v1/namespaces/{SPACE}/configmaps/{NAME}-config")["data"]["config.yaml"]
    assert yaml.safe_load(text) == yaml.safe_load(next(
        one for one in template(values=release.values_file) if one["metadata"]["name"] == f"{NAME}-config")["data"]["config.yaml"])
    stamp = "efa-pulse.io/restart-config"
    now, first = (one["spec"]["template"]["metadata"]["annotations"][stamp] for one in (
        release.cluster.call("GET", f"/apis/apps/v1/namespaces/{SPACE}/deployments/{NAME}"),
        next(one for one in template(values=release.values_file) if one["kind"] == "Deployment")))
    assert now == first, "the first revision is rolled out again"


@pytest.mark.timeout(180)
def test_an_uninstall_leaves_nothing(release: Release) -> None:
    assert any(one["metadata"]["name"].startswith(f"{NAME}-journal-")
               for one in release.cluster.items(f"/api/v1/namespaces/{SPACE}/configmaps")), "there is something to leave"
    release.helm("uninstall", NAME, "--wait", "--timeout", "100s")
    kubectl("delete", "secret", "llm-router-key", "-n", SPACE, kubeconfig=release.cluster.kubeconfig)
    eventually(lambda: not release.left(), seconds=90, every=1.0, what=f"nothing is left; there is {release.left()}")
