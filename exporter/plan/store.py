"""Where the journal lives without a cluster: one JSON file that a person can read, replaced as a whole; or memory, for simulations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from exporter import durable
from exporter.plan.journal import SCHEMA, JournalError, Record, decode_shard, encode_shard, shard_of


class FileStore:
    """The journal in one file. A crash at any moment leaves the old file or the new one, never a part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[int, dict[str, Record]] = {}

    def load(self) -> Mapping[int, bytes]:
        """Every shard; none when there is no file yet. Raises JournalError for a file that is no journal, OSError when unreadable."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        try:
            document = json.loads(text)
            if document["schema"] != SCHEMA:
                raise JournalError(f"{self._path} has schema {str(document['schema'])[:60]!r}, this version reads {SCHEMA}")
            records: dict[str, Record] = document["records"]
            self._records = {}
            for key, record in records.items():
                self._records.setdefault(shard_of(key), {})[key] = record
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, JournalError):
                raise
            raise JournalError(f"{self._path} is no journal: {error}; move it away to begin anew") from None
        return {number: encode_shard(number, kept) for number, kept in self._records.items()}

    def save(self, shards: Mapping[int, bytes]) -> None:
        """Replace these shards in the file. Raises OSError when it cannot be written; the old file is then untouched."""
        merged = {**self._records, **{number: decode_shard(number, data) for number, data in shards.items()}}
        records = {key: record for number in sorted(merged) for key, record in sorted(merged[number].items())}
        durable.replace(self._path, json.dumps({"schema": SCHEMA, "records": records}, separators=(",", ":")).encode())
        self._records = merged


class MemoryStore:
    """The journal in memory. `writes` counts saved shards."""

    def __init__(self) -> None:
        self.shards: dict[int, bytes] = {}
        self.writes = 0

    def load(self) -> Mapping[int, bytes]:
        """Every shard."""
        return dict(self.shards)

    def save(self, shards: Mapping[int, bytes]) -> None:
        """Keep these shards."""
        self.shards.update(shards)
        self.writes += len(shards)
