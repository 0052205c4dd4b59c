"""The chart as a release in a test's cluster, and what its ServiceAccount did there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from charting import CHART, helm, objects
from e2e.controlplane import ControlPlane, eventually

Json = dict[str, Any]
Right = tuple[str, str, str, str]
"""Namespace (empty: all), API group, resource, verb."""
LABEL = "app.kubernetes.io/instance"


class Release:
    """One release. `install` makes it; what is asked of its pods goes through the API server's proxy."""

    def __init__(self, cluster: ControlPlane, name: str, namespace: str, values: Path) -> None:
        self.cluster, self.name, self.namespace, self.values_file = cluster, name, namespace, values
        self.probes = f"{namespace}-probes"

    def helm(self, *arguments: str, seconds: float = 120.0) -> str:
        """Run Helm in the release's namespace; one that fails is an assertion."""
        done = helm(*arguments, "-n", self.namespace, kubeconfig=self.cluster.kubeconfig, seconds=seconds)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def install(self, *more: str) -> str:
        """Install it, without waiting."""
        return self.helm("install", self.name, str(CHART), "-f", str(self.values_file), *more)

    def upgrade(self, *more: str) -> str:
        """Upgrade it with the values of the installation and `more`."""
        return self.helm("upgrade", self.name, str(CHART), "-f", str(self.values_file), *more)

    def objects(self) -> list[Json]:
        """The objects of the release as they are in the cluster, hooks left out."""
        return [self.cluster.call("GET", self.cluster.path_of(one)) for one in objects(self.helm("get", "manifest", self.name))]

    def pods(self) -> list[Json]:
        """The exporter's pods that are not about to end."""
        selector = f"labelSelector={LABEL}={self.name},app.kubernetes.io/component=exporter"
        return [pod for pod in self.cluster.items(f"/api/v1/namespaces/{self.namespace}/pods?{selector}")
                if not pod["metadata"].get("deletionTimestamp")]

    def ready(self, count: int) -> bool:
        """Whether there are just so many pods and all are ready."""
        pods = self.pods()
        return len(pods) == count and all(
            any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions") or []) for pod in pods)

    def metrics(self) -> dict[str, float]:
        """The series of the replica that leads; empty while none does."""
        for pod in self.pods():
            where = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}:9877/proxy/metrics"
            try:
                text = self.cluster.text(where, timeout=10)
            except OSError:
                continue
            found = {match[1]: float(match[2]) for match in re.finditer(r"^([a-z_]+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}
            if found.get("efapulse_leader") == 1.0:
                return found
        return {}

    def values(self, name: str, **labels: str) -> list[float]:
        """The leader's series of this name with these labels."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return [value for series, value in self.metrics().items()
                if series.partition("{")[0] == f"efapulse_{name}" and all(one in series for one in wanted)]

    def granted(self) -> set[Right]:
        """What the release's roles let its ServiceAccount do."""
        found: set[Right] = set()
        for one in self.objects():
            if one["kind"] not in ("ClusterRole", "Role"):
                continue
            for rule in one["rules"]:
                found |= {(one["metadata"].get("namespace", ""), group, resource, verb)
                          for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]}
        return found

    def left(self) -> list[str]:
        """What there still is of it in the cluster."""
        found = [f"namespace {one['metadata']['name']}" for one in self.cluster.items("/api/v1/namespaces")
                 if one["metadata"]["name"] == self.probes]
        for path, listed in _listable(self.cluster):
            for one in self.cluster.items(path):
                meta = one["metadata"]
                ours = (meta.get("labels") or {}).get(LABEL) == self.name or meta.get("namespace") in (self.namespace, self.probes)
                if ours and meta["name"] not in ("kube-root-ca.crt", "default"):
                    found.append(f"{listed} {meta.get('namespace', '')}/{meta['name']}")
        return found


class Audit:
    """What one user asked of the API server, from its audit log."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def events(self) -> list[Json]:
        """Every request that was answered, or is still (watches)."""
        found = []
        for line in self._log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the last line may be on its way
                continue
        return found

    def refused(self) -> list[str]:
        """Requests that were answered with 401 or 403."""
        return sorted({f"{one['verb']} {one['requestURI']}" for one in self.events()
                       if (one.get("responseStatus") or {}).get("code") in (401, 403)})

    def used(self) -> set[Right]:
        """Rights that were used. A list or watch over the whole cluster has no namespace."""
        found: set[Right] = set()
        for one in self.events():
            ref = one.get("objectRef")
            if ref:
                resource = ref["resource"] + (f"/{ref['subresource']}" if ref.get("subresource") else "")
                found.add((ref.get("namespace", ""), ref.get("apiGroup", ""), resource, one["verb"]))
        return found

    def until_used(self, right: Right, seconds: float) -> None:
        """Wait until a right was used."""
        eventually(lambda: right in self.used(), seconds=seconds, every=1.0, what=f"{right} is used")


def _listable(cluster: ControlPlane) -> list[tuple[str, str]]:
    """Paths of all lists that the API server knows, Events left out."""
    groups = ["/api/v1"] + [f"/apis/{group['preferredVersion']['groupVersion']}" for group in cluster.call("GET", "/apis")["groups"]]
    return [(f"{base}/{one['name']}", one["name"]) for base in groups for one in cluster.call("GET", base)["resources"]
            if "list" in one["verbs"] and "/" not in one["name"] and one["name"] not in ("events", "componentstatuses")]

