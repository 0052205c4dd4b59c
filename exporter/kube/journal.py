"""The journal's store in a cluster: each shard is one ConfigMap, `<name>-00` to `<name>-3f`, its bytes under one binary key.

A write carries the version that this store last saw: when another replica has written in between, the newer state is not overwritten but
the write is refused, and `load` must be called again by whoever leads now. One write is one request.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping

from exporter.kube.api import Api, ApiError, Json
from exporter.kube.owner import OwnObjects

KEY = "shard"
PAGE = 16
LABEL = "efa-pulse.io/journal"

log = logging.getLogger(__name__)


class JournalStoreError(OSError):
    """The store could not be reached, or somebody else wrote to it. The text says which."""


class ConfigMapJournal:
    """See `exporter.plan.journal.JournalStore`."""

    def __init__(self, api: Api, *, namespace: str, name: str, owner: str | None = None) -> None:
        """`owner`: the ConfigMap with which every shard is to go."""
        self._api, self._name = api, name
        self._owner = OwnObjects(api, namespace, owner)
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._versions: dict[int, str] = {}

    def load(self) -> dict[int, bytes]:
        """Every stored shard. One that is damaged comes back as its bytes are, for the reader to refuse. Raises JournalStoreError."""
        found: dict[int, bytes] = {}
        versions: dict[int, str] = {}
        query: dict[str, str | int | bool] = {"labelSelector": f"{LABEL}={self._name}", "limit": PAGE}
        try:
            while True:
                page = self._api.get(self._path, query)
                for one in page.get("items") or []:
                    number = self._number(str(one["metadata"]["name"]))
                    if number is not None:
                        found[number] = _bytes(one)
                        versions[number] = str(one["metadata"]["resourceVersion"])
                meta = page.get("metadata") or {}
                if not meta.get("continue"):
                    break
                query["continue"] = meta["continue"]
        except ApiError as error:
            raise JournalStoreError(f"the journal cannot be read: {error}") from None
        self._versions = versions
        return found

    def save(self, shards: Mapping[int, bytes]) -> None:
        """Write these shards. Raises JournalStoreError after trying each of them."""
        problems = [problem for number, data in sorted(shards.items()) if (problem := self._save(number, data))]
        if problems:
            raise JournalStoreError(f"{len(problems)} of {len(shards)} shards of the journal were not written: {problems[0]}")

    def _save(self, number: int, data: bytes) -> str | None:
        name = f"{self._name}-{number:02x}"
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap",
                      "metadata": {"name": name, "labels": {LABEL: self._name, "app.kubernetes.io/name": "efa-pulse"}},
                      "binaryData": {KEY: base64.b64encode(data).decode()}}
        if owners := self._owner.references():
            body["metadata"]["ownerReferences"] = owners
        version = self._versions.get(number)
        try:
            if version is None:
                made = self._api.create(self._path, body)
            else:
                body["metadata"]["resourceVersion"] = version
                made = self._api.replace(f"{self._path}/{name}", body)
        except ApiError as error:
            if error.not_found and version is not None:
                del self._versions[number]  # somebody deleted it: it is made anew
                return self._save(number, data)
            if error.exists or error.conflict:
                return f"{name} was changed by another replica"
            return self._after_unknown(number, name, data, error) if error.unknown_effect else str(error)
        self._versions[number] = str(made["metadata"]["resourceVersion"])
        return None

    def _after_unknown(self, number: int, name: str, data: bytes, error: ApiError) -> str | None:
        """A write without an answer may have taken effect: then what is stored is what was written."""
        try:
            one = self._api.get(f"{self._path}/{name}")
        except ApiError:
            return str(error)
        if _bytes(one) != data:
            return str(error)
        self._versions[number] = str(one["metadata"]["resourceVersion"])
        return None

    def _number(self, name: str) -> int | None:
        head, _, tail = name.rpartition("-")
        try:
            return int(tail, 16) if head == self._name and len(tail) == 2 else None
        except ValueError:
            return None


def _bytes(one: Json) -> bytes:
    try:
        return base64.b64decode((one.get("binaryData") or {}).get(KEY, ""), validate=True)
    except (binascii.Error, ValueError):
        return b""
