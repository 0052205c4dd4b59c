"""The look at engine pages around one request: patience, deadlines, who served, what the section of the result holds."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from engine_pages import vllm

from probes.canary.pd import fetch
from probes.canary.pd.params import KvShape, Learned, Page, PdParams
from probes.canary.pd.watch import PdWatch, Sent
from probes.result import PrefillLeg, Stream

PREFILL, DECODE = "http://10.0.0.1:8000/metrics", "http://10.0.0.2:8200/metrics"
PAGES = (Page(url=PREFILL, role="prefill", pod="p-0", node="a", zone="z1"), Page(url=DECODE, role="decode", pod="d-0", node="b", zone="z2"))
OK = Stream(status="ok", token_events=8, prompt_tokens=456, ttft=0.2, prefill=PrefillLeg(status="ok", seconds=0.1), handover="given")
BASE = {"external": 0, "local": 0, "prompt": 0, "requests": 0, "moved": 0, "seconds": 0}
PD = {"external": 455, "local": 1, "prompt": 456, "requests": 1, "moved": 1048576, "seconds": 0.006}
P_DONE = {"external": 0, "local": 456, "prompt": 456, "requests": 1, "moved": 0, "seconds": 0}


@dataclass
class World:
    """Pages that change with time; reading costs nothing, sleeping moves the clock."""

    decode: Callable[[float], str]
    prefill: Callable[[float], str] = field(default=lambda now: vllm(**(BASE if now < 1 else P_DONE)))
    now: float = 0.0
    reads: int = 0

    def get(self, url: str, _seconds: float, _insecure: bool) -> str:
        self.reads += 1
        return (self.prefill if url == PREFILL else self.decode)(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, params: PdParams | None = None) -> PdWatch:
        return PdWatch(params or PdParams(pages=PAGES), get=self.get, monotonic=lambda: self.now, sleep=self.sleep)


def test_a_disaggregated_pair() -> None:
    world = World(lambda now: vllm(**(BASE if now < 1 else PD)))
    params = PdParams(pages=PAGES, learned=Learned(slope=2048, block_tokens=128), shape=KvShape(layers=4, kv_heads=2, head_dim=64))
    watch = world.watch(params)
    watch.before()
    world.now = 1.0
    pd = watch.after(OK, Sent("pair", "nixl"))
    assert (pd.disaggregation, pd.evidence, pd.others) == ("yes", "counters", 0)
    assert (pd.kv_bytes, pd.expected_kv_bytes, pd.formula_kv_bytes, pd.block_tokens) == (1048576, 1048576, 1048576, 128)
    assert (pd.kv_transfer, pd.kv_bytes_per_second) == (0.006, 174763000)
    assert pd.prefill is not None
    assert pd.decode is not None
    assert (pd.prefill.pod, pd.prefill.node, pd.decode.pod, pd.decode.zone, pd.decode.running, pd.decode.kv_usage) == (
        "p-0", "a", "d-0", "z2", 3, 0.5)
    assert pd.impure_tokens == (0, 0)
    assert pd.transfer == 0.006
    assert world.now == 1.0, "nothing to wait for"


def test_counters_that_come_late_are_waited_for() -> None:
    world = World(lambda now: vllm(**(BASE if now < 4 else PD)))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    assert watch.after(OK, Sent("pair", "nixl")).disaggregation == "yes"
    assert 4 <= world.now < 7


def test_bytes_that_ride_on_a_later_engine_step_are_waited_for() -> None:
    known = {**BASE, "moved": 512.0, "seconds": 0.001}
    world = World(lambda now: vllm(**(known if now < 1 else {**PD, "moved": 512.0 if now < 3 else 512.0 + 1048576, "seconds": 0.007})))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    assert watch.after(OK, Sent("pair", "nixl")).kv_bytes == 1048576


def test_a_no_has_to_stand() -> None:
    recomputed = {**BASE, "local": 456, "prompt": 456, "requests": 1}
    world = World(lambda now: vllm(**(BASE if now < 1 else recomputed)))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    pd = watch.after(OK, Sent("pair", "nixl"))
    assert pd.disaggregation == "no"
    assert pd.impure_tokens == (0, 455)
    assert 2.0 <= world.now < 4.0


def test_counters_that_never_come_end_the_wait() -> None:
    world = World(lambda _: vllm(**BASE))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    assert watch.after(OK, Sent("pair", "nixl")).disaggregation == "unknown"
    assert world.now <= 11.0


def test_the_run_s_own_deadline_ends_the_wait_earlier() -> None:
    world = World(lambda _: vllm(**BASE))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    watch.after(OK, Sent("pair", "nixl"), seconds=5.0)
    assert world.now <= 3.0


def test_a_silent_engine_is_not_waited_for_and_is_named() -> None:
    world = World(lambda now: f"vllm:prompt_tokens_total {100 * now}\nvllm:num_requests_running 0\n")
    watch = world.watch()
    watch.before()
    world.now = 1.0
    pd = watch.after(OK, Sent("pair", "nixl"))
    assert pd.disaggregation == "unknown"
    assert pd.decode is not None
    assert "vllm:prompt_tokens_by_source_total" in pd.decode.missing
    assert world.now == 1.0


def test_a_failed_request_is_looked_at_once() -> None:
    failed = {**BASE, "prompt": 0}
    world = World(lambda now: vllm(**failed).replace("failed_transfers_total{engine=\"0\",model_name=\"m\"} 0.0",
                                                     f"failed_transfers_total{{engine=\"0\",model_name=\"m\"}} {float(now >= 1)}"))
    watch = world.watch()
    watch.before()
    world.now = 1.0
    pd = watch.after(Stream(status="error_in_stream"), Sent("pair", "nixl"))
    assert (pd.disaggregation, pd.failed_transfers) == ("unknown", 1)
    assert world.now == 1.0


def test_the_pod_that_served_is_found_behind_a_router() -> None:
    pages = (*PAGES, Page(url="http://10.0.0.3:8200/metrics", role="decode", pod="d-1"))

    class Two(World):
        def get(self, url: str, seconds: float, insecure: bool) -> str:
            return vllm(**BASE) if url.startswith("http://10.0.0.3") else super().get(url, seconds, insecure)

    world = Two(lambda now: vllm(**(BASE if now < 1 else PD)))
    watch = world.watch(PdParams(pages=pages))
    watch.before()
    world.now = 1.0
    pd = watch.after(OK, Sent("router", "nixl"))
    assert pd.disaggregation == "yes"
    assert pd.decode is not None
    assert pd.decode.pod == "d-0"


def test_one_page_that_fails_costs_only_itself() -> None:
    def broken(url: str, _seconds: float, _insecure: bool) -> str:
        if url == DECODE:
            raise fetch.FetchError("10.0.0.2:8200: HTTP 500")
        raise ZeroDivisionError

    watch = PdWatch(PdParams(pages=PAGES, settle=0), get=broken)
    watch.before()
    pd = watch.after(OK, Sent("pair", "nixl"))
    assert pd.disaggregation == "unknown"
    assert "HTTP 500" in pd.why


def test_a_page_that_hangs_is_given_up() -> None:
    held = threading.Event()

    def hang(_url: str, _seconds: float, _insecure: bool) -> str:
        held.wait(5)
        return ""

    watch = PdWatch(PdParams(pages=PAGES, settle=0, page_timeout=0.1), get=hang)
    began = time.monotonic()
    watch.before()
    assert time.monotonic() - began < 2
    held.set()


# the GET


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    """A server that answers one request with these bytes, then closes. Returns the address of the page."""
    listeners: list[socket.socket] = []

    def start(answer: bytes, pause: float = 0.0) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            try:
                link, _ = listener.accept()
                with link:
                    link.recv(4096)
                    for at in range(0, len(answer), 1 if pause else 1 << 16):
                        link.sendall(answer[at:at + (1 if pause else 1 << 16)])
                        time.sleep(pause)
            except OSError:
                return

        threading.Thread(target=run, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"

    yield start
    for listener in listeners:
        listener.close()


def test_a_page_is_read_whole(serve: Callable[[bytes], str]) -> None:
    assert fetch.get(serve(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nvllm:"), 2.0) == "vllm:"
    assert fetch.get(serve(b"HTTP/1.0 200 OK\r\n\r\nuntil the close"), 2.0) == "until the close"


@pytest.mark.parametrize(("answer", "why"), [
    (b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
    (b"HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nx 1", "HTTP 500"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "connection was closed|cut|peer closed"),
    (b"SSH-2.0-OpenSSH\r\n", "."),
    (b"", "."),
])
def test_anything_but_a_whole_200_is_an_error(serve: Callable[[bytes], str], answer: bytes, why: str) -> None:
    with pytest.raises(fetch.FetchError, match=why):
        fetch.get(serve(answer), 2.0)


def test_a_page_without_end_is_cut(serve: Callable[[bytes], str]) -> None:
    with pytest.raises(fetch.FetchError, match="larger than"):
        fetch.get(serve(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * (3 << 20)), 5.0, limit=1 << 20)


def test_a_page_that_drips_ends_at_the_deadline(serve: Callable[..., str]) -> None:
    began = time.monotonic()
    with pytest.raises(fetch.FetchError, match="no whole answer in time"):
        fetch.get(serve(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + b"x" * 500, 0.05), 0.5)
    assert time.monotonic() - began < 2


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(fetch.FetchError, match="no connection"):
        fetch.get(f"http://127.0.0.1:{port}/metrics", 1.0)
