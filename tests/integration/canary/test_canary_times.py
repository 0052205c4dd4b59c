"""What the client measures against what a server says it sent. The bounds are wide; the figures are made by tests/bench."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from canary_peers import OnePeer, delivered, quick, server_context

from probes.canary.client import CanaryRun, measure
from probes.canary.clock import Clocks, Stopwatch
from probes.canary.params import CanaryParams
from probes.canary.simulated import SimulatedEndpoint
from probes.canary.transport import TcpLink, TlsLink, connect, stamping

ANSWER_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text.encode())


def token(finish: str | None = None) -> bytes:
    return chunk("data: " + json.dumps({"choices": [{"delta": {"content": "a"}, "finish_reason": finish}]}) + "\n\n")


@pytest.fixture(params=["plain", "tls"])
def served(request: pytest.FixtureRequest, authority: trustme.CA, ca_file: Path, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A simulated endpoint in a process of its own: the fields of parameters that reach it."""
    command = [sys.executable, "-m", "probes.canary.simulated", "--listen", "127.0.0.1:0", "--ttft", "0.05", "--gap", "0.02"]
    if request.param == "tls":
        certificate = tmp_path / "server.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        command += ["--tls-cert", str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        yield {"url": url, **({"ca_file": ca_file} if request.param == "tls" else {})}
        process.terminate()
        assert process.wait(10) == 0


def sends(url: str, ca_file: Path | None) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(ca_file)) if ca_file else None
    with urllib.request.urlopen(f"{url}/simulated/requests", timeout=10, context=context) as response:
        found: dict[str, Any] = json.load(response)[-1]
    return found


def test_ttft_gaps_and_tpot_are_those_of_the_server(served: dict[str, Any]) -> None:
    ttft, gaps, tpot = [], [], []
    for _ in range(5):
        run = measure(quick(**served, max_tokens=16))
        assert delivered(run), run.message
        assert run.stream.clock == "kernel"
        if run.stream.status == "disturbed":
            continue
        sent = sends(served["url"], served.get("ca_file"))
        stamps = [one["before"] / 1e9 for one in sent["sends"] for _ in one["tokens"]]
        assert run.stream.ttft is not None
        assert run.stream.tpot is not None
        ttft.append(abs(run.stream.ttft - (stamps[0] - sent["received"] / 1e9)))
        tpot.append(run.stream.tpot / ((stamps[-1] - stamps[0]) / 15))
        if run.stream.unresolved_events == 0:
            true = [b - a for a, b in itertools.pairwise(stamps)]
            gaps += [abs(a - b) for a, b in zip(run.stream.itl, true, strict=False)]
    assert ttft, "no request of five could be timed"
    assert statistics.median(ttft) < 0.002
    assert statistics.median(tpot) == pytest.approx(1, rel=0.02)
    assert not gaps or statistics.median(gaps) < 0.001


