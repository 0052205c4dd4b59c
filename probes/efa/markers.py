"""Witness 3: known lines in an engine's log. The lines are data (`markers.yaml`); this reads them and scans a log.

A log is hostile input: it may be huge, have one endless line, or be written to waste time. The scan reads a bounded number of bytes (head
and tail of a log that is larger), cuts lines into overlapping pieces, accepts only expressions whose every repeat is bounded, and stops
at a deadline. It keeps one marker per kind of line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from probes.result import Marker

BUILT_IN = Path(__file__).with_name("markers.yaml")
SCAN_BYTES = 16 << 20
SCAN_SECONDS = 5.0
PIECE = 4096
OVERLAP = 512
TEXT_LIMIT = 200
MARKER_LIMIT = 32
LARGEST_REPEAT = 256
LIBFABRIC_STACKS = frozenset({"nccl", "mooncake", "nixl"})
SAYS = ("tcp", "efa", "intra_node", "other", "efa_no_rdma", "efa_partial", "unavailable", "fallback", "degraded", "error", "info")
"""What a line can say, in the order in which markers are kept when there are too many."""

KEYS = ("id", "says", "has", "line", "seen", "source")

_COUNTED = re.compile(r"\{(\d*)(,?)(\d*)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class PatternError(ValueError):
    """A pattern file that cannot be used. The text names the pattern and what is wrong with it."""


@dataclass(frozen=True)
class Pattern:
    """One known line."""

    id: str
    says: str
    has: str
    line: re.Pattern[str]


@dataclass
class Scan:
    """What a log says: markers by weight, the named facts of their lines (last seen wins), the devices named, and whether all was read."""

    markers: list[Marker] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    complete: bool = True


def scan(stack: str, source: str | bytes | Path, limit: int = MARKER_LIMIT, *, start: int = 0) -> list[Marker]:
    """The markers in a log, at most `limit`, those that decide a transport first. See `read`."""
    return read(stack, source, start=start).markers[:limit]


def read(stack: str, source: str | bytes | Path, *, start: int = 0, seconds: float = SCAN_SECONDS, patterns: Path = BUILT_IN) -> Scan:
    """Scan the log of an engine of `stack` (`nccl`, `mooncake`, `nixl`, `uccl-ep`; `_` is taken for `-`) from byte `start` on.

    A file that cannot be read, or a stack without patterns, yields nothing. Raises PatternError for a broken pattern file only.
    """
    known = load(patterns).get(stack.replace("_", "-"), ())
    result = Scan()
    if not known:
        return result
    found: dict[str, Marker] = {}
    devices: set[str] = set()
    until = time.monotonic() + seconds
    try:
        for number, piece in enumerate(_pieces(source, start, result)):
            if number % 256 == 0 and time.monotonic() > until:
                result.complete = False
                break
            _look(piece, known, found, devices, result.facts)
    except OSError:
        result.complete = False
    result.markers = sorted(found.values(), key=lambda marker: SAYS.index(marker.says))
    result.devices = sorted(devices)
    return result


@lru_cache(maxsize=8)
def load(path: Path = BUILT_IN) -> dict[str, tuple[Pattern, ...]]:
    """The patterns of every stack in a file. Raises PatternError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PatternError(f"{path.name}: {error}") from None
    if not isinstance(data, dict):
        raise PatternError(f"{path.name}: a mapping of stacks is needed")
    stacks: dict[str, tuple[Pattern, ...]] = {}
    for stack, rows in data.items():
        if not isinstance(rows, list):
            raise PatternError(f"{path.name}: {stack}: a list of patterns is needed")
        stacks[str(stack)] = tuple(_pattern(path.name, str(stack), row) for row in rows)
    shared = stacks.pop("libfabric", ())
    return {stack: own + (shared if stack in LIBFABRIC_STACKS else ()) for stack, own in stacks.items()}


def bounded(expression: str) -> str | None:
    """None when an expression runs in time linear in its line, else why not: an open or too large repeat, or a repeated group."""
    in_class = escaped = False
    previous = ""
    for index, char in enumerate(expression):
        if escaped:
            escaped = False
            if char.isdigit() and char != "0" and not in_class:
                return "refers back to a group"
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "*+":
            return f"repeats without bound at {index}: write {{0,64}} or the like"
        elif char == "{":
            counted = _COUNTED.match(expression, index)
            if counted is None:
                return f"has a brace at {index} that is no repeat: escape it"
            low, comma, high = counted.groups()
            if (comma and not high) or int(high or low or 0) > LARGEST_REPEAT:
                return f"repeats more than {LARGEST_REPEAT} times at {index}"
            if previous == ")":
                return f"repeats a group at {index}"
        previous = char
    return None


def _pattern(file: str, stack: str, row: Any) -> Pattern:
    where = f"{file}: {stack}: {str(row.get('id') if isinstance(row, dict) else row)[:60]!r}"
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) and row[key] for key in KEYS):
        raise PatternError(f"{where}: id, says, has, line, seen and source are needed, each a text")
    if row["says"] not in SAYS:
        raise PatternError(f"{where}: says {row['says']!r}, which is none of {', '.join(SAYS)}")
    if row["has"] != row["has"].lower():
        raise PatternError(f"{where}: `has` must be lower case")
    problem = bounded(row["line"])
    if problem is not None:
        raise PatternError(f"{where}: the expression {problem}")
    try:
        return Pattern(row["id"], row["says"], row["has"], re.compile(row["line"], re.IGNORECASE))
    except re.error as error:
        raise PatternError(f"{where}: the expression is broken: {error}") from None


def _look(piece: str, known: tuple[Pattern, ...], found: dict[str, Marker], devices: set[str], facts: dict[str, str]) -> None:
    lowered = piece.lower()
    for pattern in known:
        if pattern.has not in lowered:
            continue
        match = pattern.line.search(piece)
        if match is None:
            continue
        named = {name: value for name, value in match.groupdict().items() if value is not None}
        device = named.pop("device", None)
        if device is not None and len(devices) < LARGEST_REPEAT:
            devices.add(device)
        facts.update(named)
        if pattern.id not in found:
            found[pattern.id] = Marker(id=pattern.id, says=pattern.says, text=_CONTROL.sub(" ", match.group(0)).strip()[:TEXT_LIMIT])


def _pieces(source: str | bytes | Path, start: int, result: Scan) -> Iterator[str]:
    """The lines of a log as texts of at most `PIECE` characters; longer lines come in pieces that overlap."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            for block in _ends(file, start, result):
                yield from _lines(block)
        return
    data = source.encode(errors="replace") if isinstance(source, str) else source
    if len(data) - start > SCAN_BYTES:
        result.complete = False
        yield from _lines(data[start : start + SCAN_BYTES // 2])
        data, start = data[-SCAN_BYTES // 2 :], 0
    yield from _lines(data[start:])


def _ends(file: BinaryIO, start: int, result: Scan) -> Iterator[bytes]:
    """A whole file from `start` on, or its first and last part when it is larger than `SCAN_BYTES`."""
    size = file.seek(0, 2)
    file.seek(start)
    if size - start <= SCAN_BYTES:
        yield file.read(SCAN_BYTES)
        return
    result.complete = False
    yield file.read(SCAN_BYTES // 2)
    file.seek(-(SCAN_BYTES // 2), 2)
    yield file.read(SCAN_BYTES // 2)


def _lines(data: bytes) -> Iterator[str]:
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        at = begin
        while at < end:
            yield data[at : min(at + PIECE, end)].decode(errors="replace")
            if at + PIECE >= end:
                break
            at += PIECE - OVERLAP
        begin = end + 1
