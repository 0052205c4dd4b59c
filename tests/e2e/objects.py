"""Kubernetes objects that the tests in this folder put into the cluster: what the chart installs, and nodes."""

from __future__ import annotations

import base64
from typing import Any

from exporter.config.kubernetes import Kubernetes

Json = dict[str, Any]

SECRET = "0123456789abcdef0123456789abcdef"
EFA, GPU = "vpc.amazonaws.com/efa", "nvidia.com/gpu"


def namespaces(config: Kubernetes) -> list[Json]:
    """The two namespaces of an installation, with their pod security levels."""
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}}
            for name, level in ((config.namespace, "restricted"), (config.probe_namespace, "privileged"))]


def installation(config: Kubernetes) -> list[Json]:
    """What an installation has in its namespaces."""
    probe = {"namespace": config.probe_namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": config.pods.service_account, **probe}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config.anchor, **probe}, "data": {"about": "anchor"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": config.secret, **probe},
         "data": {config.secret_key: base64.b64encode(SECRET.encode()).decode()}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": config.service, **probe},
         "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"efa-pulse.io/fence": "probe"}}},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": str(config.pods.priority_class)},
         "value": -1000, "preemptionPolicy": "Never", "globalDefault": False,
         "description": "Probes: production evicts them, they evict nobody."},
    ]


def node(name: str, *, fake: bool = True, instance_type: str = "p5.48xlarge", efa: int = 32, gpu: int = 8, zone: str = "us-west-2a",
         instance: str | None = None, labels: Json | None = None, annotations: Json | None = None, cpu: str = "192",
         memory: str = "2048Gi") -> Json:
    """A node as EKS makes it; `fake` ones are played by kwok."""
    room = {"cpu": cpu, "memory": memory, "pods": "110", "hugepages-2Mi": "10Gi", "ephemeral-storage": "500Gi"}
    room |= {key: str(value) for key, value in ((EFA, efa), (GPU, gpu)) if value}
    known = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": instance_type, "topology.kubernetes.io/zone": zone,
             "topology.kubernetes.io/region": zone[:-1], "eks.amazonaws.com/nodegroup": "gpu", **(labels or {})}
    played = {"kwok.x-k8s.io/node": "fake"} if fake else {}
    meta = {"name": name, "labels": known, "annotations": {**played, **(annotations or {})}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta,
            "spec": {"providerID": f"aws:///{zone}/{instance or 'i-' + name.encode().hex()[-17:].rjust(17, '0')}"},
            "status": {"allocatable": dict(room), "capacity": dict(room)}}
