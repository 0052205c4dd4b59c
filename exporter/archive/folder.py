"""An archive folder and its one owner: results are appended and synced, files are rolled, torn ends repaired, the oldest files removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from exporter import durable
from exporter.archive import segments
from exporter.archive.index import FILE, Index, Row
from exporter.archive.record import Record, line_of, parse
from exporter.archive.segments import Name

LOCK, WRITER = "lock", "writer"
HELD_OPEN = 4
"""Days of results that have an open file at the same time."""


class LockedError(OSError):
    """Another process writes this folder. The text says which folder."""


class FullError(OSError):
    """What is not uploaded yet fills the folder. The text says what to do."""


class Folder:
    """See the module. Everything here belongs to one thread. `fresh` tells that nothing was known here before.

    Raises LockedError when another process owns it, OSError when it cannot be written.
    """

    def __init__(self, path: Path, cluster: str, *, keep: int, segment: int, upload: bool, clock: Callable[[], float]) -> None:
        self.path, self.cluster = path, cluster
        self._keep, self._segment, self._upload, self._clock = keep, segment, upload, clock
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise LockedError(f"another process writes the archive {path}: give each service a folder of its own") from None
        self._open: dict[str, tuple[Name, BinaryIO, float]] = {}
        self._sizes: dict[Name, int] = {}
        self.cut = 0
        try:
            self._writer, self.fresh = _writer(path / WRITER)
            self.index = self._opened()
            self._number = 1 + max((name.number for name in self._sizes if name.writer == self._writer), default=0)
        except BaseException:
            self._lock.close()
            raise

    def close(self, *, discard_index: bool = False) -> None:
        """Close it and let others have it. `discard_index`: it is not to be trusted, whoever opens the folder next makes a new one."""
        self.seal()
        try:
            self.index.close()
            if discard_index:
                _drop_index(self.path)
        finally:
            self._lock.close()

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())

    def append(self, records: Sequence[Record]) -> list[Record]:
        """Add records; returns those that were not there before. When this returns they are on disk.

        Raises FullError when what is not uploaded fills the folder, OSError when it cannot be written, ValueError for no record.
        """
        new = list({str(one["run_id"]): one for one in records if not self.index.knows(str(one["run_id"]))}.values())
        by_day: dict[str, list[Record]] = {}
        for one in new:
            by_day.setdefault(segments.day(float(one["finished"])), []).append(one)
        for date, mine in by_day.items():
            self._append(date, mine)
        return new

    def seal(self, *, older: float | None = None) -> list[Name]:
        """End the open files, with `older` only those begun before that time (Unix seconds). Returns their names."""
        ended = []
        for date, (name, file, begun) in list(self._open.items()):
            if older is None or begun < older:
                file.close()
                del self._open[date]
                ended.append(name)
        return ended

    def owed(self) -> list[Name]:
        """Ended segments that are not uploaded yet, oldest first."""
        being_written = {name for name, _, _ in self._open.values()}
        return [one.name for one in self.index.segments() if not one.uploaded and one.name not in being_written]

    def read(self, name: Name) -> bytes:
        """The whole lines of an ended segment."""
        data = (self.path / str(name)).read_bytes()
        return data[:data.rfind(b"\n") + 1]

    def adopt(self, name: Name, data: bytes) -> None:
        """Take in a segment that S3 holds. Runs of ours that it holds too leave our own segments, if those are not uploaded yet."""
        path = self.path / str(name)
        if path.exists():
            self.index.uploaded(name)
            return
        durable.replace(path, data)
        self._sizes[name] = len(data)
        found = list(segments.lines(path))
        ours: dict[Name, list[str]] = {}
        kept = {one.name: one.uploaded for one in self.index.segments()}
        for _, _, record in found:
            place = self.index.place_of(str(record["run_id"]))
            known = Name.parse(place) if place is not None else None
            if known is not None and not kept.get(known, True):
                ours.setdefault(known, []).append(str(record["run_id"]))
        for other, runs in ours.items():
            self._remove(other, set(runs))
        with self.index.together():
            self.index.add(name, found, len(data))
            self.index.uploaded(name)

    def prune(self, room: int = 0) -> int:
        """Remove the oldest files until `room` bytes fit below the limit, never one that is still to be uploaded. Returns how many went."""
        gone = 0
        held = {name for name, _, _ in self._open.values()}
        for one in self.index.segments():
            if self.size + room <= self._keep:
                break
            if one.name in held or (self._upload and not one.uploaded):
                continue
            with contextlib.suppress(FileNotFoundError):
                (self.path / str(one.name)).unlink()
            with self.index.together():
                self.index.forget(one.name)
            self._sizes.pop(one.name, None)
            with contextlib.suppress(OSError):
                (self.path / str(one.name)).parent.rmdir()
            gone += 1
        return gone

    def _append(self, date: str, records: Sequence[Record]) -> None:
        lines = [line_of(one) for one in records]
        size = sum(map(len, lines))
        if self.size + size > self._keep:
            self.prune(size)
            if self._upload and self.size + size > self._keep:
                raise FullError(f"results that are not uploaded fill {self.path}, {self._keep} bytes: raise archive.keep, or see why S3 "
                                "cannot be written")
        name, file = self._file(date)
        offset = self._sizes[name]
        try:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            # Whatever part of it arrived must not stay before the next line.
            del self._open[date]
            with contextlib.suppress(OSError):
                file.close()
            os.truncate(self.path / str(name), offset)
            raise
        found = []
        for record, line in zip(records, lines, strict=True):
            found.append((offset, len(line), record))
            offset += len(line)
        self._sizes[name] = offset
        with self.index.together():
            self.index.add(name, found, offset)

    def _file(self, date: str) -> tuple[Name, BinaryIO]:
        if date in self._open:
            name, file, _ = self._open[date]
            if self._sizes[name] < self._segment:
                return name, file
            file.close()
            del self._open[date]
        while len(self._open) >= HELD_OPEN:
            self._open.pop(min(self._open))[1].close()
        now = self._clock()
        name = Name.new(self.cluster, date, now, self._writer, self._number)
        self._number += 1
        path = self.path / str(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab", buffering=0)
        durable.sync_folder(path.parent)
        self._open[date] = (name, file, now)
        self._sizes[name] = 0
        return name, file

    def _remove(self, name: Name, runs: set[str]) -> None:
        """Write one of our segments anew without these runs."""
        for date, (mine, file, _) in list(self._open.items()):
            if mine == name:
                file.close()
                del self._open[date]
        path = self.path / str(name)
        kept = [line_of(record) for _, _, record in segments.lines(path) if record["run_id"] not in runs]
        durable.replace(path, b"".join(kept))
        with self.index.together():
            self.index.forget(name)
            self._sizes[name] = sum(map(len, kept))
            self.index.add(name, list(segments.lines(path)), self._sizes[name])

    def _opened(self) -> Index:
        """The index, brought up to what the files hold; a damaged one is begun anew."""
        # Without an index it is not known what S3 holds.
        self.fresh = self.fresh or not (self.path / FILE).exists()
        try:
            index = Index(self.path / FILE)
            self._catch_up(index)
        except sqlite3.DatabaseError:
            _drop_index(self.path)
            index = Index(self.path / FILE)
            self._catch_up(index)
            self.fresh = True
        return index

    def _catch_up(self, index: Index) -> None:
        known = {one.name: one for one in index.segments()}
        there = segments.find(self.path)
        for name in known.keys() - set(there):
            with index.together():
                index.forget(name)
        for name in there:
            path = self.path / str(name)
            size = path.stat().st_size
            if name not in known or known[name].size != size:
                self.cut += segments.repair(path)
                size = path.stat().st_size
                if name in known and known[name].size > size:  # the file lost its end: what the index says of it does not hold
                    with index.together():
                        index.forget(name)
                catch_up(index, self.path, name, known[name].size if name in known and known[name].size <= size else 0)
            self._sizes[name] = size


def read(folder: Path, row: Row) -> Record:
    """The record of a row. Raises OSError when its file is gone, RecordError when it does not lie there."""
    with (folder / row.segment).open("rb") as file:
        file.seek(row.offset)
        return parse(file.read(row.length))


def catch_up(index: Index, folder: Path, name: Name, offset: int) -> None:
    """Take in what a segment holds beyond `offset`."""
    end = offset

    def found() -> Iterator[tuple[int, int, Record]]:
        nonlocal end
        for at, length, record in segments.lines(folder / str(name), offset):
            end = at + length
            yield at, length, record

    with index.together():
        index.add(name, found(), offset)
        index.add(name, (), end)


def _drop_index(folder: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder / (FILE + suffix)).unlink()


def _writer(path: Path) -> tuple[str, bool]:
    """The name of this folder among all that write to one bucket, and whether it is new."""
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text().strip()
        if text.isalnum() and text.islower():
            return text, False
    text = "w" + secrets.token_hex(5)
    durable.replace(path, text.encode())
    return text, True
