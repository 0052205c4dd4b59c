"""The canary through a real sglang-router 0.3.2 in PD mode, in front of two small doubles of SGLang servers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from canary_peers import delivered, quick
from doubles.sglang import SglangPair, sglang_pair
from e2e.routers.running import answers, environment, running
from thismachine import free_port

from probes.canary.client import CanaryRun, measure
from probes.reasons import Reason


@dataclass
class Routed:
    """A router and the workers behind it."""

    url: str
    metrics: str
    workers: SglangPair

    def ask(self, **fields: Any) -> CanaryRun:
        """One canary through the router."""
        return measure(quick(self.url, stack="sglang", model="canary-model", **{"max_tokens": 8, **fields}))


@contextlib.contextmanager
def routed(folder: Path, wait: float = 5.0) -> Iterator[Routed]:
    python = environment("sglang-router")
    with sglang_pair() as workers:
        workers.prefill.wait = workers.decode.wait = wait
        port, metrics = free_port(), free_port()
        command = [str(python), "-m", "sglang_router.launch_router", "--pd-disaggregation", "--prefill", workers.prefill.url, "8998",
                   "--decode", workers.decode.url, "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
                   "--prometheus-port", str(metrics)]
        url = f"http://127.0.0.1:{port}"
        with running(command, folder / "router.log", lambda: answers(f"{url}/readiness")):
            yield Routed(url, f"http://127.0.0.1:{metrics}/metrics", workers)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with routed(tmp_path_factory.mktemp("router")) as there:
        yield there


@pytest.fixture
def there(good: Routed) -> Iterator[Routed]:
    yield good
    good.workers.decode.fault = ""


def test_the_router_brings_both_workers_together_in_one_room(there: Routed) -> None:
    before = len(there.workers.decode.seen)
    run = there.ask()
    assert delivered(run), run.message
    prefill, decode = there.workers.prefill.seen[-1].json(), there.workers.decode.seen[-1].json()
    assert len(there.workers.decode.seen) == before + 1
    for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room"):
        assert prefill[name] == decode[name]
    assert (prefill["bootstrap_host"], prefill["bootstrap_port"]) == ("127.0.0.1", 8998)
    assert (run.stream.output_tokens, run.stream.finish_reason) == (8, "length")
    assert run.stream.ttft is not None
    assert run.stream.ttft > 0.03, "the decode worker waits for the prefill worker"


def test_the_router_drops_what_it_does_not_know_so_only_the_first_block_keeps_caches_out(there: Routed) -> None:
    runs = [there.ask(seed=7, extra_body={"cache_salt": "x", "rid": "mine"}) for _ in range(2)]
    assert all(delivered(run) for run in runs)
    first, second = (request.json() for request in there.workers.decode.seen[-2:])
    assert "cache_salt" not in first
    assert "rid" not in first
    assert (first["ignore_eos"], first["seed"], first["stream_options"]) == (True, 7, {"include_usage": True})
    starts = [body["messages"][0]["content"].split(".")[0] for body in (first, second)]
    assert starts[0] != starts[1]


def test_what_the_router_was_told_of_a_room_is_written_over(there: Routed) -> None:
    assert delivered(there.ask(extra_body={"bootstrap_host": "2.2.2.2", "bootstrap_port": 1, "bootstrap_room": 1}))
    assert there.workers.decode.seen[-1].json()["bootstrap_host"] == "127.0.0.1", "no canary can be faked by its own fields"


@pytest.mark.parametrize(("fault", "reason", "says"), [
    ("error", Reason.ERROR_IN_STREAM, "KVTransferError"), ("abort", Reason.FINISH_ABORT, "finish_reason abort"),
    ("cut", Reason.TRUNCATED, "after 3 token events"),
])
def test_a_decode_worker_that_fails_in_mid_stream_is_no_success(there: Routed, fault: str, reason: Reason, says: str) -> None:
    """The router counts each of these as a success: a 200 went through it."""
    there.workers.decode.fault = fault
    run = there.ask()
    assert (run.reason, says in run.message) == (reason, True), run.message
    assert run.stream.http_status == 200


def left(there: Routed) -> bool:
    """Whether the decode worker hears, within three seconds, that the last request was given up."""
    request = there.workers.decode.seen[-1]
    until = time.monotonic() + 3
    while request.left_at is None and time.monotonic() < until:
        time.sleep(0.02)
    return request.left_at is not None


def test_a_stream_that_is_given_up_ends_on_the_worker(there: Routed) -> None:
    itl, there.workers.decode.itl = there.workers.decode.itl, 0.1
    try:
        run = there.ask(total_timeout=1.5, max_tokens=64)
    finally:
        there.workers.decode.itl = itl
    assert run.reason is Reason.TIMEOUT_TOTAL
    assert left(there), "closing the stream frees the decode worker"


def test_a_stalled_stream_is_given_up_soon_though_only_a_pair_tells_its_worker(there: Routed) -> None:
    """The router learns of a client that left only when it has something to send to it."""
    there.workers.decode.fault = "stall"
    run = there.ask(stall_timeout=0.7)
    assert run.reason is Reason.TIMEOUT_STALL
    direct = measure(quick(there.workers.decode.url, stack="sglang", route="pair", prefill=there.workers.prefill.url, model="canary-model",
                           stall_timeout=0.7))
    assert direct.reason is Reason.TIMEOUT_STALL
    assert left(there)


def test_the_same_pair_can_be_asked_beside_the_router(there: Routed) -> None:
    run = measure(quick(there.workers.decode.url, stack="sglang", route="pair", prefill=there.workers.prefill.url, model="canary-model",
                        max_tokens=8))
    assert delivered(run), run.message
    assert run.stream.prefill is not None
    assert run.stream.prefill.status == "ok"


def test_a_dead_prefill_worker_shows_through_the_router_and_by_name_on_the_pair(tmp_path: Path) -> None:
    with routed(tmp_path, wait=0.2) as there:
        assert delivered(there.ask())
        there.workers.prefill.house.close()
        runs = [there.ask(head_timeout=8.0, first_token_timeout=8.0) for _ in range(4)]
        assert {run.reason for run in runs} <= {Reason.HTTP_SERVER_ERROR, Reason.TIMEOUT_HEADER, Reason.SHED}
        assert any(run.reason is Reason.HTTP_SERVER_ERROR for run in runs)
        orphans = len(there.workers.decode.seen) - 1
        assert orphans > len(runs), "the router tries again, and each try leaves a request on the decode worker"
        assert answers(f"{there.url}/health"), "the router calls itself healthy meanwhile"
        began = time.monotonic()
        pair = measure(quick(there.workers.decode.url, stack="sglang", route="pair", prefill=there.workers.prefill.url,
                             model="canary-model"))
        assert time.monotonic() - began < 5.0
        assert pair.reason is Reason.CONNECT_FAILED
        assert pair.message.startswith("prefill leg: ")
