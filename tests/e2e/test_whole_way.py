"""The whole way on real parts: the service runs as its Deployment's pod, plans rounds over four nodes, launches Jobs through a real API
server, real Mooncake and NIXL engines move bytes between the nodes' networks, results come back in pod status, are judged, localised and
published, and are scraped from the pod. One node's link runs at a quarter of the others' speed: it is named, its innocent partners are not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from e2e.controlplane import ControlPlane, eventually
from e2e.hollowcluster import PROBE_IMAGE, HollowNodes, this_checkout
from e2e.installed import Installation
from e2e.rights import ACCOUNT, rights

Install = Callable[..., Installation]
Json = dict[str, Any]

SERVICE_IMAGE = "test/efa-pulse:1"
NODES = [f"whole-{index}" for index in range(4)]
SLOW = "whole-3"
PORT = 9877
FLOOR = "50MB/s"
"""The good links make 100 MB/s, the slow one 25."""
LIGHT = {"sizes": ["4MiB"], "operations": ["write", "read"], "seconds": 0.4, "batch": 1}


@pytest.fixture(scope="module")
def nodes(cluster: ControlPlane) -> Iterator[HollowNodes]:
    images = (this_checkout(), this_checkout(SERVICE_IMAGE))
    with HollowNodes(cluster, "whole", 4, default_rate="800mbit", rates={SLOW: "200mbit"}, images=images) as hollow:
        yield hollow


def configuration(here: Installation) -> Json:
    def probe(interval: str) -> Json:
        return {"deadline": "14s", "params": LIGHT, "schedule": {"interval": interval, "jitter": "0s", "stagger": False}}

    floors = [{"probe": name, "operation": operation, "bytes": "4MiB", "min_bandwidth": FLOOR, "source": "half of an 800 Mbit/s link"}
              for name in ("mooncake", "nixl") for operation in ("write", "read")]
    return {
        "inventory": {"mode": "kubernetes"},
        "kubernetes": {"install": here.config.install, "namespace": here.config.namespace, "probe_namespace": here.config.probe_namespace,
                       "pods": {"image": PROBE_IMAGE, "priority_class": here.config.pods.priority_class},
                       "leader": {"duration": "6s", "renew_deadline": "4s", "retry": "1s"}, "witness": {"enabled": False}},
        "planning": {"spread": 0, "gates": {"min_age": "0s"}, "budget": {"fabric_time": 1, "gpu_time": 1, "concurrency": 1}},
        "schedule": {"start_spread": "1s"}, "thresholds": {"floors": floors}, "server": {"listen": f":{PORT}"},
        "probes": {"node": {"enabled": False}, "mooncake": probe("15s"), "nixl": probe("60s")},
    }


def deployment(here: Installation) -> list[Json]:
    meta = {"name": "efa-pulse", "namespace": here.config.namespace}
    labels = {"app.kubernetes.io/name": "efa-pulse", "app.kubernetes.io/component": "exporter"}
    command = ["python3", "-m", "exporter", "run", "--config", "/etc/efa-pulse/config.yaml"]
    container = {
        "name": "exporter", "image": SERVICE_IMAGE, "command": command,
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "metrics"}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/efa-pulse", "readOnly": True},
                         {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True},
                         {"name": "tmp", "mountPath": "/tmp"}],
    }
    token = {"name": "token", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}}
    pod = {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": False, "containers": [container], "nodeName": NODES[0],
           "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
           "volumes": [{"name": "config", "configMap": {"name": "efa-pulse"}}, token, {"name": "tmp", "emptyDir": {}}]}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"config.yaml": json.dumps(configuration(here))}},
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
             "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}}]


class Exporter:
    """The service's pod, asked through the API server."""

    def __init__(self, here: Installation, nodes: HollowNodes) -> None:
        self._here, self._nodes = here, nodes
        self._pods = f"/api/v1/namespaces/{here.config.namespace}/pods"

    def pod(self) -> Json | None:
        found = [pod for pod in self._here.cluster.items(self._pods) if not pod["metadata"].get("deletionTimestamp")]
        return found[0] if found else None

    def ready(self) -> bool:
        pod = self.pod()
        return pod is not None and any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or [])

    def metrics(self) -> dict[str, float]:
        """Every series of the page."""
        pod = self.pod()
        assert pod is not None
        text = self._here.cluster.text(f"{self._pods}/{pod['metadata']['name']}:{PORT}/proxy/metrics")
        return {match[1]: float(match[2]) for match in re.finditer(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}

    def value(self, name: str, **labels: str) -> float | None:
        """The one series of this name with these labels, or None."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        found = [value for series, value in self.metrics().items()
                 if series.partition("{")[0] == f"efapulse_{name}" and all(one in series for one in wanted)]
        return found[0] if found else None

    def log(self) -> str:
        """What the service said."""
        pod = self.pod()
        return self._nodes.container_log(pod["metadata"]["uid"], "exporter") if pod else "no pod"


@pytest.fixture
def service(install: Install, nodes: HollowNodes) -> Iterator[tuple[Installation, Exporter]]:
    here = install()
    here.cluster.apply(*rights(here.config))
    here.cluster.apply(*deployment(here))
    exporter = Exporter(here, nodes)
    try:
        eventually(exporter.ready, seconds=60, what="the service's pod is ready")
        yield here, exporter
    except BaseException:
        print(exporter.log()[-6000:])
        raise
    finally:
        here.cluster.delete(f"/apis/apps/v1/namespaces/{here.config.namespace}/deployments/efa-pulse")
        for kind in ("clusterrolebindings", "clusterroles"):
            here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{here.config.install}")


@pytest.mark.timeout(420)
def test_the_slow_node_is_named_and_its_partners_are_not(service: tuple[Installation, Exporter]) -> None:
    here, exporter = service
    fence = here.fence()
    try:
        eventually(lambda: exporter.value("node_healthy", node=SLOW, probe="mooncake") == 0.0, seconds=240, every=2.0,
                   what="the slow node is named")
        for node in NODES:
            if node != SLOW:
                eventually(lambda node=node: exporter.value("node_healthy", node=node, probe="mooncake") == 1.0,  # type: ignore[misc]
                           seconds=90, every=2.0, what=f"{node} is measured and well")
        for probe in ("mooncake", "nixl"):
            eventually(lambda probe=probe: (exporter.value("runs_total", probe=probe, outcome="ok") or 0) > 0,  # type: ignore[misc]
                       seconds=120, every=2.0, what=f"{probe} between good nodes is ok")
        fast = exporter.value("node_bandwidth_bytes_per_second", node=NODES[0], probe="mooncake", operation="write")
        slow = exporter.value("node_bandwidth_bytes_per_second", node=SLOW, probe="mooncake", operation="write")
        assert fast is not None
        assert slow is not None
        assert slow < 30e6 < 60e6 < fast < 105e6, "as fast as the links"
        assert exporter.value("node_transport", node=NODES[0], probe="mooncake", transport="tcp") == 1.0, "the kernel's TCP counts say so"
        assert exporter.value("leader") == 1.0
        assert fence.broken == []
    except BaseException:
        print(exporter.log()[-8000:])
        raise
