"""From a laptop with a kubeconfig: the commands as a person types them, on a real control plane with nodes whose pods really run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane import ControlPlane, eventually
from e2e.hollowcluster import PROBE_IMAGE, REPO, HollowNodes, this_checkout
from e2e.installed import Installation, JobCount
from sysfs_tree import SysfsTree

from exporter.cli.demo import simulated_endpoint
from exporter.kube.pause import PauseSwitch
from exporter.kube.watch import Watch
from exporter.launch import names
from exporter.runs import Run, RunSpec, missing_result
from exporter.witness import Witnesses
from probes.efa.window import WitnessAnswer
from probes.reasons import Reason
from probes.result import Window

Install = Callable[..., Installation]
Json = dict[str, Any]
A, B = "laptop-0", "laptop-1"
NO_DEVICES = {"expected_devices": 0, "allocatable": 0, "fi_info": False, "nixl_agent": False}
"""The preflight takes hollow nodes for what they are: without EFA devices."""
LIGHT = {"sizes": ["1MiB"], "operations": ["write"], "seconds": 0.3, "batch": 1}


@pytest.fixture(scope="module")
def hollow(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HollowNodes]:
    counters = {node: {"/sys": str(SysfsTree.p5en(tmp_path_factory.mktemp(node)).root)} for node in (A, B)}
    with HollowNodes(cluster, "laptop", 2, default_rate="800mbit", images=(this_checkout(),), host_paths=counters) as nodes:
        yield nodes


@pytest.fixture
def here(install: Install, hollow: HollowNodes) -> Installation:
    return install(pods={"image": PROBE_IMAGE})


@pytest.fixture
def config(here: Installation, tmp_path: Path) -> Path:
    return write_config(here, tmp_path)


def write_config(here: Installation, folder: Path, *, url: str = "http://127.0.0.1:9", node: Json | None = None) -> Path:
    target = {"name": "pd", "url": url, "model": "simulated-pd", "prompts": {"long": {"enabled": False}}}
    probe = {"deadline": "60s", "params": LIGHT}
    path = folder / "efa-pulse.json"
    path.write_text(json.dumps({
        "kubernetes": here.config.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "planning": {"gates": {"min_age": 0}}, "canary": {"targets": [target]},
        "probes": {"mooncake": probe, "nixl": probe, "node": {"params": NO_DEVICES if node is None else node}}}))
    return path


def command(cluster: ControlPlane, config: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "exporter", *arguments, "--kubeconfig", str(cluster.kubeconfig), "--config", str(config)]


def cli(cluster: ControlPlane, config: Path, *arguments: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    return run(command(cluster, config, *arguments), seconds)


def run(arguments: list[str], seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds, check=False, cwd=REPO,
                          env={**os.environ, "COLUMNS": "160", "NO_COLOR": "1"})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def witness(here: Installation, node: str) -> Json:
    settings = here.config
    command = ["python3", "-m", "probes.witness", "--node", node, "--listen", f":{settings.witness.port}"]
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"witness-{node}", "namespace": settings.probe_namespace, "labels": dict(settings.witness.selector)},
            "spec": {"nodeName": node, "serviceAccountName": settings.pods.service_account, "automountServiceAccountToken": False,
                     "volumes": [{"name": "sys", "hostPath": {"path": "/sys"}}],
                     "containers": [{"name": "witness", "image": PROBE_IMAGE, "command": command,
                                     "volumeMounts": [{"name": "sys", "mountPath": "/host/sys", "readOnly": True}]}]}}


EVERYWHERE = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
              {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "resourceclaims"], "verbs": ["list", "watch"]}]
WITH_PROBES = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "create", "delete"]},
               {"apiGroups": [""], "resources": ["events"], "verbs": ["list"]},
               {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
               {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]},
               {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaimtemplates"], "verbs": ["create"]}]
WITH_SERVICE = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}]


def granted(here: Installation) -> list[Json]:
    """What a person needs for `probe`, `validate`, `pause` and `resume`, given to the ServiceAccount of the probes."""
    space, api, name = here.config.probe_namespace, "rbac.authorization.k8s.io", f"{here.config.install}-person"
    who = [{"kind": "ServiceAccount", "name": here.config.pods.service_account, "namespace": space}]
    found: list[Json] = []
    for prefix, where, rules in (("Cluster", {}, EVERYWHERE), ("", {"namespace": space}, WITH_PROBES),
                                 ("", {"namespace": here.config.namespace}, WITH_SERVICE)):
        meta = {"name": name, **where}
        found += [{"apiVersion": f"{api}/v1", "kind": f"{prefix}Role", "metadata": meta, "rules": rules},
                  {"apiVersion": f"{api}/v1", "kind": f"{prefix}RoleBinding", "metadata": meta, "subjects": who,
                   "roleRef": {"apiGroup": api, "kind": f"{prefix}Role", "name": name}}]
    return found


def ended(start: float, end: float) -> Run:
    """A run that measured in this window on both nodes."""
    what = RunSpec("r", "mooncake", f"{A}--{B}", (A, B), "any", 60.0)
    results = [missing_result(what, rank, Reason.OK, "", start - 0.5, end + 0.2) for rank in range(2)]
    window = Window(start=start, end=end)
    return Run(what, tuple(result.model_copy(update={"measure": window}) for result in results), start - 0.5, end + 0.2)


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or [])


def annotate(cluster: ControlPlane, node: str, **annotations: str | None) -> None:
    keyed = {f"efa-pulse.io/{name}": value for name, value in annotations.items()}
    cluster.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": keyed}})


@pytest.mark.timeout(150)
def test_one_pair_is_probed_with_progress_and_nothing_is_left(cluster: ControlPlane, here: Installation, config: Path) -> None:
    launchers: set[str] = set()
    watch: Watch[str] = Watch(here.api, here.jobs_path, lambda one: str(one["metadata"]["labels"][names.LAUNCHED_BY]),
                              on_change=lambda changes: launchers.update(change.value for change in changes))
    watch.start()
    fence = here.fence()
    done = cli(cluster, config, "probe", "mooncake", "--nodes", f"{A},{B}", "--json")
    watch.close()
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["outcome"], verdict["transport"]) == ("ok", "tcp")
    assert sorted(result["node"] for result in verdict["results"]) == [A, B]
    assert {size for row in verdict["results"][0]["measurements"] for size in row["bytes"]} == {1 << 20}, "parameters of the configuration"
    for words in ("running on laptop-0", "running on laptop-1", "ended: ok"):
        assert words in done.stderr
    assert launchers == {"cli"}
    assert here.jobs() == []
    assert fence.broken == []
    assert fence.seen == {A, B}


@pytest.mark.timeout(150)
def test_witnesses_are_asked_through_the_api_server(cluster: ControlPlane, here: Installation) -> None:
    for node in (A, B):
        cluster.create(witness(here, node))
    eventually(lambda: all(is_ready(pod) for pod in here.pods()), what="the witnesses are ready")
    time.sleep(4.0)
    asked = Witnesses(here.api, here.config, through_api=True)
    asked.start()
    assert asked.wait(20)
    try:
        answers = asked.answers(ended(time.time() - 3.0, time.time() - 1.0))
    finally:
        asked.close()
    for node in (A, B):
        answer = answers[node]
        assert isinstance(answer, WitnessAnswer), answer
        assert answer.node == node
        assert len(answer.window.devices) == 16
        assert {device.counters["rdma_write_bytes"] for device in answer.window.devices.values()} == {0}


@pytest.mark.timeout(150)
def test_what_somebody_forbade_is_not_forced(cluster: ControlPlane, here: Installation, config: Path) -> None:
    made = JobCount(here.api, here.jobs_path)
    annotate(cluster, B, exclude="disk swap")
    try:
        done = cli(cluster, config, "probe", "mooncake", "--nodes", f"{A},{B}", "--force")
    finally:
        annotate(cluster, B, exclude=None)
    assert done.returncode == 2
    assert f"{B}: excluded: disk swap" in done.stderr
    assert "--force" not in done.stderr, "it would not help"
    done = cli(cluster, config, "probe", "mooncake", "--nodes", f"{A},nobody")
    assert done.returncode == 64
    assert "there is no node nobody; EFA nodes are" in done.stderr
    made.close()
    assert made.most == 0


@pytest.mark.timeout(60)
def test_missing_rights_and_a_missing_installation_are_told_at_once(cluster: ControlPlane, here: Installation, config: Path) -> None:
    nobody = cluster.service_account(here.config.probe_namespace, here.config.pods.service_account)
    arguments = ["probe", "mooncake", "--nodes", f"{A},{B}"]
    done = run([sys.executable, "-m", "exporter", *arguments, "--kubeconfig", str(nobody), "--config", str(config)])
    assert done.returncode == 2
    assert "forbidden" in done.stderr
    assert "it takes the rights to list nodes and pods" in done.stderr
    done = run([sys.executable, "-m", "exporter", *arguments, "--kubeconfig", str(cluster.kubeconfig)])
    assert done.returncode == 2
    assert "is efa-pulse installed there?" in done.stderr


@pytest.mark.timeout(120)
def test_these_rights_are_enough_for_a_person(cluster: ControlPlane, here: Installation, config: Path) -> None:
    space, account = here.config.probe_namespace, here.config.pods.service_account
    try:
        cluster.apply(*granted(here))
        person = cluster.service_account(space, account)
        done = run([sys.executable, "-m", "exporter", "probe", "node", "--nodes", A, "--kubeconfig", str(person), "--config", str(config)])
        assert done.returncode == 0, done.stdout + done.stderr
        done = run([sys.executable, "-m", "exporter", "pause", "--kubeconfig", str(person), "--config", str(config)])
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{here.config.install}-person")


@pytest.mark.timeout(200)
def test_a_pause_is_seen_everywhere_and_a_person_may_insist(cluster: ControlPlane, here: Installation, config: Path) -> None:
    switch = PauseSwitch(here.api, here.config.namespace)
    assert "not read yet" in str(switch.paused), "until it is read nothing starts"
    switch.start()
    assert switch.wait(20)
    assert switch.paused is None
    done = cli(cluster, config, "pause", "--reason", "switch upgrade", "--until", "1h")
    assert done.returncode == 0, done.stderr
    assert "switch upgrade" in eventually(lambda: switch.paused, seconds=10, what="the service sees the pause")
    done = cli(cluster, config, "probe", "node", "--nodes", A)
    assert done.returncode == 2
    assert "paused by" in done.stderr
    assert "--force runs all the same" in done.stderr
    done = cli(cluster, config, "probe", "node", "--nodes", A, "--force", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed over by --force" in done.stderr
    assert [one["results"][0]["node"] for one in json.loads(done.stdout)] == [A]
    cluster.call("PATCH", f"/api/v1/namespaces/{here.config.namespace}/configmaps/efa-pulse-control",
                 {"data": {"until": "2020-01-01T00:00:00Z"}})
    eventually(lambda: switch.paused is None, seconds=10, what="its end has come")
    assert cli(cluster, config, "pause").returncode == 0
    assert "no reason given" in eventually(lambda: switch.paused, seconds=10, what="paused again, without an end")
    done = cli(cluster, config, "resume")
    assert done.returncode == 0
    assert "it was paused by" in done.stdout
    eventually(lambda: switch.paused is None, seconds=10, what="the service goes on")
    switch.close()


@pytest.mark.timeout(240)
def test_a_new_pair_is_validated_layer_by_layer(cluster: ControlPlane, here: Installation, tmp_path: Path) -> None:
    with simulated_endpoint() as url:
        config = write_config(here, tmp_path, url=url)
        report = tmp_path / "report.xml"
        done = cli(cluster, config, "validate", "--nodes", f"{A},{B}", "--skip", "nccl,uccl-ep", "--canary", "pd", "--junit", str(report),
                   "--json", seconds=200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    stages = {stage["name"]: stage for stage in json.loads(done.stdout)["stages"]}
    assert [(name, stage["state"]) for name, stage in stages.items()] == [
        ("node", "ok"), ("kv", "ok"), ("nccl", "skipped"), ("uccl-ep", "skipped"), ("canary", "ok")]
    assert [(step["probe"], step["target"]) for step in stages["kv"]["steps"]] == [("mooncake", f"{A}--{B}"), ("nixl", f"{A}--{B}")]
    assert [step["target"] for step in stages["node"]["steps"]] == [A, B]
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7", "failures": "0", "errors": "0", "skipped": "2"}
    assert here.jobs() == []


@pytest.mark.timeout(150)
def test_a_bad_layer_stops_the_validation(cluster: ControlPlane, here: Installation, tmp_path: Path) -> None:
    config = write_config(here, tmp_path, node={})
    done = cli(cluster, config, "validate", "--nodes", f"{A},{B}", "--skip", "nccl,uccl-ep", "--canary", "pd")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "devices_missing" in done.stdout, "Kubernetes lists 32 devices, and the node shows none"
    assert "not reached: kv, canary (--continue goes on after a bad stage)" in done.stdout
    assert here.jobs() == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(cluster: ControlPlane, here: Installation, config: Path, number: signal.Signals) -> None:
    arguments = command(cluster, config, "probe", "mooncake", "--nodes", f"{A},{B}", "--set", "seconds=30", "--set", "iterations=1000000",
                        "--set", "volume=64GiB", "--deadline", "120")
    running = subprocess.Popen(arguments, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        eventually(lambda: [pod for pod in here.pods() if pod["status"].get("phase") == "Running"], seconds=60, what="it runs")
        time.sleep(1.0)
        running.send_signal(number)
        said, _ = running.communicate(timeout=40)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert here.jobs() == []
    eventually(lambda: not here.pods(), seconds=30, what="its pods are gone")


def test_plan_reads_the_cluster_and_says_why_a_node_is_left_out(cluster: ControlPlane, here: Installation, config: Path) -> None:
    annotate(cluster, A, exclude="being repaired")
    try:
        table = cli(cluster, config, "plan", "--explain", A)
        done = cli(cluster, config, "plan", "--json")
        stranger = cli(cluster, config, "plan", "--explain", "nobody")
    finally:
        annotate(cluster, A, exclude=None)
    assert table.returncode == 0
    assert "being repaired" in table.stdout
    found = json.loads(done.stdout)
    assert {"mooncake", "nixl", "node"} == {one["probe"] for one in found["probes"]}
    assert {one["gate"] for one in found["left_out"] if one["node"] == A} == {"excluded"}
    assert not [one for one in found["left_out"] if one["node"] == B]
    assert (A, B) in {tuple(sorted(pair)) for one in found["rounds"] for pair in one["pairs"]}
    assert stranger.returncode == 64
    assert "there is no EFA node nobody" in stranger.stderr
    assert here.jobs() == [], "nothing is started"
