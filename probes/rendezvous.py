"""How the ranks of one run find each other: TCP to rank 0, one deadline, mutual proof of the run's token.

Frames are a 4-byte big-endian length and a JSON value of at most `FRAME_LIMIT` bytes. Rank 0 sends a nonce; a rank answers with its own
nonce and HMAC-SHA256(token, "join" | both nonces | run id | rank | size | address); rank 0 proves itself the same way. The token itself
never travels. After that, `exchange` is an all-gather of small JSON values through rank 0.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any

from probes.contract import split_endpoint
from probes.reasons import Reason

FRAME_LIMIT = 1 << 20
HANDSHAKE_SECONDS = 5.0
RETRY_SECONDS = 0.1
MAX_PENDING = 64


class RendezvousError(Exception):
    """The ranks did not meet, or one was lost. `reason` is one of the closed list, the text names the rank."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Rendezvous:
    """The joined ranks of one run. `addresses[r]` is where rank r says its peers reach it."""

    def __init__(self, rank: int, addresses: list[str], links: dict[int, socket.socket], deadline: float) -> None:
        self.rank = rank
        self.world_size = len(addresses)
        self.addresses = addresses
        self._links = links
        self._deadline = deadline
        self._sequence = 0

    def exchange(self, value: Any) -> list[Any]:
        """All-gather: every rank gives a JSON value and gets the list of all, in rank order. Raises RendezvousError (`peer_lost`)."""
        self._sequence += 1
        if self.rank != 0:
            _send(self._links[0], {"n": self._sequence, "v": value}, self._deadline, "rank 0")
            return list(self._values(_receive(self._links[0], self._deadline, "rank 0"), "rank 0"))
        values: list[Any] = [value] + [None] * (self.world_size - 1)
        try:
            for rank, link in sorted(self._links.items()):
                values[rank] = self._values(_receive(link, self._deadline, f"rank {rank}"), f"rank {rank}")
        except RendezvousError as error:
            self.abort(str(error))
            raise
        for rank, link in sorted(self._links.items()):
            _send(link, {"n": self._sequence, "v": values}, self._deadline, f"rank {rank}")
        return values

    def extend(self, deadline: float) -> None:
        """Give all further exchanges a new deadline (monotonic seconds)."""
        self._deadline = deadline

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self.exchange(None)

    def abort(self, why: str) -> None:
        """Tell the peers that this rank ends, so that they need not wait for their deadline. Never raises."""
        for link in self._links.values():
            with contextlib.suppress(OSError, RendezvousError):
                _send(link, {"abort": why[:300]}, min(self._deadline, time.monotonic() + 1.0), "peer")

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            with contextlib.suppress(OSError):
                link.close()

    def _values(self, frame: Any, who: str) -> Any:
        if not isinstance(frame, dict):
            raise RendezvousError(Reason.PEER_LOST, f"{who} sent something that is no frame")
        if "abort" in frame:
            raise RendezvousError(Reason.PEER_LOST, f"{who} ended: {str(frame['abort'])[:300]}")
        if frame.get("n") != self._sequence:
            raise RendezvousError(Reason.PEER_LOST, f"{who} is at step {frame.get('n')}, this rank at {self._sequence}")
        return frame.get("v")


def join(*, endpoint: str, rank: int, world_size: int, run_id: str, token: bytes, address: str | None, deadline: float) -> Rendezvous:
    """Meet the other ranks before `deadline` (monotonic seconds). Raises RendezvousError naming the missing rank."""
    if world_size == 1:
        return Rendezvous(0, [address or "127.0.0.1"], {}, deadline)
    identity = _Identity(run_id, rank, world_size, token, address)
    host, port = split_endpoint(endpoint)
    return _Host(identity, host, port, deadline).gather() if rank == 0 else _connect(identity, host, port, deadline)


class _Identity:
    """Who this rank is, and the proof of it."""

    def __init__(self, run_id: str, rank: int, world_size: int, token: bytes, address: str | None) -> None:
        self.run_id, self.rank, self.world_size, self.address = run_id, rank, world_size, address
        self._token = token

    def proof(self, purpose: str, *parts: object) -> str:
        text = json.dumps([purpose, self.run_id, self.world_size, *parts], separators=(",", ":"))
        return hmac.new(self._token, text.encode(), hashlib.sha256).hexdigest()


