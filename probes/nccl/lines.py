"""Cleaning a recorded terminal: launcher prefixes, time stamps and log lines that other threads wrote into the middle of a row.

Launchers and their prefixes: Open MPI 4 `[1,0]<stdout>:`, Open MPI 5 `[prterun-x@1,0]<stdout>:`, `srun -l` `0: `, torchrun
`[default3]:`, `kubectl logs --timestamps` an RFC 3339 stamp, `kubectl logs --prefix` `[pod/name/container] `, pdsh `host: `.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)\s")
_OPEN_MPI = re.compile(r"\[(?:[^\]\s@]*@)?\d+,(\d+)\]<(?:stdout|stderr|stddiag)>:\s?")
_TORCHRUN = re.compile(r"\[(?:default|trainer|worker)?(\d+)\]:\s?")
_KUBECTL = re.compile(r"\[(pod/[^\]\s]+)\]\s")
_SRUN = re.compile(r"\s*(\d{1,5}): ")
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[?[0-9a-f:]{3,39}\]?): (?=\s*(?:#|\d+\s+\d+\s))")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# host:pid:tid [dev] [file:line (func)] NCCL INFO ...; the host may be glued to a cell of a row. Anchored at the bracket, so that a long
# line without blanks costs no more than its length.
_NCCL_LOG = re.compile(r" \[-?\d+\] (?:\S{1,256} (?:\([^)]{0,256}\) )?)?NCCL (?:INFO|WARN|TRACE|ABORT|ERROR)\b")
_ORIGIN = re.compile(r"(.*):\d+:\d+")
_STAMP_BEFORE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\] ?$")
_LIBFABRIC_LOG = re.compile(r"libfabric:\d+:\d+:.*")
_CELL = re.compile(r"-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)|N/A", re.IGNORECASE)

MAX_LINE = 64 * 1024


class Line(NamedTuple):
    """One line without its prefix. `stream` names the rank or host that printed it, "" when no prefix says so."""

    stream: str
    text: str


def clean(text: str) -> Iterator[Line]:
    """The lines of a recorded terminal with their launcher prefixes taken off. Over-long lines are cut: no table has one."""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        yield strip_prefixes(_ESCAPES.sub("", raw[:MAX_LINE]))


def strip_prefixes(line: str) -> Line:
    """Take off every known prefix, in any order, and remember what it says about the origin."""
    stream = ""
    for _ in range(4):
        if match := _STAMP.match(line):
            line = line[match.end() :]
        elif match := _OPEN_MPI.match(line) or _TORCHRUN.match(line) or _SRUN.match(line):
            stream, line = match.group(1), line[match.end() :]
        elif match := _KUBECTL.match(line) or _HOST.match(line):
            stream, line = stream or match.group(1), line[match.end() :]
        else:
            break
    return Line(stream, line)


def log_hosts(lines: list[Line]) -> set[str]:
    """Host names that NCCL's own log lines begin with: needed to tell `-1` from a host name glued to it."""
    hosts = set()
    for line in lines:
        found = _find_log(line.text)
        if found is not None and found[0] == 0 and found[1]:
            hosts.add(found[1])
    return hosts


def cut_log(text: str, hosts: set[str]) -> tuple[str, bool]:
    """(what is left of a line without log output glued into it, whether there was any)."""
    found = _find_log(text)
    if found is not None:
        start, glued = found
        return _STAMP_BEFORE.sub("", text[:start]) + _glued_cell(glued, hosts), True
    match = _LIBFABRIC_LOG.search(text)
    if match:
        return text[: match.start()], True
    return text, False


def _find_log(text: str) -> tuple[int, str] | None:
    """(where the log output begins, what stands before `:pid:tid` there: a host name, perhaps with a cell glued before it)."""
    match = _NCCL_LOG.search(text) if "NCCL" in text else None
    if match is None:
        return None
    before = text[: match.start()]
    start = max(before.rfind(" "), before.rfind("\t")) + 1
    origin = _ORIGIN.fullmatch(before[start:])
    return (start, origin.group(1)) if origin else (match.start(), "")


def _glued_cell(glued: str, hosts: set[str]) -> str:
    """The cell of a row that a host name was printed behind, "" when there is none."""
    if not glued or glued in hosts:
        return ""
    for host in sorted(hosts, key=len, reverse=True):
        if glued.endswith(host) and _CELL.fullmatch(glued[: -len(host)]):
            return glued[: -len(host)]
    match = _CELL.match(glued)
    return match.group(0) if match and not glued[match.end() : match.end() + 1].isdigit() else ""
