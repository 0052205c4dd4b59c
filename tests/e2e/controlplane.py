"""A real Kubernetes control plane in a cell: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok for fake nodes.

Ready in a few seconds. Nodes that carry the annotation `kwok.x-k8s.io/node: fake` are played by kwok with the stages in `stages/`;
`hollow.py` runs the pods of other nodes for real. RBAC and admission are those of a real cluster.
"""

from __future__ import annotations

import json
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import realtools
import trustme
from e2e.cell import ADDRESS, Cell, Door, Process

STAGES = Path(__file__).parent / "stages"
READY_SECONDS = 60.0
API_PORT = 6443
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
Json = dict[str, Any]


class ControlPlane:
    """A context manager around a cluster. `kubeconfig` works outside the cell, `kubeconfig_inside` within it."""

    def __init__(self, work: Path, *, stages: tuple[Path, ...] = (), api_flags: tuple[str, ...] = ()) -> None:
        self._tools = realtools.find(*BINARIES)
        self._api_flags = api_flags
        self._stages = stages or (STAGES / "node.yaml", STAGES / "pod.yaml")
        self.work = work
        self.cell = Cell(work)
        self.token = secrets.token_hex(16)
        self.kubeconfig = work / "kubeconfig"
        self.kubeconfig_inside = work / "kubeconfig-inside"
        self.parts: dict[str, Process] = {}

    def __enter__(self) -> ControlPlane:
        self.cell.__enter__()
        try:
            self._certificates()
            self._start_etcd()
            self._start_api()
            self.door = Door(self.cell, API_PORT)
            self._write_kubeconfigs()
            self.await_api()
            self._start_others()
            eventually(lambda: self.items("/api/v1/namespaces/default/serviceaccounts"), what="the controller manager works")
        except BaseException:
            self.cell.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cell.__exit__(kind, error, trace)

    @property
    def server(self) -> str:
        """The API server's address outside the cell."""
        return f"https://127.0.0.1:{self.door.port}"

    def call(self, method: str, path: str, body: Json | None = None, *, patch: str = "merge", timeout: float = 30.0) -> Json:
        """One request as a cluster admin. Raises urllib's HTTPError with the server's message in its reason."""
        patched = "application/apply-patch+yaml" if patch == "apply" else f"application/{patch}-patch+json"
        kind = patched if method == "PATCH" else "application/json"
        request = urllib.request.Request(self.server + path, method=method, data=json.dumps(body).encode() if body is not None else None,
                                         headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind})
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=timeout) as answer:
                parsed = json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise urllib.error.HTTPError(error.url, error.code, f"{method} {path}: {text[:2000]}", error.headers, None) from None
        assert isinstance(parsed, dict)
        return parsed

    def text(self, path: str, *, timeout: float = 30.0) -> str:
        """What is served under a path as text, such as a pod's page through the API server's proxy."""
        request = urllib.request.Request(self.server + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, context=self._context, timeout=timeout) as answer:
            return str(answer.read().decode())

    def items(self, path: str) -> list[Json]:
        """The items of a list."""
        return list(self.call("GET", path)["items"])

    def apply(self, *objects: Json) -> None:
        """Create or replace objects by server-side apply."""
        for one in objects:
            name = f"{self._path(one)}/{one['metadata']['name']}?fieldManager=test&force=true"
            self.call("PATCH", name, one, patch="apply")

    def create(self, *objects: Json) -> None:
        """Create objects, their status included where the API takes it (nodes)."""
        for one in objects:
            self.call("POST", self._path(one), one)

    def delete(self, path: str) -> None:
        """Delete an object or a collection; one that is not there is fine."""
        try:
            self.call("DELETE", path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def service_account(self, namespace: str, name: str) -> Path:
        """A kubeconfig, for use outside the cell, that acts as this ServiceAccount."""
        answer = self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
                           {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}})
        path = self.work / f"kubeconfig-{namespace}-{name}"
        path.write_text(self._kubeconfig(self.server, answer["status"]["token"]))
        return path

    def kill(self, name: str) -> None:
        """End one part at once, as a crash does."""
        self.parts.pop(name).stop(signal.SIGKILL)

    def restart(self, name: str) -> None:
        """Start a part that was killed. The API server's door stays at the same port."""
        {"etcd": self._start_etcd, "kube-apiserver": self._start_api}.get(name, lambda: self._start_one(name))()

    def await_api(self) -> None:
        """Return when the API server is ready. Raises RuntimeError when it does not become so."""
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            for part in [part for part in self.parts.values() if not part.alive()]:
                if part.name in {"etcd", "kube-apiserver"}:
                    raise RuntimeError(f"{part.name} ended:\n{part.tail()}")
                self._start_one(part.name)  # as a kubelet does for those that cannot bear an absent API server at their start
            try:
                request = urllib.request.Request(f"{self.server}/readyz", headers={"Authorization": f"Bearer {self.token}"})
                urllib.request.urlopen(request, context=self._context, timeout=2).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"kube-apiserver is not ready after {READY_SECONDS:g} s:\n{self.parts['kube-apiserver'].tail()}")

    def _certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.work / "ca.crt"))
        issued = authority.issue_cert(ADDRESS, "127.0.0.1", "10.96.0.1", "localhost", "kubernetes.default.svc")
        issued.private_key_pem.write_to_path(str(self.work / "server.key"))
        with (self.work / "server.crt").open("wb") as file:
            file.writelines(part.bytes() for part in issued.cert_chain_pems)
        subprocess.run(["openssl", "genrsa", "-out", str(self.work / "sa.key"), "2048"], check=True, capture_output=True, timeout=60)
        (self.work / "tokens.csv").write_text(f'{self.token},admin,1,"system:masters"\n')
        self._context = ssl.create_default_context(cafile=str(self.work / "ca.crt"))

    def _start_etcd(self) -> None:
        # Ports are fixed: the cell has a network of its own.
        self._start("etcd", "--data-dir", str(self.work / "etcd"), "--unsafe-no-fsync", "--listen-client-urls", "http://127.0.0.1:2379",
                    "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
                    "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380")

    def _start_api(self) -> None:
        at = self.work
        self._start("kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--bind-address", ADDRESS, "--secure-port", str(API_PORT),
                    "--tls-cert-file", str(at / "server.crt"), "--tls-private-key-file", str(at / "server.key"),
                    "--client-ca-file", str(at / "ca.crt"), "--token-auth-file", str(at / "tokens.csv"),
                    "--authorization-mode", "Node,RBAC", "--allow-privileged=true", "--service-cluster-ip-range", "10.96.0.0/16",
                    "--service-account-key-file", str(at / "sa.key"), "--service-account-signing-key-file", str(at / "sa.key"),
                    "--service-account-issuer", "https://kubernetes.default.svc", *self._api_flags)

    def _start_others(self) -> None:
        for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
            self._start_one(name)

    def _start_one(self, name: str) -> None:
        config = str(self.kubeconfig_inside)
        # With the default client rates 200 Jobs take 82 s, with these 11 s.
        common = ("--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
                  "--bind-address", "127.0.0.1", "--leader-elect=false", "--kube-api-qps", "1000", "--kube-api-burst", "2000")
        arguments: dict[str, tuple[str, ...]] = {
            "kube-controller-manager": (*common, "--controllers", "*", "--concurrent-job-syncs", "50", "--use-service-account-credentials",
                                        "--service-account-private-key-file", str(self.work / "sa.key"),
                                        "--root-ca-file", str(self.work / "ca.crt"), "--terminated-pod-gc-threshold", "0"),
            "kube-scheduler": common,
            "kwok": ("--kubeconfig", config, "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector",
                     "kwok.x-k8s.io/node=fake", "--server-address", "127.0.0.1:10247",
                     *(word for stage in self._stages for word in ("--config", str(stage)))),
        }
        self._start(name, *arguments[name])

    def _start(self, name: str, *arguments: str) -> None:
        self.parts[name] = self.cell.start(name, [str(self._tools[name]), *arguments])

    def _write_kubeconfigs(self) -> None:
        self.kubeconfig.write_text(self._kubeconfig(self.server, self.token))
        self.kubeconfig_inside.write_text(self._kubeconfig(f"https://{ADDRESS}:{API_PORT}", self.token))

    def _kubeconfig(self, server: str, token: str) -> str:
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(self.work / "ca.crt")}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        })

    def path_of(self, one: Json) -> str:
        """Where an object is."""
        return f"{self._path(one)}/{one['metadata']['name']}"

    def _path(self, one: Json) -> str:
        version = one["apiVersion"]
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        namespace = one["metadata"].get("namespace")
        return f"{root}/{f'namespaces/{namespace}/' if namespace else ''}{plural(one['kind'])}"


def plural(kind: str) -> str:
    """The resource name of a kind."""
    lower = kind.lower()
    if lower.endswith("s"):
        return f"{lower}es"
    return f"{lower[:-1]}ies" if lower.endswith("y") and lower[-2] not in "aeiou" else f"{lower}s"


def eventually(check: Callable[[], Any], *, seconds: float = 30.0, every: float = 0.1, what: str = "") -> Any:
    """The first true value of `check`; an assertion fails when there is none in time."""
    until = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < until, f"not within {seconds:g} s: {what or check}; last value {value!r}"
        time.sleep(every)
