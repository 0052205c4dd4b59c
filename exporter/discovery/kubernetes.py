"""Engine pods of the cluster, followed by one watch: by role label, by LeaderWorkerSet, or by what an InferencePool selects."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from exporter.config.kubernetes import Kubernetes
from exporter.config.pd import PdServing
from exporter.discovery.model import EnginePod, Found
from exporter.discovery.reduce import LWS_NAME, RoleOf, engine_pod, role_by_label, role_by_set
from exporter.kube.api import Api, ApiError, Json
from exporter.kube.watch import Watch

POOLS = ("/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools/{}",
         "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{}/inferencepools/{}")
"""Where an InferencePool lies, the present API first."""
POOL_SECONDS = 60.0
PODS_LIMIT = 2000


class KubernetesPods:
    """Follows the engine pods of one target."""

    def __init__(self, api: Api, serving: PdServing, kube: Kubernetes) -> None:
        self._api, self._serving, self._efa = api, serving, kube.efa_resource
        self._watch: Watch[EnginePod] | None = None
        self._selector: Mapping[str, str] | None = None
        self._looked = -POOL_SECONDS
        self._trouble = ""
        self._lock = threading.Lock()

    def found(self) -> Found:
        """What there is now. Asks the API server at most for the pool, once in a while."""
        with self._lock:
            self._follow()
            watch = self._watch
        if watch is None:
            return Found((), self._trouble, seen=False)
        pods = sorted(watch.items().values(), key=lambda pod: pod.name)
        trouble = self._trouble or watch.error
        if len(pods) > PODS_LIMIT:
            trouble = f"more than {PODS_LIMIT} engine pods: only the first are looked at"
        return Found(tuple(pods[:PODS_LIMIT]), trouble, watch.synced)

    def close(self) -> None:
        """Follow nothing any more."""
        if self._watch is not None:
            self._watch.close()

    def _follow(self) -> None:
        """Open the watch, or another one when the pool selects other pods."""
        source = self._serving.source
        if source.inference_pool is None:
            if self._watch is None:
                self._open()
            return
        if time.monotonic() - self._looked < POOL_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            selector = self._pool(source.inference_pool.namespace, source.inference_pool.name)
        except ApiError as error:
            self._trouble = f"InferencePool {source.inference_pool.name}: {error.message}"
            return
        self._trouble = "" if selector else f"InferencePool {source.inference_pool.name} selects nothing"
        if selector and selector != self._selector:
            self.close()
            self._selector = selector
            self._open()

    def _pool(self, namespace: str, name: str) -> dict[str, str]:
        """The labels that a pool selects by. Raises ApiError."""
        pool: Json = {}
        for path in POOLS:
            try:
                pool = self._api.get(path.format(namespace, name))
                break
            except ApiError as error:
                if not error.not_found or path == POOLS[-1]:
                    raise
        selector = (pool.get("spec") or {}).get("selector") or {}
        labels = selector.get("matchLabels", selector)  # the older API has the labels themselves
        return {str(key): str(value) for key, value in labels.items() if isinstance(value, str)}

    def _open(self) -> None:
        source = self._serving.source
        role: RoleOf
        if source.labels is not None:
            namespace, role = source.labels.namespace, role_by_label(source.labels.role_label)
            selector = ",".join([source.labels.role_label, *(f"{key}={value}" for key, value in source.labels.selector.items())])
        elif source.leader_worker_sets is not None:
            sets = source.leader_worker_sets
            namespace, role = sets.namespace, role_by_set(sets.prefill, sets.decode)
            selector = f"{LWS_NAME} in ({sets.prefill},{sets.decode})"
        elif source.inference_pool is not None:
            namespace, role = source.inference_pool.namespace, role_by_label(source.inference_pool.role_label)
            selector = ",".join(f"{key}={value}" for key, value in (self._selector or {}).items())
        else:
            raise ValueError("this source has no pods in the cluster")
        self._watch = Watch(self._api, f"/api/v1/namespaces/{namespace}/pods",
                            lambda pod: engine_pod(pod, role, self._serving, efa_resource=self._efa), query={"labelSelector": selector})
        self._watch.start()