class _Host:
    """Rank 0: listens, proves and admits each rank."""

    def __init__(self, identity: _Identity, host: str, port: int, deadline: float) -> None:
        self._identity = identity
        self._deadline = deadline
        self._links: dict[int, socket.socket] = {}
        self._addresses: dict[int, str] = {}
        self._own_address: str | None = identity.address
        self._refused: list[str] = []
        self._changed = threading.Condition()
        self._pending = threading.Semaphore(MAX_PENDING)
        self._server = _listen(host, port)

    def gather(self) -> Rendezvous:
        size = self._identity.world_size
        accepting = threading.Thread(target=self._accept, daemon=True, name="rendezvous-accept")
        accepting.start()
        try:
            with self._changed:
                while len(self._links) < size - 1:
                    left = self._deadline - time.monotonic()
                    if left <= 0:
                        raise RendezvousError(Reason.RANK_MISSING, self._missing())
                    self._changed.wait(min(left, 1.0))
                links = dict(self._links)
        except RendezvousError as error:
            for link in self._links.values():
                with contextlib.suppress(OSError, RendezvousError):
                    _send(link, {"abort": str(error)}, time.monotonic() + 1.0, "peer")
                link.close()
            raise
        finally:
            self._server.close()
        addresses = [self._own_address or "127.0.0.1"] + [self._addresses[rank] for rank in range(1, size)]
        for rank, link in sorted(links.items()):
            _send(link, {"addresses": addresses}, self._deadline, f"rank {rank}")
        return Rendezvous(0, addresses, links, self._deadline)

    def _missing(self) -> str:
        absent = [str(rank) for rank in range(1, self._identity.world_size) if rank not in self._links]
        text = f"rank {', '.join(absent)} of {self._identity.world_size} never arrived"
        return text + (f"; refused: {'; '.join(self._refused[:3])}" if self._refused else "")

    def _accept(self) -> None:
        self._server.settimeout(0.5)
        while time.monotonic() < self._deadline:
            try:
                link, peer = self._server.accept()
            except TimeoutError:  # socket.timeout is the same class since Python 3.10
                continue
            except OSError:
                return
            if self._pending.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(link, str(peer[0])), daemon=True, name="rendezvous-admit").start()
            else:
                link.close()

    def _admit(self, link: socket.socket, peer: str) -> None:
        try:
            self._handshake(link, peer)
        except (RendezvousError, OSError, ValueError, TypeError, KeyError) as error:
            with self._changed:
                self._refused.append(f"{peer}: {error}"[:200])
            with contextlib.suppress(OSError, RendezvousError):
                _send(link, {"refused": str(error)[:200]}, time.monotonic() + 1.0, peer)
            link.close()
        finally:
            self._pending.release()

    def _handshake(self, link: socket.socket, peer: str) -> None:
        until = min(self._deadline, time.monotonic() + HANDSHAKE_SECONDS)
        nonce = secrets.token_hex(16)
        _send(link, {"nonce": nonce}, until, peer)
        hello = _receive(link, until, peer)
        rank, address = hello["rank"], hello["address"]
        if not hmac.compare_digest(str(hello["proof"]), self._identity.proof("join", nonce, hello["nonce"], rank, address)):
            raise RendezvousError(Reason.RENDEZVOUS_REFUSED, "wrong token, run id or number of ranks")
        if type(rank) is not int or not 0 < rank < self._identity.world_size:
            raise RendezvousError(Reason.RENDEZVOUS_REFUSED, f"rank {rank!r} does not exist")
        with self._changed:
            if rank in self._links and not _gone(self._links[rank]):
                raise RendezvousError(Reason.RENDEZVOUS_REFUSED, f"rank {rank} is already here")
            _send(link, {"proof": self._identity.proof("welcome", hello["nonce"], nonce)}, until, peer)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._links[rank] = link
            self._addresses[rank] = str(address) if address else peer.removeprefix("::ffff:")
            if self._own_address is None:
                self._own_address = str(link.getsockname()[0]).removeprefix("::ffff:")
            self._changed.notify_all()


