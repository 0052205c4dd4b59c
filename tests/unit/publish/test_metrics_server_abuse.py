"""Clients that are slow, greedy or wrong cost the server little and the others nothing."""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from exporter.config.server import Server
from exporter.publish import render
from exporter.publish.family import Attribution, Cardinality, Family, Kind
from exporter.publish.http import Limits
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from exporter.publish.store import Snapshot, Store

Start = Callable[..., MetricsServer]
BIG = Family("efapulse_big", Kind.GAUGE, "Big.", ("node", "x"), Attribution.NODE, Cardinality.PER_NODE)


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[MetricsServer] = []

    def begin(snapshot: Callable[[], Snapshot] | None = None, **limits: float) -> MetricsServer:
        publisher = Publisher("1.2.3")
        server = MetricsServer(Server(listen="127.0.0.1:0"), snapshot or (lambda: publisher.snapshot), limits=Limits(**limits))  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield begin
    for server in servers:
        server.close(1.0)


@contextlib.contextmanager
def connected(server: MetricsServer, timeout: float = 10.0) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=timeout) as sock:
        yield sock


def everything(sock: socket.socket) -> bytes:
    """What comes until the server closes."""
    out = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            out += data
    return out


def one_answer(sock: socket.socket) -> bytes:
    """The head of one answer, its body thrown away."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = sock.recv(65536)
        if not got:
            return data
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.partition(b":")[2]) for line in head.splitlines() if line.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += sock.recv(65536)
    return head


def refused(server: MetricsServer) -> dict[str, float]:
    """Refused connections so far, by why, without zeros. The counting thread may need a moment."""
    counts = server._counts._counts["efapulse_http_connections_refused_total"]
    return {why: count for (why,), count in counts.items() if count}


def eventually(check: Callable[[], bool], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if check():
            return True
        time.sleep(0.01)
    return False


def fetch(server: MetricsServer, path: str = "/-/healthy") -> bytes:
    with connected(server) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return everything(sock)


@functools.cache
def big_snapshot(megabytes: int) -> Snapshot:
    """Pages of about this many megabytes, more than the buffers of a loopback connection hold."""
    store = Store([BIG], 10**9)
    for i in range(megabytes):
        store.put(BIG, f"n{i}", render.gauges(BIG, [((f"n{i}", f"{j:0960d}"), 1) for j in range(1024)]))
    return store.commit()


class TestSlow:
    """Deadlines hold whatever the pace of the bytes."""

    def test_a_head_that_drips_is_cut_at_its_deadline(self, start: Start) -> None:
        server = start(head_seconds=0.5)
        began = time.monotonic()
        with connected(server) as sock, contextlib.suppress(OSError):
            for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 100:
                sock.send(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - began < 3
        assert eventually(lambda: refused(server) == {"slow_request": 1})

    def test_a_body_that_drips_is_cut_too(self, start: Start) -> None:
        server = start(head_seconds=0.4)
        with connected(server) as sock:
            sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nab")
            assert everything(sock) == b""
        assert eventually(lambda: refused(server) == {"slow_request": 1})

    def test_a_client_that_says_nothing_goes_quietly(self, start: Start) -> None:
        server = start(head_seconds=0.2)
        with connected(server) as sock:
            assert everything(sock) == b""
        assert refused(server) == {}

    def test_an_idle_connection_is_closed(self, start: Start) -> None:
        server = start(idle_seconds=0.3)
        with connected(server) as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in one_answer(sock)
            assert everything(sock) == b""
        assert refused(server) == {}

    def test_a_reader_that_does_not_read_is_cut(self, start: Start) -> None:
        snapshot = big_snapshot(24)
        server = start(lambda: snapshot, answer_seconds=0.5)
        with connected(server) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert eventually(lambda: refused(server) == {"slow_reader": 1})

    def test_a_reader_that_sips_is_cut(self, start: Start) -> None:
        snapshot = big_snapshot(24)
        server = start(lambda: snapshot, answer_seconds=0.5)
        with connected(server) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            until = time.monotonic() + 5
            while time.monotonic() < until and not refused(server):
                sock.recv(1000)
                time.sleep(0.02)
        assert refused(server) == {"slow_reader": 1}

    def test_a_steady_reader_gets_everything(self, start: Start) -> None:
        snapshot = big_snapshot(24)
        server = start(lambda: snapshot)
        assert fetch(server, "/metrics").count(b"\nefapulse_big{") == 24 * 1024

    def test_slow_clients_do_not_hold_up_a_scrape(self, start: Start) -> None:
        server = start(connections=64)
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                stack.enter_context(connected(server)).sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            began = time.monotonic()
            assert b"200 OK" in fetch(server, "/metrics")
            assert time.monotonic() - began < 2


class TestGreedy:
    """Limits on heads, bodies and connections."""

    def test_a_head_above_the_limit_is_refused(self, start: Start) -> None:
        server = start()
        with connected(server) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 100_000 + b"\r\n\r\n")
            assert b" 431 " in one_answer(sock)
        assert eventually(lambda: refused(server) == {"bad_request": 1})

    def test_many_small_headers_count_as_one_big_head(self, start: Start) -> None:
        server = start()
        with connected(server) as sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")
        assert eventually(lambda: refused(server) == {"bad_request": 1})

    @pytest.mark.parametrize("head", [b"Content-Length: 10000000", b"Transfer-Encoding: chunked"])
    def test_a_body_above_the_limit_is_refused(self, start: Start, head: bytes) -> None:
        server = start()
        with connected(server) as sock, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
            chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n" if b"chunked" in head else b"x" * 0x4000
            for _ in range(8):
                sock.sendall(chunk)
            assert b" 413 " in one_answer(sock)

    def test_a_small_body_is_read_away_and_the_connection_goes_on(self, start: Start) -> None:
        server = start()
        with connected(server) as sock:
            for _ in range(2):
                sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
                assert b" 403 " in one_answer(sock)

    def test_an_expected_continue_is_not_waited_for(self, start: Start) -> None:
        server = start()
        with connected(server) as sock:
            sock.sendall(b"POST /-/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            assert b" 417 " in one_answer(sock)

    def test_when_full_the_newest_is_refused_and_counted(self, start: Start) -> None:
        server = start(connections=3)
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(connected(server)).sendall(b"GET")
            assert eventually(lambda: len(server._open()) == 3)
            with connected(server) as sock:
                assert everything(sock) == b""
            assert refused(server) == {"full": 1}
        assert eventually(lambda: b"200 OK" in fetch(server))

    def test_when_full_the_connection_idle_longest_makes_room(self, start: Start) -> None:
        server = start(connections=3)
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connected(server)) for _ in range(3)]
            for sock in idle:
                sock.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
                one_answer(sock)
            assert eventually(lambda: all(connection.idle_since for connection in server._open()))
            assert b"200 OK" in fetch(server)
            assert everything(idle[0]) == b""
            idle[2].sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in one_answer(idle[2])
        assert refused(server) == {}


class TestWrong:
    """Requests that are no HTTP, or not quite."""

    @pytest.mark.parametrize("raw", [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60) + b"\r\n\r\n", b"hello\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET /\r\n\r\n", b"\0" * 64 + b"\r\n\r\n",
    ])
    def test_it_is_refused_with_400_and_closed(self, start: Start, raw: bytes) -> None:
        server = start()
        with connected(server) as sock:
            sock.sendall(raw)
            assert everything(sock).startswith(b"HTTP/1.1 400 ")
        assert b"200 OK" in fetch(server)

    def test_a_client_that_leaves_in_the_middle_is_nothing_special(self, start: Start) -> None:
        server = start()
        for raw in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
            with connected(server) as sock:
                sock.sendall(raw)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        assert eventually(lambda: server._open() == [])
        assert b"200 OK" in fetch(server)

    def test_http_1_0_is_answered_and_closed(self, start: Start) -> None:
        with connected(start()) as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            assert everything(sock).endswith(b"efa-pulse is healthy\n")

    def test_requests_sent_ahead_are_answered_in_order(self, start: Start) -> None:
        with connected(start()) as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\nGET /-/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = everything(sock)
        assert answer.index(b"is healthy") < answer.index(b"not ready")

    def test_an_absolute_target_is_its_path(self, start: Start) -> None:
        with connected(start()) as sock:
            sock.sendall(b"GET http://example.test/-/healthy?x=http://y HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in everything(sock)

    def test_a_header_cannot_be_smuggled_into_the_answer(self, start: Start) -> None:
        answer = fetch(start(), "/x%0d%0aX-Evil:%20yes")
        assert b" 404 " in answer
        assert b"X-Evil" not in answer


class TestEnd:
    """Closing the server."""

    def test_an_answer_under_way_is_finished(self, start: Start) -> None:
        snapshot = big_snapshot(24)
        server = start(lambda: snapshot)
        with connected(server) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            first = sock.recv(1000)
            closing = threading.Thread(target=server.close, args=(5.0,))
            closing.start()
            assert (first + everything(sock)).count(b"\nefapulse_big{") == 24 * 1024
            closing.join(5)
            assert not closing.is_alive()

    def test_idle_connections_end_at_once(self, start: Start) -> None:
        server = start()
        with connected(server) as sock:
            sock.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
            one_answer(sock)
            assert eventually(lambda: all(connection.idle_since for connection in server._open()))
            began = time.monotonic()
            server.close(5.0)
            assert time.monotonic() - began < 1
            assert everything(sock) == b""

    def test_a_client_that_does_not_end_is_cut_after_the_grace(self, start: Start) -> None:
        server = start()
        with connected(server) as sock:
            sock.sendall(b"GET /met")
            assert eventually(lambda: len(server._open()) == 1)
            began = time.monotonic()
            server.close(0.3)
            assert time.monotonic() - began < 2
            assert everything(sock) == b""

    def test_no_thread_is_left(self, start: Start) -> None:
        server = start()
        for _ in range(5):
            fetch(server)
        server.close()
        assert eventually(lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("metrics-")] == [])

    def test_closing_twice_is_harmless(self, start: Start) -> None:
        server = start()
        server.close()
        server.close()
