"""The files of the archive: JSON Lines whose names never change, and which are the keys in S3 with `.gz` behind them.

    results/v1/cluster=NAME/date=YYYY-MM-DD/YYYYMMDDTHHMMSS-WRITER-NUMBER.jsonl

The date is that of the results (their end, UTC), the time that of the file's beginning, WRITER the folder it was first written in. A file
is appended to and never changed; a process that is killed in between leaves at most one torn line at its end.
"""

from __future__ import annotations

import calendar
import contextlib
import gzip
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exporter.archive.record import Record, RecordError, parse

ROOT = "results/v1"
_NAME = re.compile(r"results/v1/cluster=([^/]+)/date=(\d{4}-\d{2}-\d{2})/(\d{8}T\d{6})-([0-9a-z]+)-(\d+)\.jsonl")
_STAMP = "%Y%m%dT%H%M%S"
LINE_LIMIT = 8 << 20


@dataclass(frozen=True, order=True)
class Name:
    """The name of a segment. Names order by date, then beginning."""

    cluster: str
    date: str
    time: str
    writer: str
    number: int

    def __str__(self) -> str:
        return f"{partition(self.cluster, self.date)}/{self.time}-{self.writer}-{self.number}.jsonl"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The name in `text`, with or without `.gz`; None for anything else."""
        match = _NAME.fullmatch(text.removesuffix(".gz"))
        return cls(match[1], match[2], match[3], match[4], int(match[5])) if match else None

    @classmethod
    def new(cls, cluster: str, date: str, begun: float, writer: str, number: int) -> Name:
        """The name of a file of results of `date`, begun at Unix seconds `begun`."""
        return cls(cluster, date, time.strftime(_STAMP, time.gmtime(begun)), writer, number)

    @property
    def begun(self) -> float:
        """When the file was begun, Unix seconds. Results may lie under an earlier date than that of the file's beginning."""
        return float(calendar.timegm(time.strptime(self.time, _STAMP)))


def partition(cluster: str, date: str) -> str:
    """The folder of a day."""
    return f"{ROOT}/cluster={cluster}/date={date}"


def day(at: float) -> str:
    """The UTC date of Unix seconds, `2026-11-30`."""
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def days(first: float, last: float) -> list[str]:
    """Every UTC date from `first` to `last`, Unix seconds."""
    return [day(number * 86400.0) for number in range(int(first // 86400), int(last // 86400) + 1)]


def find(folder: Path) -> list[Name]:
    """Every segment below an archive folder, in order."""
    found = (Name.parse(path.relative_to(folder).as_posix()) for path in Path(folder, ROOT).glob("cluster=*/date=*/*.jsonl"))
    return sorted(name for name in found if name is not None)


def lines(path: Path, offset: int = 0) -> Iterator[tuple[int, int, Record]]:
    """Offset, length and record of every whole line from `offset` on. Lines that are no records are passed over; a torn end is left out."""
    with path.open("rb") as file:
        file.seek(offset)
        begun = offset
        for line in iter(lambda: file.readline(LINE_LIMIT), b""):
            offset += len(line)
            if not line.endswith(b"\n"):
                if len(line) < LINE_LIMIT:
                    return
                continue  # a part of a line that is too long for a record
            record = None
            if offset - begun <= LINE_LIMIT:
                with contextlib.suppress(RecordError):
                    record = parse(line)
            if record is not None:
                yield begun, len(line), record
            begun = offset


def repair(path: Path) -> int:
    """Cut off a torn line at the end of a file; returns how many bytes it had. Only whoever owns the folder may call this."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        keep, back = 0, 0
        while back < size:
            back = min(size, back + (1 << 16))
            file.seek(size - back)
            found = file.read(back).rfind(b"\n")
            if found >= 0:
                keep = size - back + found + 1
                break
        if keep < size:
            file.truncate(keep)
            os.fsync(file.fileno())
        return size - keep


def unpacked(data: bytes) -> bytes:
    """What `packed` packed; nothing of what is damaged."""
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return b""


def packed(data: bytes) -> bytes:
    """Gzipped; the same lines give the same bytes."""
    return gzip.compress(data, compresslevel=6, mtime=0)
