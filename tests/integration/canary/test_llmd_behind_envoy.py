"""The canary through a real Envoy in front of the double of llm-d's sidecar: delays, refusals, resets, cut streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canary_peers import quick
from doubles.llmd import FAULTS, LlmD, llm_d
from envoy import envoy

from probes.canary.client import CanaryRun, measure

SOON: dict[str, Any] = {"head_timeout": 6.0, "first_token_timeout": 6.0, "stall_timeout": 2.5, "total_timeout": 12.0}
"""Envoy closes a cut stream a second late, so a stall must be longer to be told from it."""


@pytest.fixture
def there() -> Iterator[LlmD]:
    with llm_d() as pair:
        pair.decode.behaviour.itl = 0.02
        yield pair


def ask(url: str, there: LlmD, **fields: Any) -> CanaryRun:
    return measure(quick(url, stack="llm-d", route="pair", prefill=f"http://{there.prefiller}", model="canary-model", max_tokens=8,
                         **{**SOON, **fields}))


def test_the_gateway_passes_pair_stream_and_faults(there: LlmD, tmp_path: Path) -> None:
    """One Envoy for the cases that need none of its own faults."""
    with envoy(tmp_path, there.sidecar.house.port) as url:
        good = ask(url, there)
        assert good.stream.status in ("ok", "disturbed"), good.message
        assert there.legs() == ([200], [200]), "the routing header passed"
        assert good.stream.output_tokens == 8
        assert good.stream.tpot is not None
        assert 0.005 < good.stream.tpot < 0.3

        there.decode.behaviour.fault = "cut"
        cut = ask(url, there)
        assert cut.stream.status == "truncated", cut.message

        there.decode.behaviour.fault = "reset"
        assert ask(url, there).stream.status == "truncated"

        there.decode.behaviour.fault = "stall"
        stalled = ask(url, there, stall_timeout=0.8)
        assert stalled.stream.status == "timeout_stall"
        there.decode.behaviour.fault = ""

        FAULTS["prefill port closed"](there)
        dead = ask(url, there)
        assert (dead.stream.status, "could not reach the prefill worker" in dead.message) == ("http_5xx", True)

        there.sidecar.house.close()
        gone = ask(url, there)
        assert (gone.stream.status, gone.stream.http_status) == ("http_5xx", 503)


def test_a_delay_of_the_gateway_is_in_the_time_to_the_first_token_only(there: LlmD, tmp_path: Path) -> None:
    delay = {"delay": {"fixed_delay": "0.4s", "percentage": {"numerator": 100}}}
    with envoy(tmp_path, there.sidecar.house.port, fault=delay) as url:
        slow = ask(url, there)
    assert slow.stream.ttft is not None
    assert slow.stream.tpot is not None
    assert 0.4 < slow.stream.ttft < 3.0
    assert slow.stream.tpot < 0.3


def test_a_time_limit_of_the_gateway_cuts_the_stream(there: LlmD, tmp_path: Path) -> None:
    """Envoy's route timeout covers the whole answer: a 200 that ends in the middle."""
    there.decode.behaviour.itl = 0.1
    with envoy(tmp_path, there.sidecar.house.port, route_timeout="0.4s") as url:
        cut = ask(url, there)
    assert cut.stream.http_status == 200
    assert cut.stream.status in ("truncated", "error_in_stream"), cut.message


def test_a_gateway_that_refuses_some_requests_is_a_failure_of_the_endpoint(there: LlmD, tmp_path: Path) -> None:
    abort = {"abort": {"http_status": 503, "percentage": {"numerator": 100}}}
    with envoy(tmp_path, there.sidecar.house.port, fault=abort) as url:
        refused = ask(url, there)
    assert (refused.stream.status, refused.stream.http_status) == ("http_5xx", 503)
    assert there.legs() == ([], [])
