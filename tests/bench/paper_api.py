"""An API server of paper for measuring the service's own memory: it makes nodes and pods up as they are asked for, pages them, keeps
watches open with some changes, and takes every write. `python -m bench.paper_api NODES PODS`; it prints its port.

Pods are as large as real ones (9 kB with managed fields). It checks nothing: what a real server refuses is tested in `tests/e2e`.
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
CHANGE_SECONDS = 0.02
PER_NODE_DEVICES = 32


def node(number: int, version: int = 1) -> Json:
    name = _name(number)
    room = {"cpu": "192", "memory": "2097152Ki", "pods": "110", "vpc.amazonaws.com/efa": str(PER_NODE_DEVICES), "nvidia.com/gpu": "8",
            "hugepages-2Mi": "10Gi", "ephemeral-storage": "500Gi"}
    labels = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": "p5.48xlarge",
              "topology.kubernetes.io/zone": "us-west-2a", "topology.kubernetes.io/region": "us-west-2",
              "eks.amazonaws.com/nodegroup": "gpu",
              **{f"topology.k8s.aws/network-node-layer-{layer}": f"nn-{layer}-{number // 16 ** layer}" for layer in (1, 2, 3)},
              **{f"example.com/label-{index}": f"value-{index}" for index in range(30)}}
    images = [{"names": [f"registry.example/team/image-{index}@sha256:{index:064x}", f"registry.example/team/image-{index}:v1"],
               "sizeBytes": 1 << 30} for index in range(50)]
    conditions = [{"type": kind, "status": "True" if kind == "Ready" else "False", "reason": "Kubelet", "message": "kubelet is posting",
                   "lastHeartbeatTime": "2026-11-29T12:00:00Z"} for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")]
    return {"metadata": {"name": name, "uid": f"node-{number}", "resourceVersion": str(version), "labels": labels,
                         "creationTimestamp": "2026-11-01T12:00:00Z", "managedFields": _fields(1500)},
            "spec": {"providerID": f"aws:///us-west-2a/i-{number:017x}"},
            "status": {"allocatable": room, "capacity": room, "conditions": conditions, "images": images}}


def pod(holds: bool) -> Json:
    """The pattern of a pod; one pod of each node `holds` half of its devices."""
    name = "@NAME@"
    limits = {"cpu": "2", "memory": "4Gi", **({"vpc.amazonaws.com/efa": "16", "nvidia.com/gpu": "8"} if holds else {})}
    container = {"name": "main", "image": "registry.example/team/image-1:v1", "resources": {"limits": limits, "requests": limits},
                 "env": [{"name": f"VARIABLE_{index}", "value": f"some value {index}"} for index in range(40)],
                 "volumeMounts": [{"name": f"volume-{index}", "mountPath": f"/mnt/{index}"} for index in range(8)]}
    return {"metadata": {"name": name, "namespace": "team-@TEAM@", "uid": "pod-@UID@", "resourceVersion": "@VERSION@",
                         "labels": {"app": name, "pod-template-hash": "abcdef"}, "managedFields": _fields(2500),
                         "ownerReferences": [{"kind": "ReplicaSet", "name": name, "controller": True}]},
            "spec": {"nodeName": "@NODE@", "containers": [container],
                     "volumes": [{"name": f"volume-{index}", "configMap": {"name": f"config-{index}"}} for index in range(8)]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0}]}}


def _name(number: int) -> str:
    return f"ip-10-{number // 65536}-{number // 256 % 256}-{number % 256}.us-west-2.compute.internal"


def _fields(size: int) -> list[Json]:
    return [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:field-{index}": {} for index in range(size // 24)}}]


class World:
    """What there is, and what was written."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.counts = {"/api/v1/nodes": nodes, "/api/v1/pods": pods}
        self.written: dict[str, Json] = {}
        self.version = 1000
        self.lock = threading.Lock()
        self.patterns = {holds: json.dumps(pod(holds)) for holds in (True, False)}

    def make(self, path: str, number: int, version: int = 1) -> str:
        """One object as JSON. Pods come from two patterns: making each anew would take longer than reading it."""
        if path.endswith("nodes"):
            return json.dumps(node(number, version))
        nodes = self.counts["/api/v1/nodes"]
        pattern = self.patterns[number < nodes]
        return (pattern.replace("@NODE@", _name(number % nodes)).replace("@NAME@", f"server-{number // 20}-{number % 20:05d}-x7k2p")
                .replace("@TEAM@", str(number % 50)).replace("@UID@", str(number)).replace("@VERSION@", str(version)))

    def next(self) -> int:
        with self.lock:
            self.version += 1
            return self.version


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    world: World

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if "resource.k8s.io" in parts.path:
            self._answer(404, {"kind": "Status", "message": "no such resource"})
        elif query.get("watch") == "true":
            self._watch(parts.path, int(query.get("timeoutSeconds", "60")))
        elif parts.path in self.world.counts:
            self._page(parts.path, int(query.get("limit", "500")), int(query.get("continue", "0")))
        elif parts.path in self.world.written:
            self._answer(200, self.world.written[parts.path])
        elif parts.path.rpartition("/")[2] in {"jobs", "pods", "configmaps", "events"}:
            self._answer(200, {"metadata": {"resourceVersion": str(self.world.version)}, "items": []})
        else:
            self._answer(404, {"kind": "Status", "message": "not found"})

    def do_POST(self) -> None:
        self._write(201)

    def do_PUT(self) -> None:
        self._write(200)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(404, {"kind": "Status", "message": "not found"})

    def _write(self, status: int) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        version = self.world.next()
        body["metadata"] |= {"uid": f"uid-{version}", "resourceVersion": str(version), "creationTimestamp": "2026-11-29T12:00:00Z"}
        name = body["metadata"]["name"]
        self.world.written[self.path if self.path.endswith(f"/{name}") else f"{self.path}/{name}"] = body
        self._answer(status, body)

    def _page(self, path: str, limit: int, start: int) -> None:
        end = min(start + limit, self.world.counts[path])
        more = {"continue": str(end)} if end < self.world.counts[path] else {}
        items = ",".join(self.world.make(path, index) for index in range(start, end))
        meta = json.dumps({"resourceVersion": "1000", **more})
        self._send(200, f'{{"metadata":{meta},"items":[{items}]}}'.encode())

    def _watch(self, path: str, seconds: int) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            if path in self.world.counts:
                version = self.world.next()
                made = self.world.make(path, number % self.world.counts[path], version)
                line = f'{{"type":"MODIFIED","object":{made}}}\n'.encode()
                number += 7
            else:
                event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.world.version)}}}
                line = json.dumps(event).encode() + b"\n"
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            except OSError:
                return
            time.sleep(CHANGE_SECONDS if path in self.world.counts else 5.0)
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: Json) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


def main() -> None:
    Handler.world = World(int(sys.argv[1]), int(sys.argv[2]))
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
