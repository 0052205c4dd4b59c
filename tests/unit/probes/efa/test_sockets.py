"""Witness 2 against real transfers: known bytes through real sockets of real processes, counted from outside by the kernel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probes.efa.sock_diag import SockDiag, SockDiagError, _messages
from probes.efa.sockets import SocketBytes

MIB = 1 << 20


class Sink:
    """A server in the test's own process that reads whatever comes, and sends `reply` bytes once it has read everything."""

    def __init__(self, family: socket.AddressFamily = socket.AF_INET) -> None:
        self.listener = socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)
        self.port = self.listener.getsockname()[1]
        self.host = self.listener.getsockname()[0]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._drain, args=(connection,), daemon=True).start()

    @staticmethod
    def _drain(connection: socket.socket) -> None:
        with connection:
            total = 0
            while piece := connection.recv(1 << 18):
                total += len(piece)
            connection.sendall(total.to_bytes(8, "big"))


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    yield server
    server.listener.close()


PRELUDE = """
import os, socket, subprocess, sys, threading, time
host, port = sys.argv[1], int(sys.argv[2])
def go(): print("ready", flush=True); sys.stdin.readline()
def send(total, wait=True):
    with socket.create_connection((host, port)) as s:
        piece = bytes(1 << 18)
        left = total
        while left:
            left -= s.send(piece[:left])
        s.shutdown(socket.SHUT_WR)
        if wait: s.recv(8)
        return s
"""


class Worker:
    """A child process that follows a script of steps; `step` runs it to its next stop."""

    def __init__(self, code: str, sink: Sink) -> None:
        source = PRELUDE + textwrap.dedent(code) + "\ngo()\n"
        self.process = subprocess.Popen([sys.executable, "-c", source, sink.host, str(sink.port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.step(first=True)

    def step(self, first: bool = False) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not first:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line == b"ready\n", line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(sink: Sink) -> Iterator[Callable[[str], Worker]]:
    workers: list[Worker] = []

    def begin(code: str) -> Worker:
        workers.append(Worker(code, sink))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()


def within(value: int, expected: int, share: float = 0.001) -> bool:
    return abs(value - expected) <= max(share * expected, 16)


def test_known_bytes_of_a_plain_sender_are_counted_within_a_thousandth(start: Callable[[str], Worker]) -> None:
    worker = start("""
        s = socket.create_connection((host, port))
        s.sendall(bytes(1 << 20))        # before the window
        go()
        for _ in range(200): s.sendall(bytes(1 << 20))
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    assert watch.mark()
    worker.step()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 200 * MIB)
    assert counted[1] == 0


def test_a_socket_closed_inside_the_window_counts_to_its_last_byte(start: Callable[[str], Worker]) -> None:
    worker = start("""
        s = socket.create_connection((host, port))
        go()
        s.sendall(bytes(40 << 20)); s.shutdown(socket.SHUT_WR); s.recv(8); s.close()
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    time.sleep(0.05)
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 40 * MIB)
    assert counted[1] in (8, 9), "the sink's answer, and perhaps the FIN"


def test_sockets_that_come_and_go_between_looks_are_missed_but_bounded(start: Callable[[str], Worker]) -> None:
    worker = start("""
        go()
        for _ in range(5): send(3 << 20)
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    time.sleep(0.05)
    counted, missed = watch.since_mark(), watch.unattributed
    assert counted is not None
    assert missed is not None
    assert counted[0] <= 15 * MIB
    assert counted[0] + missed[0] >= 15 * MIB, "what was not counted is inside the bound"


def test_looks_every_quarter_second_catch_short_lived_sockets(start: Callable[[str], Worker]) -> None:
    worker = start("""
        go()
        for _ in range(6):
            s = socket.create_connection((host, port))
            for _ in range(8): s.sendall(bytes(1 << 20)); time.sleep(0.05)
            s.close()
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.25):
            watch.sample()

    looker = threading.Thread(target=look)
    looker.start()
    worker.step()
    stop.set()
    looker.join()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 48 * MIB)


def test_bytes_of_children_and_grandchildren_count_also_after_their_parent_is_gone(start: Callable[[str], Worker]) -> None:
    worker = start("""
        code = "import socket, sys, time; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); time.sleep(0.6);" \\
               "s.sendall(bytes(8 << 20)); s.shutdown(1); s.recv(8)"
        middle = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', sys.argv[3], *sys.argv[1:3]]); time.sleep(0.3)"
        go()
        subprocess.run([sys.executable, "-c", middle, host, str(port), code])   # the grandchild outlives its parent
        time.sleep(1.2)
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            watch.sample()

    looker = threading.Thread(target=look)
    looker.start()
    worker.step()
    stop.set()
    looker.join()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 8 * MIB)


def test_a_connection_between_two_own_processes_counts_once_in_each_direction(start: Callable[[str], Worker]) -> None:
    worker = start("""
        listener = socket.create_server(("127.0.0.1", 0))
        code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.readline();" \\
               "s.sendall(bytes(30 << 20)); sys.stdin.readline()"
        child = subprocess.Popen([sys.executable, "-c", code, str(listener.getsockname()[1])], stdin=subprocess.PIPE)
        inner, _ = listener.accept()
        go()
        child.stdin.write(b"\\n"); child.stdin.flush()
        left = 30 << 20
        while left: left -= len(inner.recv(1 << 18))
        go()
        child.kill(); child.wait()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 30 * MIB)
    assert within(counted[1], 30 * MIB)
    worker.step()


def test_a_socket_held_by_two_processes_counts_once(start: Callable[[str], Worker]) -> None:
    worker = start("""
        s = socket.create_connection((host, port))
        me = os.getpid()
        if os.fork() == 0:
            while os.getppid() == me: time.sleep(0.02)
            os._exit(0)
        go()
        s.sendall(bytes(10 << 20))
        go()
    """)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 10 * MIB)


def test_foreign_traffic_on_the_same_machine_does_not_count(start: Callable[[str], Worker], sink: Sink) -> None:
    worker = start("s = socket.create_connection((host, port))\ngo()\ns.sendall(bytes(1 << 20))\ngo()")
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    with socket.create_connection((sink.host, sink.port)) as foreign:
        foreign.sendall(bytes(20 << 20))
        worker.step()
        counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], MIB)


