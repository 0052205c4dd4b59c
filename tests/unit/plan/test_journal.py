"""The journal: what is put survives, shard by shard, however a write or a file fails."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.plan import journal as journals
from exporter.plan.journal import SHARD_SECONDS, SHARDS, Journal, JournalError, decode_shard, encode_shard, flush, shard_of
from exporter.plan.store import FileStore, MemoryStore

KEYS = [f"node/i-{index:04x}" for index in range(300)]


def filled() -> Journal:
    journal = Journal()
    for index, key in enumerate(KEYS):
        journal.put(key, {"n": index})
    return journal


class Broken(MemoryStore):
    """A store that cannot be reached."""

    def save(self, shards: Mapping[int, bytes]) -> None:
        raise OSError("unreachable")


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.text(), st.integers() | st.text() | st.none()), max_size=20),
       st.integers(0, SHARDS - 1))
def test_a_shard_is_read_as_it_was_written_and_equal_records_give_equal_bytes(records: dict[str, dict[str, Any]], number: int) -> None:
    data = encode_shard(number, records)
    assert decode_shard(number, data) == records
    assert encode_shard(number, dict(reversed(records.items()))) == data


def test_records_are_spread_over_all_shards_and_those_of_a_node_lie_together() -> None:
    assert len({shard_of(key) for key in KEYS}) > SHARDS * 0.9
    assert 0 <= shard_of("node/\ud800") < SHARDS  # JSON can hold half a character: no reason not to start
    assert all(shard_of(f"suspect/{key.split('/')[1]}") == shard_of(key) for key in KEYS)


def test_everything_comes_back_from_the_store() -> None:
    journal, store = filled(), MemoryStore()
    assert flush(journal, store, 0.0) == len({shard_of(key) for key in KEYS})
    again = Journal.loaded(store.load())
    assert dict(again.under("node/")) == {key[5:]: {"n": index} for index, key in enumerate(KEYS)}
    assert (again.dirty, again.problems) == (0, [])


def test_a_shard_is_written_at_most_once_per_interval_and_never_when_unchanged() -> None:
    journal, store = filled(), MemoryStore()
    flush(journal, store, 0.0)
    journal.put(KEYS[0], {"n": 0})
    assert journal.dirty == 0
    journal.put(KEYS[0], {"n": 1})
    assert flush(journal, store, SHARD_SECONDS - 1) == 0
    journal.put(KEYS[0], {"n": 2})
    assert flush(journal, store, SHARD_SECONDS) == 1
    assert Journal.loaded(store.load()).get(KEYS[0]) == {"n": 2}


def test_at_the_end_everything_is_written_at_once() -> None:
    journal, store = filled(), MemoryStore()
    flush(journal, store, 0.0)
    journal.put(KEYS[0], {"n": 9})
    assert flush(journal, store, 1.0, everything=True) == 1


def test_a_few_shards_at_a_time_and_the_longest_waiting_first() -> None:
    journal, store = filled(), MemoryStore()
    turns = 0
    while journal.dirty:
        assert flush(journal, store, 0.0, most=8) <= 8
        turns += 1
    assert turns == SHARDS // 8


def test_a_store_that_fails_is_tried_again_after_the_interval_and_nothing_is_lost() -> None:
    journal, store = filled(), MemoryStore()
    with pytest.raises(OSError, match="unreachable"):
        flush(journal, Broken(), 0.0)
    assert flush(journal, store, 1.0) == 0
    flush(journal, store, SHARD_SECONDS)
    assert len(dict(Journal.loaded(store.load()).under("node/"))) == len(KEYS)


def test_what_changes_while_a_shard_is_being_written_is_written_next() -> None:
    journal = filled()
    shards = journal.due(0.0)
    journal.put(KEYS[0], {"n": "late"})
    journal.written(shards)
    assert journal.dirty == 1
    again = journal.due(SHARD_SECONDS)
    assert decode_shard(shard_of(KEYS[0]), again[shard_of(KEYS[0])])[KEYS[0]] == {"n": "late"}


def test_dropped_records_are_gone_from_the_store() -> None:
    journal, store = filled(), MemoryStore()
    journal.keep("node/", [KEYS[0][5:]])
    flush(journal, store, 0.0)
    assert list(Journal.loaded(store.load()).records) == [KEYS[0]]


def test_a_shard_that_outgrew_its_place_is_named_and_the_others_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, store = filled(), MemoryStore()
    journal.put("node/large", {"noise": [hash((i, "x")) for i in range(3000)]})
    monkeypatch.setattr(journals, "SHARD_LIMIT", 4096)
    with pytest.raises(JournalError, match=rf"shard {shard_of('node/large')} needs \d+ bytes and 4096 fit"):
        flush(journal, store, 0.0)
    assert len(store.shards) == len({shard_of(key) for key in KEYS} - {shard_of("node/large")})


DAMAGED = [
    (b"", "cut"), (b"not gzip", "cannot be read"), (encode_shard(1, {"a/b": {}})[:-6], "cut"), (encode_shard(2, {}), "wrong place"),
    (gzip.compress(b'{"schema": "efa-pulse/journal/v9", "shard": 1, "records": {}}'), "has schema 'efa-pulse/journal/v9'"),
    (gzip.compress(b'{"schema": "efa-pulse/journal/v1", "shard": 1, "records": {"a": 1}}'), "does not hold records"),
]


@pytest.mark.parametrize(("data", "says"), DAMAGED)
def test_a_damaged_shard_is_refused_with_its_number(data: bytes, says: str) -> None:
    with pytest.raises(JournalError, match=rf"shard 1.*{says}"):
        decode_shard(1, data)


def test_one_damaged_shard_costs_its_own_records_only() -> None:
    journal, store = filled(), MemoryStore()
    flush(journal, store, 0.0)
    store.shards[shard_of(KEYS[0])] = b"broken"
    again = Journal.loaded(store.load())
    assert len(again.problems) == 1
    assert set(again.records) == {key for key in KEYS if shard_of(key) != shard_of(KEYS[0])}


def test_the_file_holds_plain_json_and_survives_a_crash_at_any_write(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.json"
    store = FileStore(path)
    assert store.load() == {}
    journal = filled()
    flush(journal, store, 0.0)
    assert json.loads(path.read_text())["records"][KEYS[7]] == {"n": 7}
    journal.put(KEYS[7], {"n": 70})
    flush(journal, store, SHARD_SECONDS)
    assert Journal.loaded(FileStore(path).load()).get(KEYS[7]) == {"n": 70}
    assert [each.name for each in path.parent.iterdir()] == ["journal.json"]


def test_a_file_that_cannot_be_written_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.json"
    store = FileStore(path)
    journal = filled()
    flush(journal, store, 0.0)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    journal.put(KEYS[0], {"n": -1})
    with pytest.raises(OSError, match="No space left"):
        flush(journal, store, SHARD_SECONDS)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["journal.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other/v9", "records": {}}',
                                  '{"schema": "efa-pulse/journal/v1", "records": 3}'])
def test_a_file_that_is_no_journal_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    with pytest.raises(JournalError, match=r"journal\.json"):
        FileStore(path).load()
    assert path.read_text() == text
