"""The journal: what must survive a restart and a change of leader, as records in 64 shards.

A record is JSON under a key. `node/<instance id>` holds what is known of one node, `round/<probe>/<group>` where a round stands, and other
parts keep theirs under their own prefix. Records are spread over shards by a hash of their key; a shard that changed is written at most
once per `SHARD_SECONDS`, as gzipped JSON. Pure state: a `JournalStore` reads and writes the shards.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA = "efa-pulse/journal/v1"
SHARDS = 64
SHARD_SECONDS = 30.0
SHARD_LIMIT = 900 * 1024
"""A ConfigMap holds 1 MiB; the rest is for its metadata."""
INFLATED_LIMIT = 64 << 20

Record = dict[str, Any]


class JournalError(ValueError):
    """A shard that cannot be read. The text says which and what is wrong."""


class JournalStore(Protocol):
    """Where shards are kept. Methods raise OSError (or a subclass of it) when the store cannot be reached."""

    def load(self) -> Mapping[int, bytes]:
        """Every stored shard by its number."""
        ...

    def save(self, shards: Mapping[int, bytes]) -> None:
        """Write these shards durably; the others stay as they are."""
        ...


def shard_of(key: str) -> int:
    """The shard of a record, 0..63. The same on every machine and in every version.

    What stands before the first `/` does not count, so that all records of one node lie together.
    """
    return hashlib.sha256(key.partition("/")[2].encode(errors="surrogatepass")).digest()[0] % SHARDS


def encode_shard(number: int, records: Mapping[str, Record]) -> bytes:
    """One shard as gzipped JSON; the same records give the same bytes."""
    document = {"schema": SCHEMA, "shard": number, "records": dict(sorted(records.items()))}
    return gzip.compress(json.dumps(document, separators=(",", ":"), allow_nan=False).encode(), compresslevel=6, mtime=0)


def decode_shard(number: int, data: bytes) -> dict[str, Record]:
    """The records of one shard. Raises JournalError when it is damaged, of another version or of another number."""
    try:
        inflater = zlib.decompressobj(wbits=31)
        plain = inflater.decompress(data, INFLATED_LIMIT)
        if inflater.unconsumed_tail or not inflater.eof:
            raise JournalError(f"shard {number} is cut or larger than {INFLATED_LIMIT} bytes")
        document = json.loads(plain)
        if document["schema"] != SCHEMA:
            raise JournalError(f"shard {number} has schema {str(document['schema'])[:60]!r}, this version reads {SCHEMA}")
        if document["shard"] != number:
            raise JournalError(f"shard {number} holds shard {document['shard']!r}: it was copied to the wrong place")
        records = document["records"]
        if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
            raise JournalError(f"shard {number} does not hold records")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, JournalError):
            raise
        raise JournalError(f"shard {number} cannot be read: {error}") from None
    return records


@dataclass
class Journal:
    """The records in memory, and which shards have to be written.

    `problems` says what could not be read at the start: those records begin anew, the others are kept.
    """

    records: dict[str, Record] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    too_large: dict[int, int] = field(default_factory=dict)
    _keys: dict[int, set[str]] = field(default_factory=dict)
    _dirty: set[int] = field(default_factory=set)
    _flying: set[int] = field(default_factory=set)
    _written: dict[int, float] = field(default_factory=dict)
    _stores: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.records:
            self._keys.setdefault(shard_of(key), set()).add(key)

    @classmethod
    def loaded(cls, shards: Mapping[int, bytes]) -> Journal:
        """A journal from what a store holds."""
        records: dict[str, Record] = {}
        problems: list[str] = []
        for number, data in sorted(shards.items()):
            try:
                found = decode_shard(number, data)
            except JournalError as error:
                problems.append(str(error))
                continue
            strays = [key for key in found if shard_of(key) != number]
            if strays:
                problems.append(f"shard {number} holds {len(strays)} records of other shards, such as {strays[0][:80]!r}")
            records.update((key, record) for key, record in found.items() if shard_of(key) == number)
        return cls(records, problems)

    def get(self, key: str) -> Record | None:
        """One record, not to be changed in place."""
        return self.records.get(key)

    def under(self, prefix: str) -> Iterator[tuple[str, Record]]:
        """Every record whose key begins with `prefix`, with what follows it, in order."""
        for key in sorted(self.records):
            if key.startswith(prefix):
                yield key[len(prefix):], self.records[key]

    def put(self, key: str, record: Record) -> None:
        """Set a record; unchanged ones cause no write."""
        if self.records.get(key) != record:
            self.records[key] = record
            self._touch(key)

    def drop(self, key: str) -> None:
        """Remove a record."""
        if self.records.pop(key, None) is not None:
            self._touch(key)

    def keep(self, prefix: str, names: Iterable[str]) -> None:
        """Remove every record under `prefix` whose rest is not among `names`."""
        wanted = set(names)
        for key in [key for key in self.records if key.startswith(prefix) and key[len(prefix):] not in wanted]:
            self.drop(key)

    @property
    def dirty(self) -> int:
        """Shards that differ from what was written, those being written included."""
        return len(self._dirty | self._flying)

    def due(self, now: float, *, most: int = SHARDS, everything: bool = False) -> dict[int, bytes]:
        """At most `most` shards to write at `now` (monotonic seconds), encoded. `everything` ignores the interval, for the service's end.

        Each must be told to `written` or `failed` afterwards; until then it is not given again. A shard that has outgrown its place is left
        out and named in `too_large`.
        """
        found: dict[int, bytes] = {}
        self.too_large = {}
        for number in sorted(self._dirty - self._flying, key=lambda number: self._written.get(number, -math.inf)):
            if len(found) >= most:
                break
            last = self._written.get(number)
            if everything or last is None or now - last >= SHARD_SECONDS:
                data = encode_shard(number, {key: self.records[key] for key in self._keys.get(number, ())})
                self._written[number] = now
                if len(data) > SHARD_LIMIT:
                    self.too_large[number] = len(data)
                    continue
                found[number] = data
                self._dirty.discard(number)
                self._flying.add(number)
        return found

    def written(self, shards: Iterable[int]) -> None:
        """These shards are stored."""
        for number in shards:
            self._flying.discard(number)
            self._stores[number] = self._stores.get(number, 0) + 1

    def owed(self) -> dict[int, int]:
        """The shards that hold changes not stored yet, each with how often it must have been stored until they are."""
        # One that is being written may have left before the change: it has to come back once more.
        return {number: self._stores.get(number, 0) + (2 if number in self._flying and number in self._dirty else 1)
                for number in self._dirty | self._flying}

    def stored(self, owed: Mapping[int, int]) -> bool:
        """Whether everything that `owed` named is stored by now."""
        return all(self._stores.get(number, 0) >= count for number, count in owed.items())

    def failed(self, shards: Iterable[int]) -> None:
        """Writing these shards failed: they are tried again after the interval."""
        numbers = set(shards)
        self._flying -= numbers
        self._dirty |= numbers

    def _touch(self, key: str) -> None:
        number = shard_of(key)
        keys = self._keys.setdefault(number, set())
        if key in self.records:
            keys.add(key)
        else:
            keys.discard(key)
        self._dirty.add(number)


def flush(journal: Journal, store: JournalStore, now: float, *, most: int = SHARDS, everything: bool = False) -> int:
    """Write what is due, at most `most` shards; returns the number of shards written.

    Raises what the store raises, and JournalError when a shard outgrew its place; both are tried again after the interval.
    """
    shards = journal.due(now, most=most, everything=everything)
    if shards:
        try:
            store.save(shards)
        except BaseException:
            journal.failed(shards)
            raise
        journal.written(shards)
    for number, size in journal.too_large.items():
        raise JournalError(f"shard {number} needs {size} bytes and {SHARD_LIMIT} fit: fewer nodes, or fewer figures kept for each")
    return len(shards)
