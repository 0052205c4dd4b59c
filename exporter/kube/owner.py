"""The ConfigMap that owns what the service keeps in its own namespace, so that removing the installation removes it.

Kubernetes deletes an object whose owner is gone, also one that was written just after the owner went: nothing is left behind, and no
program has to run at the end.
"""

from __future__ import annotations

import logging
import threading
import time

from exporter.kube.api import Api, ApiError, Json

TRUST_SECONDS = 300.0

log = logging.getLogger(__name__)


class OwnObjects:
    """The `ownerReferences` of the Lease and the journal. Without a `name`, or while it is missing, they have no owner."""

    def __init__(self, api: Api, namespace: str, name: str | None) -> None:
        self._api, self._name = api, name
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        self._found: list[Json] = []
        self._looked: float | None = None
        self._lock = threading.Lock()

    def references(self) -> list[Json]:
        """What to put under `metadata.ownerReferences`. Asks the API server at most once in five minutes; never raises."""
        if self._name is None:
            return []
        with self._lock:
            if self._looked is None or time.monotonic() - self._looked > TRUST_SECONDS:
                self._look(self._name)
            return list(self._found)

    def _look(self, name: str) -> None:
        try:
            uid = str(self._api.get(self._path)["metadata"]["uid"])
        except ApiError as error:
            # A known owner stays: an object whose owner is gone is to go too.
            log.warning("ConfigMap %s, which is to own the Lease and the journal, cannot be read: %s", name, error)
        else:
            self._found = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}]
        self._looked = time.monotonic()
