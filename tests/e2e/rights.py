"""The rights that the service needs in a cluster, and no more: what its ServiceAccount gets in the tests, and what a chart must give it."""

from __future__ import annotations

from typing import Any

from exporter.config.kubernetes import Kubernetes

Json = dict[str, Any]
ACCOUNT = "efa-pulse"

CLUSTER = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "resourceclaims"], "verbs": ["list", "watch"]},
]
OWN = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"]},
]
PROBES = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaimtemplates"], "verbs": ["create"]},
]

CONDITIONS = [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]
EVENTS = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]
"""With `conditions.enabled`; Events of nodes live in namespace `default`."""


def conditions_rights(config: Kubernetes) -> list[Json]:
    """What `conditions.enabled` needs beside `rights`."""
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": config.namespace}
    api, name = "rbac.authorization.k8s.io", f"{config.install}-conditions"
    return [
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": CONDITIONS},
        {"apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [subject],
         "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name}},
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": config.install, "namespace": "default"}, "rules": EVENTS},
        {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": config.install, "namespace": "default"},
         "subjects": [subject], "roleRef": {"apiGroup": api, "kind": "Role", "name": config.install}},
    ]


def rights(config: Kubernetes) -> list[Json]:
    """ServiceAccount, roles and bindings of an installation."""
    name, own, probes = config.install, config.namespace, config.probe_namespace
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": own}
    api = "rbac.authorization.k8s.io"
    found: list[Json] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": own}},
        {"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": CLUSTER},
        {"apiVersion": f"{api}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [subject],
         "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name}},
    ]
    for space, rules in ((own, OWN), (probes, PROBES)):
        found += [{"apiVersion": f"{api}/v1", "kind": "Role", "metadata": {"name": ACCOUNT, "namespace": space}, "rules": rules},
                  {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": ACCOUNT, "namespace": space},
                   "subjects": [subject], "roleRef": {"apiGroup": api, "kind": "Role", "name": ACCOUNT}}]
    return found
