"""The real Prometheus Operator, and a Prometheus and an Alertmanager that run with what it makes of a cluster's objects.

No pod runs them: this plays the config reloader. What it changes of the operator's configuration is what the reloader and the pod's
environment would fill in: shard and pod name, and where rule files lie.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import realtools
import yaml
from charting import kubectl
from e2e.cell import ADDRESS, Door, Process
from e2e.controlplane import API_PORT, ControlPlane, eventually
from prometheus import Prometheus

Json = dict[str, Any]
CRDS = realtools.UNPACK.parent / "crds"
SPACE = "monitoring"
PROMETHEUS_PORT, ALERTMANAGER_PORT, OPERATOR_PORT = 9090, 9093, 8080


class Monitoring:
    """A context manager. `start` before the product is installed, `watch` once its monitors are there."""

    def __init__(self, cluster: ControlPlane) -> None:
        self._cluster = cluster
        self._tools = realtools.find("prometheus-operator", "prometheus", "alertmanager")
        self._work = cluster.work / "monitoring"
        self._parts: list[Process] = []
        self._doors: list[Door] = []
        self.config: Json = {}
        self.rules: dict[str, str] = {}

    def start(self) -> None:
        """Kinds, operator, and the objects that a person with an operator has."""
        if not CRDS.is_dir():
            realtools.absent(f"no CRDs of the Prometheus Operator in {CRDS}")
        self._work.mkdir()
        kubectl("apply", "--server-side", "-f", str(CRDS), kubeconfig=self._cluster.kubeconfig)
        # An operator that starts before its kinds are served leaves them out for good.
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS), kubeconfig=self._cluster.kubeconfig)
        self._cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        self._run("prometheus-operator", f"-web.listen-address=127.0.0.1:{OPERATOR_PORT}", KUBECONFIG=str(self._cluster.kubeconfig_inside))
        port = {"name": "web", "port": ALERTMANAGER_PORT}
        everything: Json = {"serviceMonitorSelector": {}, "podMonitorSelector": {}, "ruleSelector": {}}
        everything |= {kind.replace("Selector", "NamespaceSelector"): {} for kind in list(everything)}
        self._cluster.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alertmanager", "namespace": SPACE}, "spec": {"ports": [port]}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "ports": [port],
             "metadata": {"name": "alertmanager", "namespace": SPACE, "labels": {"kubernetes.io/service-name": "alertmanager"}},
             "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}]},
            {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "main", "namespace": SPACE},
             "spec": {**everything, "version": "v3.5.0", "scrapeInterval": "5s", "evaluationInterval": "5s",
                      "serviceDiscoveryRole": "EndpointSlice",
                      "alerting": {"alertmanagers": [{"namespace": SPACE, "name": "alertmanager", "port": "web", "apiVersion": "v2"}]},
                      "apiserverConfig": {"host": f"https://{ADDRESS}:{API_PORT}", "bearerToken": self._cluster.token,
                                          "tlsConfig": {"caFile": str(self._cluster.work / "ca.crt")}}}})

    def watch(self, monitors: set[str]) -> Prometheus:
        """Wait until the operator has made configuration of these monitors (`serviceMonitor/NAMESPACE/NAME/0`) and of some rules, then run
        Prometheus and Alertmanager with it."""
        eventually(lambda: self._read() and monitors <= self._jobs() and self.rules, seconds=60,
                   what=f"the operator made scrape configuration of {sorted(monitors)} and rules; it has {sorted(self._jobs())}")
        folder = self._work / "rules"
        folder.mkdir()
        for name, text in self.rules.items():
            (folder / name).write_text(text)
        text = yaml.safe_dump({**self.config, "rule_files": [f"{folder}/*.yaml"]}).replace("$(SHARD)", "0").replace("$(POD_NAME)", "main-0")
        (self._work / "prometheus.yml").write_text(text)
        (self._work / "alertmanager.yml").write_text(yaml.safe_dump({"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}))
        self._run("alertmanager", f"--config.file={self._work}/alertmanager.yml", f"--storage.path={self._work}/am",
                  f"--web.listen-address={ADDRESS}:{ALERTMANAGER_PORT}", "--cluster.listen-address=")
        self._run("prometheus", f"--config.file={self._work}/prometheus.yml", f"--storage.tsdb.path={self._work}/tsdb",
                  f"--web.listen-address={ADDRESS}:{PROMETHEUS_PORT}", "--web.enable-lifecycle")
        door = Door(self._cluster.cell, PROMETHEUS_PORT, name="prometheus-door")
        self._doors.append(door)
        found = Prometheus(door.port)
        eventually(lambda: _answers(found), seconds=60, what="Prometheus answers")
        return found

    def alerts(self) -> list[Json]:
        """The alerts that reached Alertmanager."""
        import urllib.request

        if len(self._doors) < 2:
            self._doors.append(Door(self._cluster.cell, ALERTMANAGER_PORT, name="alertmanager-door"))
        with urllib.request.urlopen(f"http://127.0.0.1:{self._doors[1].port}/api/v2/alerts", timeout=10) as answer:
            return list(json.load(answer))

    def log(self) -> str:
        """The last words of each part."""
        return "\n".join(f"--- {part.name}\n{part.tail(12)}" for part in self._parts)

    def close(self) -> None:
        """End all of it."""
        for door in self._doors:
            door.close()
        for part in reversed(self._parts):
            part.stop()

    def _run(self, name: str, *arguments: str, **env: str) -> None:
        self._parts.append(self._cluster.cell.start(name, [str(self._tools[name]), *arguments], env=env))

    def _jobs(self) -> set[str]:
        return {str(one["job_name"]) for one in self.config.get("scrape_configs") or []}

    def _read(self) -> bool:
        space = f"/api/v1/namespaces/{SPACE}"
        secrets = [one for one in self._cluster.items(f"{space}/secrets") if one["metadata"]["name"] == "prometheus-main"]
        maps = [one for one in self._cluster.items(f"{space}/configmaps")
                if one["metadata"]["name"].startswith("prometheus-main-rulefiles")]
        if not secrets:
            return False
        self.config = yaml.safe_load(gzip.decompress(base64.b64decode(secrets[0]["data"]["prometheus.yaml.gz"])))
        self.rules = {name: text for one in maps for name, text in (one.get("data") or {}).items()}
        return True


def _answers(prometheus: Prometheus) -> bool:
    try:
        prometheus.api("status/runtimeinfo")
    except (OSError, AssertionError):
        return False
    return True


def audit_policy(path: Path, user: str) -> Path:
    """Write an audit policy that notes every request of one user, and nothing else."""
    path.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
        {"level": "Metadata", "users": [user]}, {"level": "None"}]}))
    return path
