"""Questions to an archive: the folder by its index, S3 by reading the days that are asked for."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exporter.archive import segments
from exporter.archive.folder import Folder, LockedError, catch_up, read
from exporter.archive.index import FILE, Index, Query, Row, row_of
from exporter.archive.record import Record, RecordError, parse
from exporter.archive.s3 import S3Store
from exporter.archive.segments import Name

READERS = 8
DEFAULT_SPAN = 24 * 3600.0
"""How far back S3 is read when no beginning is asked for."""

AHEAD_SECONDS = 3600.0
"""Nodes' clocks may run ahead of ours."""


class NoArchiveError(Exception):
    """There is nothing to ask. The text says where was looked."""


class Local:
    """The archive in a folder, also one that a running service writes, or that must not be written. Use it as a context manager.

    Raises NoArchiveError when there is none, OSError when it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / segments.ROOT).is_dir():
            raise NoArchiveError(f"there is no archive in {folder}: name its folder with --folder, or the configuration with --config")
        self.folder = folder
        self._index = _index(folder)

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def find(self, query: Query) -> list[Row]:
        """The runs that are asked for, newest first."""
        return self._index.find(query)

    def records(self, rows: list[Row]) -> Iterator[Record]:
        """The whole records of rows. One whose file went in the meantime is left out."""
        for row in rows:
            try:
                yield read(self.folder, row)
            except (OSError, RecordError):
                continue


def remote(store: S3Store, cluster: str, query: Query, now: float) -> list[tuple[Row, Record]]:
    """The runs that are asked for from S3, newest first, each once. Without a beginning the last day is read. Raises AwsError."""
    first = query.since if query.since is not None else now - DEFAULT_SPAN
    last = min(query.until if query.until is not None else now, now + AHEAD_SECONDS)
    found: dict[str, tuple[Row, Record]] = {}
    with ThreadPoolExecutor(READERS, thread_name_prefix="s3") as readers:
        for date in reversed(segments.days(first, last)):
            keys = [key for key in store.names(f"{segments.partition(cluster, date)}/") if Name.parse(key) is not None]
            for data in readers.map(store.get, keys):
                for line in segments.unpacked(data).splitlines(keepends=True):
                    try:
                        record = parse(line)
                    except RecordError:
                        continue
                    if query.takes(record) and float(record["finished"]) >= first:
                        found.setdefault(str(record["run_id"]), (row_of(record), record))
            if query.limit is not None and len(found) >= query.limit:
                break  # days are read from the newest on
    return sorted(found.values(), key=lambda one: -one[0].finished)[:query.limit]


def _index(folder: Path) -> Index:
    """The index, brought up to date where nobody else does that and we may."""
    if os.access(folder, os.W_OK):
        try:
            # Whoever has the lock owns the index; without an owner it may be behind, or gone.
            owner = Folder(folder, "unused", keep=1 << 62, segment=1 << 30, upload=False, clock=lambda: 0.0)
        except LockedError:
            pass
        except OSError as error:
            raise NoArchiveError(f"the archive {folder} cannot be read: {error}") from None
        else:
            owner.close()
    if (folder / FILE).exists():
        try:
            return Index(folder / FILE, read_only=True)
        except sqlite3.DatabaseError:
            pass
    index = Index(None)
    for name in segments.find(folder):
        catch_up(index, folder, name, 0)
    return index
