"""The hollow kubelet: heartbeats of its nodes, a worker for each of their pods, and the names by which pods find each other."""

from __future__ import annotations

import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from e2e.hollow.network import Names, Network
from e2e.hollow.pod import PodWorker, stamp
from e2e.hollow.settings import Settings, read

from exporter.kube.api import Api, ApiError, configuration
from exporter.kube.watch import Change, Watch

Json = dict[str, Any]
HEARTBEAT_SECONDS = 5.0
NAMES_SECONDS = 0.5
LEASE_SECONDS = 20

log = logging.getLogger(__name__)


class Kubelet:
    """Plays every node of the settings."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api, self._settings = api, settings
        self._network, self._names = Network(settings.block), Names()
        self._pulled: dict[tuple[str, str], float] = {}
        self._workers: dict[str, PodWorker] = {}
        self._addresses = {node: f"10.77.{100 + settings.block + index // 250}.{1 + index % 250}"
                           for index, node in enumerate(settings.nodes)}
        self._pods: Watch[Json] = Watch(api, "/api/v1/pods", self._mine, on_change=self._changed)
        self._slices: Watch[Json] = Watch(api, "/apis/discovery.k8s.io/v1/endpointslices", lambda one: one, on_change=self._endpoints)

    def run(self) -> None:
        """Until the process is ended."""
        threading.Thread(target=self._heartbeats, daemon=True).start()
        self._slices.start()
        self._pods.start()
        while True:
            time.sleep(1.0)

    def _mine(self, pod: Json) -> Json | None:
        return pod if pod["spec"].get("nodeName") in self._addresses else None

    def _changed(self, changes: list[Change[Json]]) -> None:
        for change in changes:
            worker = self._workers.get(change.key)
            if change.gone:
                if worker is not None:
                    worker.vanish()
                    del self._workers[change.key]
            elif worker is not None:
                worker.update(change.value)
            elif change.value["status"].get("phase") == "Pending" or not change.value["status"].get("containerStatuses"):
                node = change.value["spec"]["nodeName"]
                worker = PodWorker(self._api, self._settings, self._network, self._names, self._pulled, change.value, self._addresses[node])
                self._workers[change.key] = worker
                worker.update(change.value)

    def _endpoints(self, _: list[Change[Json]]) -> None:
        found: dict[str, list[str]] = {}
        for one in self._slices.items().values():
            meta = one["metadata"]
            service = (meta.get("labels") or {}).get("kubernetes.io/service-name")
            ready = [address for end in one.get("endpoints") or [] if (end.get("conditions") or {}).get("ready", True)
                     for address in end["addresses"]]
            if service and ready:
                found.setdefault(f"{service}.{meta['namespace']}", []).extend(ready)
        self._names.services(found)

    def _heartbeats(self) -> None:
        while True:
            for node, address in self._addresses.items():
                try:
                    self._beat(node, address)
                except ApiError as error:
                    log.info("heartbeat of %s: %s", node, error)
            time.sleep(HEARTBEAT_SECONDS)

    def _beat(self, node: str, address: str) -> None:
        now = time.time()
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "hollow", "lastHeartbeatTime": stamp(now)}]
        conditions += [{"type": kind, "status": "False", "reason": "Fine", "message": "hollow", "lastHeartbeatTime": stamp(now)}
                       for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")]
        images = sorted({image for (where, image), at in self._pulled.items() if where == node and at <= time.monotonic()})
        addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": node}]
        status = {"conditions": conditions, "addresses": addresses,
                  "images": [{"names": [image], "sizeBytes": 1 << 30} for image in images]}
        self._api.request("PATCH", f"/api/v1/nodes/{node}/status", body={"status": status},
                          content_type="application/strategic-merge-patch+json")
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node, "namespace": "kube-node-lease"},
                 "spec": {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS,
                          "renewTime": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"}}
        self._api.request("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}",
                          query={"fieldManager": "hollow", "force": True}, body=lease, content_type="application/apply-patch+yaml")


def main() -> None:
    """See the module."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(threadName)s %(message)s", stream=sys.stderr)
    settings = read(Path(sys.argv[2]))
    Kubelet(Api(configuration(Path(sys.argv[1]))), settings).run()
