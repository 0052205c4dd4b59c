"""The journal's shards in ConfigMaps of the real API server."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from e2e.installed import Installation

from exporter.kube.journal import ConfigMapJournal, JournalStoreError
from exporter.plan.journal import SHARD_LIMIT, Journal, JournalStore, encode_shard, flush, shard_of

Install = Callable[..., Installation]


@pytest.fixture
def here(install: Install) -> Installation:
    return install()


def store(here: Installation) -> ConfigMapJournal:
    return ConfigMapJournal(here.api, namespace=here.config.namespace, name="efa-pulse-journal")


def test_what_was_written_is_read_again_by_the_next_one(here: Installation) -> None:
    first: JournalStore = store(here)
    assert first.load() == {}
    journal = Journal()
    for number in range(300):
        journal.put(f"node/i-{number:017x}", {"healthy": True, "at": 1.5 * number})
    before = here.api.requests_by_method()
    assert flush(journal, first, now=0.0) == 64
    after = here.api.requests_by_method()
    assert sum(after.values()) - sum(before.values()) == 64, "one request a shard"
    again = Journal.loaded(store(here).load())
    assert again.problems == []
    assert again.records == journal.records


def test_only_shards_that_changed_are_written(here: Installation) -> None:
    one = store(here)
    journal = Journal()
    journal.put("node/a", {"n": 1})
    flush(journal, one, now=0.0)
    journal.put("node/a", {"n": 2})
    assert flush(journal, one, now=10.0) == 0, "a shard is written at most every 30 s"
    assert flush(journal, one, now=31.0) == 1
    assert Journal.loaded(store(here).load()).get("node/a") == {"n": 2}
    assert len(here.cluster.items(f"/api/v1/namespaces/{here.config.namespace}/configmaps?labelSelector=efa-pulse.io/journal")) == 1


def test_one_that_no_longer_leads_does_not_overwrite_the_other(here: Installation) -> None:
    old, new = store(here), store(here)
    number = shard_of("node/a")
    old.save({number: encode_shard(number, {"node/a": {"n": 1}})})
    new.load()
    new.save({number: encode_shard(number, {"node/a": {"n": 2}})})
    with pytest.raises(JournalStoreError, match="changed by another replica"):
        old.save({number: encode_shard(number, {"node/a": {"n": 3}})})
    assert Journal.loaded(store(here).load()).get("node/a") == {"n": 2}
    old.load()
    old.save({number: encode_shard(number, {"node/a": {"n": 4}})})
    assert Journal.loaded(store(here).load()).get("node/a") == {"n": 4}


def test_a_shard_that_somebody_deleted_is_made_anew(here: Installation) -> None:
    one = store(here)
    one.save({3: b"x"})
    here.cluster.delete(f"/api/v1/namespaces/{here.config.namespace}/configmaps/efa-pulse-journal-03")
    one.save({3: b"y"})
    assert store(here).load() == {3: b"y"}


def test_a_full_shard_fits_a_config_map_and_a_larger_one_is_refused_with_a_reason(here: Installation) -> None:
    one = store(here)
    one.save({63: os.urandom(SHARD_LIMIT)})
    assert len(store(here).load()[63]) == SHARD_LIMIT
    with pytest.raises(JournalStoreError, match=r"[Tt]oo (long|large)"):
        one.save({62: os.urandom(2 * SHARD_LIMIT)})


def test_an_api_server_that_is_away_is_an_os_error(here: Installation) -> None:
    one = store(here)
    one.save({1: b"x"})
    here.cluster.kill("kube-apiserver")
    try:
        with pytest.raises(OSError, match="not written"):
            one.save({1: b"y"})
        with pytest.raises(OSError, match="cannot be read"):
            one.load()
    finally:
        here.cluster.restart("kube-apiserver")
        here.cluster.await_api()
    one.save({1: b"z"})
    assert store(here).load() == {1: b"z"}