def _connect(identity: _Identity, host: str, port: int, deadline: float) -> Rendezvous:
    last = f"no answer from {host}:{port}"
    reason = Reason.RENDEZVOUS_FAILED
    while time.monotonic() < deadline:
        try:
            link = socket.create_connection((host, port), timeout=max(0.05, min(5.0, deadline - time.monotonic())))
        except (OSError, UnicodeError) as error:
            last = f"rank 0 at {host}:{port}: {error}"
            reason = Reason.RANK_MISSING if isinstance(error, ConnectionRefusedError) else Reason.RENDEZVOUS_FAILED
            time.sleep(min(RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
            continue
        try:
            return _enter(identity, link, deadline)
        except RendezvousError as error:
            link.close()
            if error.reason is not Reason.PEER_LOST:
                raise
            last, reason = str(error), Reason.RANK_MISSING
            time.sleep(min(RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    raise RendezvousError(reason, f"rank 0 could not be met in time: {last}")


def _enter(identity: _Identity, link: socket.socket, deadline: float) -> Rendezvous:
    until = min(deadline, time.monotonic() + HANDSHAKE_SECONDS)
    challenge = _receive(link, until, "rank 0")
    if not isinstance(challenge, dict) or "nonce" not in challenge:
        raise RendezvousError(Reason.RENDEZVOUS_REFUSED, "what listens there is not rank 0 of a run")
    nonce = secrets.token_hex(16)
    own = identity.address
    proof = identity.proof("join", challenge["nonce"], nonce, identity.rank, own)
    _send(link, {"rank": identity.rank, "nonce": nonce, "address": own, "proof": proof}, until, "rank 0")
    welcome = _receive(link, until, "rank 0")
    if not isinstance(welcome, dict) or "refused" in welcome:
        text = welcome.get("refused") if isinstance(welcome, dict) else welcome
        raise RendezvousError(Reason.RENDEZVOUS_REFUSED, f"rank 0 refused rank {identity.rank}: {text}")
    if not hmac.compare_digest(str(welcome.get("proof")), identity.proof("welcome", nonce, challenge["nonce"])):
        raise RendezvousError(Reason.RENDEZVOUS_REFUSED, "what listens there does not know this run's token")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    roster = _receive(link, deadline, "rank 0")
    if isinstance(roster, dict) and "abort" in roster:
        raise RendezvousError(Reason.RANK_MISSING, str(roster["abort"])[:300])
    addresses = roster.get("addresses") if isinstance(roster, dict) else None
    if not isinstance(addresses, list) or len(addresses) != identity.world_size:
        raise RendezvousError(Reason.RENDEZVOUS_FAILED, "rank 0 sent no roster")
    return Rendezvous(identity.rank, [str(a) for a in addresses], {0: link}, deadline)


def _listen(host: str, port: int) -> socket.socket:
    """Listen on the address itself when it is one, on every interface when it is a name."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        bind_to = host
    except ValueError:
        family, bind_to = (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")  # noqa: S104 - pods
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and bind_to == "::":
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((bind_to, port))
        server.listen(128)
    except OSError as error:
        server.close()
        if error.errno == errno.EADDRINUSE:
            raise RendezvousError(Reason.PORT_IN_USE, f"rank 0 cannot listen on {host}:{port}: the port is in use") from None
        raise RendezvousError(Reason.RENDEZVOUS_FAILED, f"rank 0 cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
    return server


def _gone(link: socket.socket) -> bool:
    """Whether the other side of a connection has closed it."""
    try:
        link.setblocking(False)
        return link.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _send(link: socket.socket, value: Any, deadline: float, who: str) -> None:
    data = json.dumps(value, separators=(",", ":")).encode()
    if len(data) > FRAME_LIMIT:
        raise RendezvousError(Reason.INTERNAL_ERROR, f"a message to {who} has {len(data)} bytes, {FRAME_LIMIT} are allowed")
    try:
        link.settimeout(max(0.05, deadline - time.monotonic()))
        link.sendall(struct.pack("!I", len(data)) + data)
    except OSError as error:
        raise RendezvousError(Reason.PEER_LOST, f"{who} was lost: {_why(error)}") from None


def _receive(link: socket.socket, deadline: float, who: str) -> Any:
    (length,) = struct.unpack("!I", _read(link, 4, deadline, who))
    if length > FRAME_LIMIT:
        raise RendezvousError(Reason.RENDEZVOUS_REFUSED, f"{who} announced a message of {length} bytes")
    try:
        return json.loads(_read(link, length, deadline, who))
    except (ValueError, RecursionError):
        raise RendezvousError(Reason.RENDEZVOUS_REFUSED, f"{who} sent no JSON") from None


def _read(link: socket.socket, length: int, deadline: float, who: str) -> bytes:
    data = bytearray()
    while len(data) < length:
        left = deadline - time.monotonic()
        if left <= 0:
            raise RendezvousError(Reason.PEER_LOST, f"{who} did not answer in time")
        try:
            link.settimeout(left)
            piece = link.recv(min(length - len(data), 1 << 16))
        except OSError as error:
            raise RendezvousError(Reason.PEER_LOST, f"{who} was lost: {_why(error)}") from None
        if not piece:
            raise RendezvousError(Reason.PEER_LOST, f"{who} closed its connection")
        data += piece
    return bytes(data)


def _why(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else (error.strerror or type(error).__name__)