def test_ipv6_counts_too() -> None:
    try:
        server = Sink(socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    worker = Worker("s = socket.create_connection((host, port))\ngo()\ns.sendall(bytes(9 << 20))\ngo()", server)
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    counted = watch.since_mark()
    worker.end()
    server.listener.close()
    assert counted is not None
    assert within(counted[0], 9 * MIB)


def test_a_killed_process_leaves_its_counts_behind(start: Callable[[str], Worker]) -> None:
    worker = start("s = socket.create_connection((host, port))\ngo()\ns.sendall(bytes(12 << 20))\ngo()")
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    watch.sample()
    worker.process.kill()
    time.sleep(0.2)  # a zombie first: nobody has waited for it
    zombie = watch.since_mark()
    worker.process.wait()
    gone = watch.since_mark()
    assert zombie is not None
    assert gone is not None
    assert within(zombie[0], 12 * MIB)
    assert within(gone[0], 12 * MIB)


def test_counts_of_sockets_closed_long_ago_stay_in_the_total(start: Callable[[str], Worker]) -> None:
    worker = start("s = socket.create_connection((host, port))\ngo()\ns.sendall(bytes(5 << 20))\ngo()\ns.close()\ngo()")
    watch = SocketBytes(worker.process.pid)
    watch.mark()
    worker.step()
    watch.sample()
    worker.step()
    for _ in range(20):
        watch.sample()
    counted = watch.since_mark()
    assert counted is not None
    assert within(counted[0], 5 * MIB)
    assert not watch._own, "closed sockets are folded away"


def test_without_socket_diagnostics_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.efa.sock_diag.NETLINK_SOCK_DIAG", 31)
    watch = SocketBytes(os.getpid())
    assert watch.mark() is False
    assert watch.since_mark() is None
    assert watch.unattributed is None
    assert watch.reason is not None
    assert "socket diagnostics" in watch.reason


def test_a_window_whose_start_could_not_be_looked_at_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SocketBytes(os.getpid())
    assert watch._diag is not None
    real = watch._diag.sockets

    def refuse() -> list[object]:
        raise SockDiagError("refused")

    monkeypatch.setattr(watch._diag, "sockets", refuse)
    assert watch.mark() is False
    monkeypatch.setattr(watch._diag, "sockets", real)
    assert watch.since_mark() is None, "an unknown start is not zero"
    assert watch.mark() is True
    assert watch.since_mark() is not None


def test_files_that_may_not_be_read_give_no_number(tmp_path: Path) -> None:
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "net").touch()
    (tmp_path / "7" / "ns").mkdir(parents=True)
    (tmp_path / "7" / "ns" / "net").touch()
    (tmp_path / "7" / "stat").write_text("7 (x) S " + " ".join(["0"] * 18 + ["99"]))
    watch = SocketBytes(7, proc=tmp_path)
    assert watch.mark() is False
    assert watch.reason == "process 7 lives in another network namespace"


def test_the_same_figures_as_pyroute2(start: Callable[[str], Worker]) -> None:
    diag = pytest.importorskip("pyroute2")
    worker = start("s = socket.create_connection((host, port))\ns.sendall(bytes(2 << 20))")
    time.sleep(0.2)
    ours = {(count.cookie, count.inode): (count.sent, count.received) for count in SockDiag().sockets()}
    with diag.DiagSocket() as other:
        theirs = {}
        for family in (socket.AF_INET, socket.AF_INET6):
            for message in other.get_sock_stats(family=family, extensions=2):
                if message["idiag_state"] in (1, 4, 5, 8, 9, 11):
                    info = message.get_attr("INET_DIAG_INFO")
                    if info is None:
                        continue  # a socket of another test that is just going away
                    theirs[message["idiag_cookie"], message["idiag_inode"]] = (info["tcpi_bytes_acked"], info["tcpi_bytes_received"])
    ends = [counts for counts in ours.values() if 2 * MIB in (counts[0] - 1, counts[1])]
    assert len(ends) >= 2, "both ends of the worker's connection"
    shared = ours.keys() & theirs.keys()
    assert len(shared) >= 2
    assert {key for key in shared if 2 * MIB in (theirs[key][0] - 1, theirs[key][1])} == {
        key for key in ours if 2 * MIB in (ours[key][0] - 1, ours[key][1])}
    assert worker.process.poll() is None


def test_one_look_is_cheap() -> None:
    watch = SocketBytes(os.getpid())
    watch.sample()
    took = []
    for _ in range(20):
        began = time.perf_counter()
        watch.sample()
        took.append(time.perf_counter() - began)
    assert sorted(took)[10] < 0.02


@pytest.mark.parametrize("data", [b"", b"\x00" * 15, b"\xff" * 64, b"\x10\x00\x00\x00" + b"\x00" * 12, b"\x00" * 64])
def test_a_broken_datagram_ends_the_walk(data: bytes) -> None:
    assert len(list(_messages(data))) <= 1
