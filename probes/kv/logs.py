"""What the engines' own log lines say. Versions each line was read in: Mooncake 0.3.13, NIXL 1.5.1, UCX 1.23."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TAIL = 1 << 20

_GLOG = re.compile(r"^[EWF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ (\S+?:\d+\] .*)$")
_UCX_LOG = re.compile(r"^\[\d+\.\d+\] \[[^]]*\]\s+\S+:\d+\s+UCX\s+(?:ERROR|WARN|DIAG)\s+(.*)$")
_MOONCAKE_DEVICE = re.compile(r"EFA device \(libfabric\): (\S+), domain: (\S+), fabric: (\S+), provider: (\S+)")
_MOONCAKE_TCP = re.compile(r"Installing TCP transport|Using TCP transport|TcpTransport: listen on port|MC_FORCE_TCP is set")
_NIXL_RAILS = re.compile(r"Created (\d+) rails using provider=(\S+)")
_UCX_LANES = re.compile(r"(?:inter|intra)-node cfg#\d+\s+(.*)$")
_UCX_LANE = re.compile(r"\b((?:rma|am)(?:_\w+)?)\(([^)]*)\)")
_NOISE = re.compile(r"No RDMA devices found|Local segment descriptor not found|malloc/free for protocol")
"""Complaints that Mooncake makes at every start, good ones included."""
_NO_RDMA = {"sysv", "posix", "cma", "knem", "xpmem", "self", "cuda_ipc", "tcp"}


@dataclass(frozen=True)
class Route:
    """How blocks travel according to a log: the provider's name, whether it is RDMA, the devices it named."""

    provider: str | None = None
    fabric: str | None = None
    rdma: bool | None = None
    devices: tuple[str, ...] = ()
    nics: int | None = None


def read_tail(log: Path) -> str:
    """The last MiB of a log; empty when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            return file.read().decode(errors="replace")
    except (OSError, ValueError):
        return ""


def complaints(text: str) -> list[str]:
    """The last warnings and errors of a log, without their stamps: two of UCX, which tell the cause, and one of the engine; else three."""
    lines = text.splitlines()
    below = [match[1].strip() for match in map(_UCX_LOG.match, lines) if match]
    own = [match[1] for match in map(_GLOG.match, lines) if match and not _NOISE.search(match[1])]
    return [line[:300] for line in (*below[-2:], *own[-1 if below else -3 :])]


def words_of(log: Path) -> str:
    """The engine's last complaints as the tail of a message; empty when it made none."""
    found = complaints(read_tail(log))
    return f"; the engine says: {' | '.join(found)}" if found else ""


def mooncake_path(text: str) -> Route:
    """From Mooncake's log. RDMA stays unknown: the engine prints nothing about it."""
    devices = {match[1]: match for match in _MOONCAKE_DEVICE.finditer(text)}
    if devices:
        last = list(devices.values())[-1]
        return Route(provider=last[4], fabric=last[3], devices=tuple(sorted(devices)), nics=len(devices))
    return Route(provider="tcp", rdma=False) if mooncake_tcp(text) else Route()


def mooncake_tcp(text: str) -> str | None:
    """The line by which Mooncake says that it runs on TCP."""
    return next((line[:200] for line in text.splitlines() if _MOONCAKE_TCP.search(line)), None)


def nixl_path(text: str, backend: str) -> Route:
    """From NIXL's log: rails of LIBFABRIC, lanes of UCX. UCX writes `rma(...)` for native and `rma_am(...)` for emulated remote access."""
    if backend == "LIBFABRIC":
        rails = _NIXL_RAILS.findall(text)
        if not rails:
            return Route()
        count, provider = rails[-1]
        return Route(provider=provider.rstrip(".,"), nics=int(count), rdma=None if provider.startswith("efa") else False)
    lines = [match[1] for match in map(_UCX_LANES.search, text.splitlines()) if match]
    lanes = _UCX_LANE.findall(lines[-1]) if lines else []
    if not lanes:
        return Route()
    # Emulated access may take any lane (a large block over `am(tcp/lo cma/memory)` goes by cma), so all of them are named.
    pairs = [lane.partition("/")[::2] for _, names in lanes for lane in names.split()]
    native = {lane.partition("/")[0] for kind, names in lanes if kind == "rma" for lane in names.split()}
    return Route(provider="+".join(sorted({transport for transport, _ in pairs})), rdma=bool(native) and not native & _NO_RDMA,
                 devices=tuple(sorted({device for _, device in pairs})))
