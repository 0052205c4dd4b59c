"""The ConfigMap that owns every Job of an installation: who removes it removes them, and no owner lies in another namespace."""

from __future__ import annotations

import threading
import time

from exporter.config.kubernetes import Kubernetes
from exporter.kube.api import Api, ApiError
from exporter.launch.manifest import Owner

TRUST_SECONDS = 300.0


class Anchor:
    """Finds the ConfigMap, makes it where it is missing and that is allowed, and remembers it for a while."""

    def __init__(self, api: Api, config: Kubernetes) -> None:
        self._api, self._name, self._install = api, config.anchor, config.install
        self._path = f"/api/v1/namespaces/{config.probe_namespace}/configmaps"
        self._found: Owner | None = None
        self._since = 0.0
        self._lock = threading.Lock()

    def owner(self) -> Owner:
        """The owner. Raises ApiError when it is neither there nor can be made."""
        with self._lock:
            if self._found is None or time.monotonic() - self._since > TRUST_SECONDS:
                self._found, self._since = self._find(), time.monotonic()
            return self._found

    def forget(self) -> None:
        """Look anew next time."""
        with self._lock:
            self._found = None

    def _find(self) -> Owner:
        try:
            found = self._api.get(f"{self._path}/{self._name}")
        except ApiError as error:
            if not error.not_found:
                raise
            labels = {"app.kubernetes.io/name": "efa-pulse", "app.kubernetes.io/instance": self._install}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self._name, "labels": labels},
                    "data": {"about": "Owns the Jobs of efa-pulse: deleting it deletes them."}}
            try:
                found = self._api.create(self._path, body)
            except ApiError as refused:
                if not refused.exists:
                    why = f"ConfigMap {self._name}, the owner of probe Jobs, is missing and cannot be made: {refused}"
                    raise ApiError(refused.status, why, refused.reason) from None
                found = self._api.get(f"{self._path}/{self._name}")
        return Owner(self._name, str(found["metadata"]["uid"]))
