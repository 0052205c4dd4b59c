"""Which runs are durable: no Job goes before the shards that its run touched are stored."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.ledger import KEEP_SECONDS, Ledger
from exporter.plan.journal import Journal, flush
from exporter.plan.store import MemoryStore

AT = 1_790_000_000.0


class FailingStore(MemoryStore):
    def save(self, shards: Mapping[int, bytes]) -> None:
        raise OSError("away")


def taken_in(ledger: Ledger, run_id: str = "nixl-1") -> None:
    ledger.journal.put("node/i-1", {"seen": run_id})
    ledger.finished(run_id, AT)


def test_a_run_is_durable_when_its_shards_are_stored_and_only_once() -> None:
    ledger = Ledger(Journal())
    taken_in(ledger)
    assert list(ledger.durable(AT)) == []
    flush(ledger.journal, MemoryStore(), 0.0)
    assert list(ledger.durable(AT)) == ["nixl-1"]
    assert list(ledger.durable(AT)) == []


def test_a_store_that_fails_leaves_it_pending() -> None:
    ledger = Ledger(Journal())
    taken_in(ledger)
    with pytest.raises(OSError, match="away"):
        flush(ledger.journal, FailingStore(), 0.0)
    assert list(ledger.durable(AT)) == []
    flush(ledger.journal, MemoryStore(), 31.0)
    assert list(ledger.durable(AT)) == ["nixl-1"]


def test_a_change_while_its_shard_is_being_written_has_to_be_written_again() -> None:
    ledger = Ledger(Journal())
    ledger.journal.put("node/i-1", {"seen": "before"})
    under_way = ledger.journal.due(0.0)
    taken_in(ledger)
    ledger.journal.written(under_way)
    assert list(ledger.durable(AT)) == []
    flush(ledger.journal, MemoryStore(), 31.0)
    assert list(ledger.durable(AT)) == ["nixl-1"]


def test_the_next_leader_knows_the_runs_of_the_one_before() -> None:
    store = MemoryStore()
    ledger = Ledger(Journal())
    taken_in(ledger)
    assert not Ledger(Journal.loaded(store.load())).knows("nixl-1")
    flush(ledger.journal, store, 0.0)
    assert Ledger(Journal.loaded(store.load())).knows("nixl-1")


def test_runs_are_forgotten_after_their_jobs_are_gone_for_sure() -> None:
    ledger = Ledger(Journal())
    taken_in(ledger)
    flush(ledger.journal, MemoryStore(), 0.0)
    list(ledger.durable(AT))
    list(ledger.durable(AT + KEEP_SECONDS - 1))
    assert ledger.knows("nixl-1")
    list(ledger.durable(AT + KEEP_SECONDS + 400))
    assert not ledger.knows("nixl-1")
