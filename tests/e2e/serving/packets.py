"""What was on the wire and when: TCP payloads of a network device with the kernel's arrival times, by a packet socket."""

from __future__ import annotations

import socket
import struct
import threading
from dataclasses import dataclass
from types import TracebackType

ETH_P_ALL = 3
SO_TIMESTAMPNS = 35


@dataclass(frozen=True)
class Packet:
    """One TCP segment with payload. `at` is CLOCK_REALTIME, nanoseconds; addresses as `host:port`; `sequence` numbers its first byte."""

    at: int
    source: str
    target: str
    sequence: int
    payload: bytes


class Capture:
    """A context manager that keeps every TCP payload seen on `device`, once."""

    def __init__(self, device: str) -> None:
        self.packets: list[Packet] = []
        self._seen: set[tuple[str, str, int]] = set()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.bind((device, 0))
        self._socket.settimeout(0.1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(5.0)
        self._socket.close()

    def sent(self, target: str) -> list[Packet]:
        """What went to `target`, in order."""
        return [packet for packet in list(self.packets) if packet.target == target]

    def received(self, source: str) -> list[Packet]:
        """What came from `source`, in order."""
        return [packet for packet in list(self.packets) if packet.source == source]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                frame, ancillary, _, _ = self._socket.recvmsg(1 << 17, 128)
            except TimeoutError:
                continue
            stamp = next((data for level, kind, data in ancillary if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS), None)
            packet = _tcp(frame, stamp) if stamp is not None else None
            if packet is not None and (key := (packet.source, packet.target, packet.sequence)) not in self._seen:
                self._seen.add(key)  # what is sent again counts by its first arrival
                self.packets.append(packet)


def _tcp(frame: bytes, stamp: bytes) -> Packet | None:
    if len(frame) < 34 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return None
    ip = frame[14:]
    header, total = (ip[0] & 15) * 4, int.from_bytes(ip[2:4], "big")
    tcp = ip[header:total] if total else ip[header:]  # a segment that the kernel will cut for the wire has no length yet
    payload = tcp[(tcp[12] >> 4) * 4:]
    if not payload:
        return None
    seconds, nanoseconds = struct.unpack("qq", stamp)
    source, target = (f"{socket.inet_ntoa(ip[at:at + 4])}:{int.from_bytes(tcp[port:port + 2], 'big')}" for at, port in ((12, 0), (16, 2)))
    return Packet(seconds * 10**9 + nanoseconds, source, target, int.from_bytes(tcp[4:8], "big"), payload)
