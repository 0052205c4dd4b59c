"""`efa-pulse status` and `explain` through a real API server's proxy to the Service, as from a laptop with a kubeconfig."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cell import ADDRESS
from e2e.controlplane import ControlPlane, eventually

NAMESPACE = "status-proxy"
PORT = 19877
CONFIG = {"server": {"listen": f"{ADDRESS}:{PORT}"}, "schedule": {"start_spread": 0},
          "probes": {name: {"enabled": False} for name in ("node", "mooncake", "nixl")},
          "canary": {"targets": [{"name": "gone", "url": "http://127.0.0.1:1", "model": "m"}]}}


def ask(cluster: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "exporter", *arguments, "--kubeconfig", str(cluster.kubeconfig)], capture_output=True,
                          text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "160"})


@pytest.fixture(scope="module")
def proxied(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A service in the cell, behind a Service of the cluster."""
    path: Path = tmp_path_factory.mktemp("proxied") / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    process = cluster.cell.start("status-service", [sys.executable, "-m", "exporter", "run", "-c", str(path)])
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    port: dict[str, Any] = {"name": "http", "port": 9877, "targetPort": PORT}
    cluster.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "efa-pulse", "namespace": NAMESPACE},
                    "spec": {"ports": [port]}})
    # The proxy goes only to an address that is a pod's own: a pod that nobody schedules has it.
    cluster.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods",
                 {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "service", "namespace": NAMESPACE},
                  "spec": {"schedulerName": "nobody", "containers": [{"name": "service", "image": "none"}]}})
    cluster.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/service/status",
                 {"status": {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}]}})
    target = {"kind": "Pod", "name": "service", "namespace": NAMESPACE}
    cluster.call("POST", f"/api/v1/namespaces/{NAMESPACE}/endpoints",
                 {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "efa-pulse", "namespace": NAMESPACE},
                  "subsets": [{"addresses": [{"ip": ADDRESS, "targetRef": target}], "ports": [{"name": "http", "port": PORT}]}]})

    said = ""

    def measured() -> bool:
        nonlocal said
        done = ask(cluster, "status", "--json", "--namespace", NAMESPACE)
        said = done.stderr
        return bool(done.stdout) and json.loads(done.stdout)["counts"]["runs"] > 0

    try:
        eventually(measured, seconds=60, every=1.0, what="the first canary was judged, seen through the API server")
        yield cluster
    except AssertionError as error:
        raise AssertionError(f"{error}; the command says {said!r}, the service {process.tail()!r}") from error
    finally:
        process.stop()
        cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")


def test_status_and_explain_come_through_the_proxy(proxied: ControlPlane) -> None:
    done = ask(proxied, "status", "-n", NAMESPACE)
    assert (done.returncode, done.stderr) == (1, "")
    assert "gone" in done.stdout
    done = ask(proxied, "explain", "gone", "-n", NAMESPACE, "--service", "efa-pulse:http")
    assert (done.returncode, done.stderr) == (1, "")
    assert "connect_failed" in done.stdout


def test_what_is_not_known_is_one_line_with_names_near_it(proxied: ControlPlane) -> None:
    done = ask(proxied, "explain", "gonn", "-n", NAMESPACE)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "efa-pulse: nothing is known of 'gonn'; there is gone\n"


@pytest.mark.parametrize(("options", "code", "says"), [
    (("-n", "no-such-namespace"), 64, "not found"),
    (("-n", NAMESPACE, "--service", "other"), 64, "not found"),
    (("-n", NAMESPACE, "--token-file", "/etc/hostname"), 64, "kubectl port-forward"),
])
def test_a_service_that_is_not_there_is_one_line(proxied: ControlPlane, options: tuple[str, ...], code: int, says: str) -> None:
    done = ask(proxied, "status", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_service_without_a_pod_behind_it_could_not_be_asked(proxied: ControlPlane) -> None:
    proxied.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "empty", "namespace": NAMESPACE},
                    "spec": {"selector": {"app": "nothing"}, "ports": [{"name": "http", "port": 9877}]}})
    eventually(lambda: "empty" in [one["metadata"]["name"] for one in proxied.items(f"/api/v1/namespaces/{NAMESPACE}/endpoints")])
    done = ask(proxied, "status", "-n", NAMESPACE, "--service", "empty")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no endpoints available" in done.stderr