def test_a_late_client_still_has_the_arrival_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process sleeps 80 ms before every read: a user-space clock would be off by as much."""
    wait = TcpLink._wait

    def late(link: TcpLink, until: float, events: int) -> int | None:
        woken = wait(link, until, events)
        time.sleep(0.08)
        return woken

    monkeypatch.setattr(TcpLink, "_wait", late)
    with SimulatedEndpoint() as endpoint:
        run = measure(_params(endpoint.url, {"ttft": 0.1, "gap": 0.2}, max_tokens=4))
        stamps = endpoint.served[-1].token_sends()
    assert run.stream.clock == "kernel"
    assert run.stream.status == "ok", run.message
    arrivals = [at for at in run.arrivals if at is not None]
    assert max(abs(at - sent) for at, sent in zip(arrivals, stamps, strict=True)) < 40_000_000
    assert run.stream.clock_lag is not None
    assert run.stream.clock_lag > 0.07


def test_tokens_that_share_a_read_are_unresolved_and_disturb_a_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = TcpLink._wait

    def late(link: TcpLink, until: float, events: int) -> int | None:
        woken = wait(link, until, events)
        time.sleep(0.15)
        return woken

    monkeypatch.setattr(TcpLink, "_wait", late)
    with SimulatedEndpoint() as endpoint:
        run = measure(_params(endpoint.url, {"ttft": 0.01, "gap": 0.02, "early_head": False}, max_tokens=8))
    assert run.stream.status == "disturbed"
    assert run.stream.unresolved_events >= 4
    assert len(run.stream.itl) <= 3


def test_a_tls_record_has_the_arrival_of_the_segment_that_completed_it(authority: trustme.CA, ca_file: Path) -> None:
    context = server_context(authority, "127.0.0.1")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    sent: list[int] = []

    def serve(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            sock.sendall(outgoing.read())
            tls.write(b"one record")
            record = outgoing.read()
            sock.sendall(record[:10])
            time.sleep(0.2)
            sent.append(time.time_ns())
            sock.sendall(record[10:])
            sock.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        stopwatch = Stopwatch()
        until = time.monotonic() + 10
        with stamping():
            tcp = connect([(socket.AF_INET, listener.getsockname())], until, stopwatch)
            link = TlsLink(tcp, ssl.create_default_context(cafile=str(ca_file)), "127.0.0.1", until)
            stopwatch.start()
            arrival = link.receive(until)
            link.close()
        thread.join(10)
    assert arrival.data == b"one record"
    assert arrival.at.kernel is not None
    assert 0 <= arrival.at.kernel - sent[0] < 100_000_000


def test_a_step_of_the_wall_clock_inside_a_request_falls_back_to_user_time() -> None:
    began = time.monotonic()

    def stepping() -> int:
        return time.time_ns() + (3600 * 10**9 if time.monotonic() - began > 0.3 else 0)

    with SimulatedEndpoint() as endpoint:
        run = measure(_params(endpoint.url, {"ttft": 0.1, "gap": 0.1}, max_tokens=6), clocks=Clocks(real=stepping))
    assert run.stream.clock == "user"
    assert run.stream.status == "ok", run.message
    assert run.stream.ttft is not None
    assert 0.1 <= run.stream.ttft < 5
    assert run.stream.max_gap is not None
    assert run.stream.max_gap < 5


def test_the_zero_is_the_write_and_not_the_connection() -> None:
    def answer(sock: socket.socket) -> None:
        time.sleep(0.1)
        sock.sendall(ANSWER_HEAD + token())
        time.sleep(0.05)
        sock.sendall(token("stop") + chunk("data: [DONE]\n\n"))

    run = _answered(answer, before_request=lambda: time.sleep(0.3))
    assert run.stream.ttft is not None
    assert 0.1 <= run.stream.ttft < 0.3


def test_an_answer_before_the_request_is_no_answer() -> None:
    """A peer that speaks first cannot have read the request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(ANSWER_HEAD + token("stop") + chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
                while sock.recv(65536):  # until the client leaves: an end sent earlier would give its own time to the unread answer
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        run = measure(quick(f"http://127.0.0.1:{listener.getsockname()[1]}"), before_request=lambda: time.sleep(0.2))
        thread.join(10)
    assert run.stream.status == "protocol_error"
    assert "before the request" in run.message


def test_what_comes_after_the_end_mark_is_not_waited_for() -> None:
    began = time.monotonic()
    run = _answered(lambda sock: (sock.sendall(ANSWER_HEAD + token("stop") + chunk("data: [DONE]\n\n")), sock.recv(1)))
    assert delivered(run), run.message
    assert time.monotonic() - began < 5


def _answered(answer: Any, **options: Any) -> CanaryRun:
    with OnePeer(answer) as peer:
        return measure(quick(peer.url, check_length=False), **options)


def _params(url: str, scenario: dict[str, Any], **fields: Any) -> CanaryParams:
    return quick(url, **fields, headers={"x-simulated": json.dumps(scenario)})
