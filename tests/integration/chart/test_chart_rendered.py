"""The chart as the real Helm renders it: for every values file that comes with it, and for values that are wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from charting import CHART, REPO, VALUES, helm, one, template

from dashboards.rules.options import build
from dashboards.rules.render import rule_groups
from exporter.config.load import from_bytes
from exporter.config.restart import needs_restart
from exporter.config.root import Config

Json = dict[str, Any]
KUBERNETES = "1.33"
ids = [path.stem for path in VALUES]


def config_of(objects: list[Json]) -> Config:
    text = one(objects, "ConfigMap", "-config")["data"]["config.yaml"]
    return from_bytes(text.encode(), Path("/etc/efa-pulse/config/config.yaml"), references=False)


@pytest.mark.parametrize("values", VALUES, ids=ids)
def test_lint_finds_nothing(values: Path) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(values))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", VALUES, ids=ids)
def test_every_object_is_one_that_kubernetes_knows(values: Path, tmp_path: Path) -> None:
    rendered = tmp_path / "all.yaml"
    more = ("--set", "grafana.dashboards.enabled=false")  # half a megabyte of text, the same in each
    rendered.write_text(yaml.safe_dump_all(template(*more, values=values)))
    program = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run([str(program), "-k", KUBERNETES, "--strict", str(rendered)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = (done.stdout + done.stderr).splitlines()
    unknown = [line for line in said if "Couldn't find schema" in line and "monitoring.coreos.com" not in line]
    assert unknown == []


@pytest.mark.parametrize("values", VALUES, ids=ids)
def test_the_rendered_configuration_is_one_that_the_service_takes(values: Path) -> None:
    objects = template(values=values)
    config = config_of(objects)
    kube = config.kubernetes
    assert config.inventory.mode == "kubernetes"
    names = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    for kind, name in (("Service", kube.service), ("ConfigMap", kube.anchor), ("ServiceAccount", kube.pods.service_account)):
        assert (kind, kube.probe_namespace, name) in names, f"{kind} {name} is named in the configuration"
    assert ("ConfigMap", kube.namespace, kube.owner) in names
    made = {each["metadata"]["name"] for each in objects if each["kind"] in ("Secret", "PriorityClass")}
    given = yaml.safe_load(values.read_text()).get("probes", {})
    assert kube.secret in made or kube.secret == given["existingSecret"]
    assert kube.pods.priority_class in made or kube.pods.priority_class == given["priorityClass"]["existing"]


@pytest.mark.parametrize("values", VALUES, ids=ids)
def test_no_secret_but_the_installations_own_is_in_a_release(values: Path) -> None:
    secrets = [each for each in template(values=values) if each["kind"] == "Secret"]
    assert [each["metadata"]["name"].endswith("-rendezvous") for each in secrets] in ([], [True])


def test_what_is_configured_comes_out_whole() -> None:
    everything = template(values=CHART / "ci" / "everything-values.yaml")
    config = config_of(everything)
    assert config.planning.budget.node_bytes_per_day == 4 << 40, "no number becomes 4.398046511104e+12"
    assert config.kubernetes.pods.uccl_ep.image == "registry.example.com/own/uccl:1"
    assert str(config.kubernetes.pods.nccl.image) == "registry.example.com:5000/mirror/efa-pulse/probe-nccl:0.1.0"
    assert config.kubernetes.pods.nixl.hugepages == 5 << 30, "what the chart adds does not displace what was set beside it"
    assert config.canary.targets[0].key is not None
    pod = one(everything, "Deployment", "pulse")["spec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted["secret-router"] == "/etc/efa-pulse/secrets/router"
    assert pod["containers"][0]["image"].startswith("registry.example.com:5000/mirror/efa-pulse/exporter@sha256:0123")
    assert pod["containers"][0]["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    monitor = one(everything, "ServiceMonitor", "pulse")["spec"]["endpoints"][0]
    assert (monitor["scheme"], monitor["interval"], monitor["scrapeTimeout"], monitor["honorLabels"]) == ("https", "15s", "14s", True)
    assert monitor["authorization"]["credentials"] == {"name": "efa-pulse-token", "key": "bearer"}
    quota = one(everything, "ResourceQuota", "-probe")["spec"]
    assert quota["scopeSelector"]["matchExpressions"][0]["values"] == ["pulse-probe"], "the witnesses are not counted"


@pytest.mark.parametrize("setting", [
    "schedule.start_spread=7s", "launch.canary_concurrency=3", "planning.repairs=3", "probes.nixl.enabled=false", "baselines.samples=30",
    "metrics.max_series=2000", "launch.grace=1s", "logging.level=debug", "grafana.url=http://grafana:3000", "archive.keep=1GiB",
    "ec2.region=us-west-2", "conditions.least=2", "kubernetes.max_jobs=3", "planning.gates.tolerations[0].operator=Exists",
    "server.enable_reload=true",
])
def test_just_the_settings_that_need_it_restart_the_pods(setting: str) -> None:
    def rendered(*more: str) -> tuple[str, Config]:
        objects = template(*more)
        pod = one(objects, "Deployment", "efa-pulse")["spec"]["template"]
        return str(pod["metadata"]["annotations"]["efa-pulse.io/restart-config"]), config_of(objects)

    before, after = rendered(), rendered("--set", f"config.{setting}")
    assert before[1] != after[1]
    assert (before[0] != after[0]) == bool(needs_restart(before[1], after[1]))


def test_the_rights_of_discovery_are_for_what_the_targets_name() -> None:
    roles = {(each["metadata"]["namespace"], rule["resources"][0]): rule.get("resourceNames")
             for each in template(values=CHART / "ci" / "everything-values.yaml")
             if each["kind"] == "Role" and each["metadata"]["name"].endswith("-discovery") for rule in each["rules"]}
    assert roles == {("llm-d", "inferencepools"): ["decode"], ("ray", "rayservices"): None}


def test_dashboards_are_those_of_the_repository() -> None:
    boards = {name: text for each in template() if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
              for name, text in each["data"].items()}
    assert {name: json.loads(text) for name, text in boards.items()} == {
        path.name: json.loads(path.read_text()) for path in (REPO / "dashboards" / "json").glob("*.json")}
    assert boards


@pytest.mark.parametrize("values", [None, CHART / "ci" / "everything-values.yaml"], ids=["as they are", "changed"])
def test_rules_are_those_that_the_command_writes(values: Path | None) -> None:
    rules = one(template("--set", "prometheus.rules.enabled=true", values=values), "PrometheusRule", "pulse")
    given = yaml.safe_load(values.read_text())["prometheus"]["rules"] if values is not None else {}
    options = {"labels": given.get("alertLabels", {}), "settings": given.get("settings", {}), "alerts": given.get("alerts", {})}
    if "runbookBaseUrl" in given:
        options["runbook_base_url"] = given["runbookBaseUrl"]
    assert rules["spec"] == rule_groups(build(options))
    assert "@" not in json.dumps([rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]), "no place is left open"


def test_a_release_fits_into_its_secret() -> None:
    size = len(json.dumps(template(values=CHART / "ci" / "everything-values.yaml")))
    files = sum(path.stat().st_size for path in CHART.rglob("*") if path.is_file() and "ci" not in path.parts and path.suffix != ".md")
    # Helm keeps chart and manifest gzipped and base64 twice: about a fifth of their size; a Secret holds a MiB.
    assert size + files < 4 << 20


def guide() -> list[Json]:
    """The values that the guide shows: blocks of YAML whose keys are values of the chart."""
    known = set(yaml.safe_load((CHART / "values.yaml").read_text()))
    found = []
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", (CHART / "README.md").read_text(), re.MULTILINE):
        try:
            read = yaml.safe_load(textwrap.dedent(block))
        except yaml.YAMLError:
            continue
        if isinstance(read, dict) and set(read) <= known:
            found.append(read)
    return found


def test_what_the_guide_shows_is_taken(tmp_path: Path) -> None:
    shown = guide()
    assert len(shown) >= 2
    for index, values in enumerate(shown):
        (tmp_path / f"{index}.yaml").write_text(yaml.safe_dump(values))
        assert config_of(template("--set", "prometheus.serviceMonitor.enabled=true", values=tmp_path / f"{index}.yaml"))
    text = (CHART / "README.md").read_text()
    links = re.findall(r"\]\(((?:\.\.|examples|VALUES)[^)#]*)\)", text)
    assert len(links) > 6
    assert [link for link in links if not (CHART / link).exists()] == []


@pytest.mark.parametrize(("settings", "said"), [
    (["config.probes.nixl.interval=30m"], "/config/probes/nixl"),
    (["config.kubernetes.namespace=other"], "/config/kubernetes"),
    (["config.kubernetes.pods.image=x"], "/config/kubernetes/pods"),
    (["config.server.listen=:1"], "/config/server"),
    (["config.planning.budget.gpu_time=2"], "/config/planning/budget/gpu_time"),
    (["config.canary.targets[0].name=a"], "/config/canary/targets/0"),
    (["exporter.replicas=0"], "/exporter/replicas"),
    (["exporter.replicas=two"], "/exporter/replicas"),
    (["exporter.image.digest=abc"], "/exporter/image/digest"),
    (["exporter.tolerations[0].operator=Sometimes"], "/exporter/tolerations/0/operator"),
    (["persistence.enabled=true"], "/exporter/replicas"),
    (["persistence.enabled=true", "exporter.kind=StatefulSet", "persistence.existingClaim=one"], "/exporter/replicas"),
    (["persistence.size=big"], "/persistence/size"),
    (["web.tls=true"], "/web/configSecret"),
    (["probes.priorityClass.value=1000"], "/probes/priorityClass/value"),
    (["probes.images.ucx=x"], "/probes/images"),
    (["witness.historySeconds=5"], "/witness/historySeconds"),
    (["prometheus.serviceMonitor.scrapeTimeout=1m"], "prometheus.serviceMonitor.scrapeTimeout"),
    (["prometheus.serviceMonitor.endpoint.interval=1m"], "/prometheus/serviceMonitor/endpoint"),
    (["prometheus.podMonitor.interval=fast"], "/prometheus/podMonitor/interval"),
    (["probes.namespace.name=efa-pulse"], "probes.namespace.name"),
    (["prometheus.rules.alerts.EfaPulseNodeSad.enabled=false"], "/prometheus/rules/alerts"),
    (["prometheus.rules.settings.ttft=1"], "/prometheus/rules/settings"),
    (["secrets[0].name=a"], "/secrets/0"),
    (["commonLabels.a=not a label"], "/commonLabels/a"),
    (["nodeselector.a=b"], "nodeselector"),
])
def test_wrong_values_are_refused_with_their_path(settings: list[str], said: str) -> None:
    sets = [word for setting in settings for word in ("--set", setting)]
    done = helm("template", "efa-pulse", str(CHART), "-n", "efa-pulse", "--set", "prometheus.serviceMonitor.enabled=true", *sets)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr
    assert len(done.stderr) < 1500, "one reason, not a page of alternatives"
