"""What the service keeps in its own namespace names the ConfigMap with which it is to go."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from exporter.config.kubernetes import Leader
from exporter.kube.api import Api, ApiError
from exporter.kube.journal import ConfigMapJournal
from exporter.kube.owner import OwnObjects
from exporter.leader import Election

Json = dict[str, Any]
OWNER = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "state", "uid": "u1"}]


class Recorded(Api):
    """Keeps what is written; `state` is the owner, None while it is missing."""

    def __init__(self, state: Json | None) -> None:
        self.state, self.asked = state, 0
        self.written: list[Json] = []

    def get(self, path: str, query: Any = None, *, timeout: float | None = None) -> Json:
        if path.endswith("/state"):
            self.asked += 1
            if self.state is not None:
                return self.state
        raise ApiError(404, "not there", "NotFound")

    def create(self, path: str, body: Json, *, timeout: float | None = None) -> Json:
        self.written.append(json.loads(json.dumps(body)))
        return {**body, "metadata": {**body["metadata"], "resourceVersion": str(len(self.written))}}

    def replace(self, path: str, body: Json, *, timeout: float | None = None) -> Json:
        return self.create(path, body)


@pytest.fixture
def there() -> Recorded:
    return Recorded({"metadata": {"uid": "u1"}})


def test_every_write_of_a_shard_and_the_lease_name_the_owner(there: Recorded) -> None:
    journal = ConfigMapJournal(there, namespace="efa-pulse", name="journal", owner="state")
    journal.save({3: b"a"})
    journal.save({3: b"b"})
    Election(there, Leader(), namespace="efa-pulse", identity="me", owner="state").turn()
    assert [one["metadata"].get("ownerReferences") for one in there.written] == [OWNER, OWNER, OWNER]
    assert there.asked == 2, "once for the journal, once for the election"


@pytest.mark.parametrize("make", [
    lambda api: OwnObjects(api, "efa-pulse", None), lambda api: OwnObjects(api, "efa-pulse", "state"),
], ids=["none is named", "it is missing"])
def test_without_an_owner_things_are_written_all_the_same(make: Callable[[Api], OwnObjects]) -> None:
    assert make(Recorded(None)).references() == []


def test_an_owner_that_is_gone_stays_the_owner(there: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.kube.owner.TRUST_SECONDS", -1.0)
    own = OwnObjects(there, "efa-pulse", "state")
    assert own.references() == OWNER
    there.state = None
    assert own.references() == OWNER, "what is written during an uninstall is to go too"
