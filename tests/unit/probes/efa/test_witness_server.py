"""The witness as a process and its server: real sockets, slow and hostile clients, signals, memory."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sysfs_tree import SysfsTree

from probes.efa.window import NoAnswer, WitnessAnswer, ask
from probes.witness import pages
from probes.witness.history import History
from probes.witness.http import MAX_CONNECTIONS, ListenError, Response, Server
from probes.witness.service import Witness

ROOT = Path(__file__).parents[4]
NO_OWN: dict[str, tuple[str, str, float]] = {}


class Process:
    """`python -m probes.witness` on a port of its own choice."""

    def __init__(self, sysfs: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "probes.witness", "--sysfs", str(sysfs), "--listen", "127.0.0.1:0", "--node", "node-a",
                   "--interval", "0.5", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert self.process.stderr is not None
        self.greeting = self.process.stderr.readline()
        match = re.search(r"port (\d+)", self.greeting)
        assert match, self.greeting + self.process.stderr.read()
        self.port = int(match[1])

    def get(self, target: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", target)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def rss(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    running: list[Process] = []

    def begin(sysfs: Path, *flags: str) -> Process:
        running.append(Process(sysfs, *flags))
        return running[-1]

    yield begin
    for process in running:
        process.end()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_transfer_is_seen_in_its_window_and_not_in_the_background(tmp_path: Path, start: Callable[..., Process]) -> None:
    tree = SysfsTree.p6_b200(tmp_path)
    witness = start(tmp_path)
    until(lambda: b"efapulse_witness_looks_total{node=\"node-a\"} 3" in witness.get("/metrics")[1])
    began = time.time()
    for name in tree.names[:8]:
        tree.add(name, rdma_write_bytes=1 << 30, tx_bytes=(1 << 30) + 4096)
    ended = time.time()
    answer = ask(f"127.0.0.1:{witness.port}", began, ended, started=began - 0.1, ended=ended + 0.1, deadline=8.0)
    assert isinstance(answer, WitnessAnswer), answer
    assert answer.node == "node-a"
    assert sum(device.counters["rdma_write_bytes"] for device in answer.window.devices.values()) == 8 << 30
    assert set(answer.window.devices) == set(tree.names[:8])
    assert answer.before is not None
    assert answer.after is not None
    assert {value for side in (answer.before, answer.after) for each in side.devices.values() for value in each.counters.values()} == {0}
    assert answer.before.end <= began - 0.1
    assert answer.after.start >= ended + 0.1


def test_metrics_by_the_drivers_names_pass_promtool(tmp_path: Path, start: Callable[..., Process]) -> None:
    tree = SysfsTree.p6_b200(tmp_path)
    tree.set("rdmap79s0", "rdma_read_resp_bytes", 123456789012345678)
    witness = start(tmp_path)
    until(lambda: witness.get("/-/healthy")[0] == 200)
    status, page = witness.get("/metrics")
    text = page.decode()
    assert status == 200
    assert 'efapulse_witness_efa_rdma_read_resp_bytes_total{node="node-a",device="rdmap79s0"} 123456789012345678' in text.splitlines()
    assert "ibp12s0" not in text
    assert not re.search(r'[{,](endpoint|instance|job|namespace|pod|service|container)="', text)
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_it_lives_without_devices_and_sees_one_that_appears_later(tmp_path: Path, start: Callable[..., Process]) -> None:
    witness = start(tmp_path / "none")
    until(lambda: witness.get("/-/healthy")[0] == 200)
    page = witness.get("/metrics")[1]
    assert b'efapulse_witness_devices{node="node-a"} 0' in page
    assert b'efapulse_witness_sysfs_mounted{node="node-a"} 0.0' in page
    assert b"efapulse_witness_efa_" not in page
    tree = SysfsTree(tmp_path / "none")
    tree.efa("rdmap1s0")
    until(lambda: b'efapulse_witness_devices{node="node-a"} 1' in witness.get("/metrics")[1])
    tree.remove("rdmap1s0")
    until(lambda: b'efapulse_witness_devices{node="node-a"} 0' in witness.get("/metrics")[1])


def test_a_reset_is_counted(tmp_path: Path, start: Callable[..., Process]) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0")
    witness = start(tmp_path)
    until(lambda: b"looks_total{node=\"node-a\"} 2" in witness.get("/metrics")[1])
    tree.set("rdmap1s0", "tx_bytes", 5)
    until(lambda: b'device_resets_total{node="node-a",device="rdmap1s0"} 1' in witness.get("/metrics")[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_on_a_signal(tmp_path: Path, start: Callable[..., Process], number: signal.Signals) -> None:
    witness = start(tmp_path, "--interval", "30")
    until(lambda: witness.get("/-/healthy")[0] == 200)
    began = time.monotonic()
    witness.process.send_signal(number)
    assert witness.process.wait(5) == 0
    assert time.monotonic() - began < 2


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([sys.executable, "-m", "probes.witness", "--sysfs", str(tmp_path), "--listen", f"127.0.0.1:{port}"], cwd=ROOT,
                              capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert done.stderr == f"witness: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(("flags", "code", "said"), [
    (["--sysfs", "/sys"], 1, "own sysfs"), (["--listen", "9479"], 64, "not host:port"), (["--listen", ":99999"], 64, "not host:port"),
    (["--interval", "0"], 64, "0.5 to 60"), (["--history", "nan"], 64, "10 to 3600"), (["--nod"], 64, "expected one argument"),
    (["--colour"], 64, "unrecognized arguments"), (["--listen", "192.0.2.1:1"], 1, "cannot listen")])
def test_wrong_flags_are_named(tmp_path: Path, flags: list[str], code: int, said: str) -> None:
    base = [] if "--sysfs" in flags else ["--sysfs", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "probes.witness", *base, *flags], cwd=ROOT, capture_output=True, text=True, check=False,
                          timeout=20)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_memory_stays_below_30_mib_with_32_devices_and_a_full_history(tmp_path: Path) -> None:
    """The process fills 600 looks of 32 devices with every counter, answers windows and metrics, and is measured at the end."""
    SysfsTree.p5(tmp_path)
    code = """if True:
        import sys, time
        from pathlib import Path
        from probes.witness.__main__ import Witness
        now = [1.8e9]
        witness = Witness(Path(sys.argv[1]), "127.0.0.1", 0, "node-a", 1.0, 600.0, clock=lambda: now[0], monotonic=lambda: now[0])
        began = time.process_time()
        for _ in range(620):
            witness.look(); now[0] += 1.0
        look = (time.process_time() - began) / 620
        for _ in range(5):
            assert witness.answer("/metrics").status == 200
            assert witness.answer(f"/window?from={now[0] - 20}&to={now[0] - 10}").status == 200
            assert witness.answer(f"/window?from={now[0] - 590}&to={now[0] - 10}").status == 200
        peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
        rows = sum(line.startswith(b"efapulse_witness_efa") for line in witness.answer("/metrics").body.splitlines())
        print(peak, rows, look)
    """
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    peak, rows, look = done.stdout.split()
    assert int(rows) == 32 * 36
    assert int(peak) * 1024 <= 30 << 20, f"peak {int(peak) / 1024:.1f} MiB"
    assert float(look) < 0.25


# --- the server alone -------------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[Server]:
    def handler(target: str) -> Response:
        return Response(200, b"x" * (8 << 20) if target == "/large" else target.encode())

    serving = Server("127.0.0.1", 0, handler, clock=clock)
    yield serving
    serving.close()


def connect(server: Server) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    server.step(0.2)
    return link


def exchange(server: Server, data: bytes) -> bytes:
    with connect(server) as link:
        link.sendall(data)
        for _ in range(3):
            server.step(0.1)
        link.settimeout(0.3)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while piece := link.recv(65536):
                answer += piece
        return answer


def test_get_and_head(server: Server) -> None:
    assert exchange(server, b"GET /a?b HTTP/1.1\r\nHost: x\r\n\r\n").endswith(b"\r\n\r\n/a?b")
    head = exchange(server, b"HEAD /a?b HTTP/1.1\r\nHost: x\r\n\r\n").lower()
    assert head.startswith(b"http/1.1 200")
    assert b"content-length: 4" in head
    assert head.endswith(b"\r\n\r\n")


def test_a_connection_is_used_again(server: Server) -> None:
    with connect(server) as link:
        for _ in range(3):
            link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            server.step(0.2)
            assert link.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("data", "status"), [
    (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", b"405"), (b"\x16\x03\x01 hello\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000, b"431"), (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", b"413"),
    (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"200 400")])
def test_bad_requests_get_a_status_and_the_server_lives(server: Server, data: bytes, status: bytes) -> None:
    answer = exchange(server, data)
    assert answer[9:12] in status.split(), answer[:60]
    assert exchange(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_requests_sent_ahead_are_not_served_for_ever(server: Server) -> None:
    answer = exchange(server, b"GET /one HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    assert answer.count(b"HTTP/1.1 200") == 1


def test_a_client_that_sends_its_request_byte_by_byte_is_dropped_at_the_deadline(server: Server, clock: Clock) -> None:
    with connect(server) as link:
        for number in range(12):
            with contextlib.suppress(OSError):
                link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n"[number : number + 1])
            clock.now += 0.9
            server.step(0.05)
        assert len(server._connections) == 0


def test_a_client_that_does_not_read_its_answer_is_dropped_at_the_deadline(server: Server, clock: Clock) -> None:
    with connect(server) as link:
        link.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        server.step(0.2)
        assert len(server._connections) == 1
        clock.now += 11
        server.step(0.05)
        assert len(server._connections) == 0


def test_a_large_answer_reaches_a_client_that_reads_slowly(server: Server) -> None:
    with connect(server) as link:
        link.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        total = 0
        for _ in range(2000):
            server.step(0.0)
            link.settimeout(0.2)
            piece = link.recv(65536)
            if not piece:
                break
            total += len(piece)
        assert total > 8 << 20


def test_many_silent_clients_never_lock_out_a_new_one(server: Server) -> None:
    silent = [connect(server) for _ in range(MAX_CONNECTIONS + 20)]
    assert len(server._connections) == MAX_CONNECTIONS
    assert exchange(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")
    for link in silent:
        link.close()
    for _ in range(5):
        server.step(0.01)
    assert len(server._connections) == 0


def test_an_address_of_somebody_else_cannot_be_listened_on() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:1"):
        Server("192.0.2.1", 1, lambda target: Response(200, target.encode()))


# --- the pages --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("query", "said"), [
    ("", "from: is needed"), ("from=1", "to: is needed"), ("from=2&to=1", "lies before"), ("from=x&to=1", "Unix seconds are needed"),
    ("from=inf&to=nan", "Unix seconds are needed"), ("from=1&from=2&to=3", "each once"), ("from=1&to=2&x=3", "are known"),
    ("nonsense", "name=value"), ("&".join(f"a{number}=1" for number in range(50)), "name=value")])
def test_wrong_queries_are_answered_with_the_parameter(query: str, said: str) -> None:
    status, body = pages.window_json(History(1.0, 60.0), "n", query, 0.01)
    assert status == 400
    assert said in json.loads(body)["error"]


def test_a_window_that_is_not_there_says_whether_it_will_come() -> None:
    history = History(1.0, 60.0)
    assert json.loads(pages.window_json(history, "n", "from=1&to=2", 0.01)[1])["pending"] is True
    for second in range(5):
        history.add(100.0 + second, 100.0 + second, float(second), {})
    status, body = pages.window_json(history, "n", "from=1&to=2", 0.01)
    assert (status, json.loads(body)["pending"]) == (404, False)
    assert (status, json.loads(body)["history"]) == (404, [100.0, 104.0])


def test_labels_are_escaped() -> None:
    text = pages.metrics(History(1.0, 60.0), 'a"b\\c\nd', NO_OWN, "1").decode()
    assert 'node="a\\"b\\\\c\\nd"' in text


def test_unknown_paths_and_a_stale_history(tmp_path: Path, clock: Clock) -> None:
    witness = Witness(tmp_path, "127.0.0.1", 0, "n", 1.0, 60.0, clock=clock, monotonic=clock)
    assert witness.answer("/nothing").status == 404
    assert witness.answer("/-/healthy").status == 503
    witness.look()
    assert witness.answer("/-/healthy").status == 200
    clock.now += 6
    assert witness.answer("/-/healthy").status == 503
    witness.close()


# --- the client -------------------------------------------------------------------------------------------------------------------------


def serve_once(answer: bytes, delay: float = 0.0) -> str:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        link, _ = listener.accept()
        with link, contextlib.suppress(OSError):
            link.recv(65536)
            size = 1 if delay else 65536
            for start in range(0, len(answer), size):
                link.sendall(answer[start : start + size])
                time.sleep(delay)
        listener.close()

    threading.Thread(target=run, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def http_answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


GOOD = {"schema": "efa-pulse/witness/v1", "node": "n", "window": {"from": 1, "to": 2, "devices": {}}}


@pytest.mark.parametrize(("answer", "said"), [
    (http_answer(b"{}"), "not an answer of schema"), (http_answer(b"nonsense"), "not JSON"), (b"nonsense\r\n\r\n", "illegal"),
    (http_answer(b"[" * 100_000), "not JSON"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "peer closed"), (b"", "closed"),
    (http_answer(b'{"error":"the history begins at 5","pending":false}', "404 Not Found"), "history begins at 5 (status 404)"),
    (http_answer(json.dumps({**GOOD, "window": {"from": 2, "to": 1, "devices": {}}}).encode()), "ends before"),
    (http_answer(json.dumps({**GOOD, "window": None}).encode()), "window: is missing"),
    (http_answer(json.dumps({**GOOD, "window": {"from": 1, "to": 2, "devices": {"d": {"counters": {"tx_bytes": -1}, "resets": [],
                                                                                  "coverage": 1}}}}).encode()), "a count is needed"),
    (http_answer(json.dumps({**GOOD, "window": {"from": 1, "to": 2, "devices": {"d": {"counters": {"tx_bytes": 10**400}, "resets": [],
                                                                                  "coverage": 1}}}}).encode()), "a count is needed"),
    (http_answer(json.dumps({**GOOD, "node": 3}).encode()), "node"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b" " * 5_000_000, "larger than")])
def test_wrong_answers_are_no_answers(answer: bytes, said: str) -> None:
    found = ask(serve_once(answer), 1.0, 2.0, deadline=5.0)
    assert isinstance(found, NoAnswer), found
    assert said.lower() in found.reason.lower()


def test_a_dripping_witness_ends_at_the_deadline() -> None:
    began = time.monotonic()
    found = ask(serve_once(http_answer(b" " * 400), delay=0.05), 1.0, 2.0, deadline=0.6)
    assert isinstance(found, NoAnswer)
    assert "no answer within 0.6 s" in found.reason
    assert time.monotonic() - began < 2.0


def test_a_witness_that_is_not_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = ask(f"127.0.0.1:{port}", 1.0, 2.0, deadline=2.0)
    assert found == NoAnswer(f"witness 127.0.0.1:{port}: Connection refused")
    assert isinstance(ask("nonsense", 1.0, 2.0), NoAnswer)


def test_at_the_deadline_the_answer_without_background_is_kept() -> None:
    address = serve_once(http_answer(json.dumps({**GOOD, "pending": True}).encode()))
    found = ask(address, 1.0, 2.0, deadline=1.5)
    assert isinstance(found, WitnessAnswer)
    assert found.after is None
