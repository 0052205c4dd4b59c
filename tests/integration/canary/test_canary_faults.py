"""Every fault over real sockets, plain and TLS: the right status, soon, and the connection closed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from canary_peers import MakeParams, delivered

from probes.canary.client import measure
from probes.canary.scenario import Fault
from probes.canary.simulated import SimulatedEndpoint
from probes.reasons import Outcome, outcome_of

VERDICTS = {
    Fault.ERROR_IN_STREAM: "error_in_stream",
    Fault.CUT: "truncated",
    Fault.CUT_CLEAN: "truncated",
    Fault.RESET: "truncated",
    Fault.NO_ANSWER: "truncated",
    Fault.EMPTY: "empty_answer",
    Fault.SHORT: "wrong_length",
    Fault.LONG: "wrong_length",
    Fault.FINISH_ABORT: "finish_abort",
    Fault.FINISH_ERROR: "finish_error",
    Fault.GARBAGE: "protocol_error",
    Fault.NOT_UTF8: "protocol_error",
    Fault.HUGE_LINE: "protocol_error",
    Fault.HUGE_HEAD: "protocol_error",
    Fault.NOT_HTTP: "protocol_error",
    Fault.JSON_ANSWER: "protocol_error",
    Fault.JSON_ERROR: "error_in_stream",
    Fault.GZIP: "protocol_error",
    Fault.REDIRECT: "protocol_error",
    Fault.HTTP_400: "http_4xx",
    Fault.HTTP_401: "http_4xx",
    Fault.HTTP_404: "http_4xx",
    Fault.HTTP_429: "shed",
    Fault.HTTP_500: "http_5xx",
    Fault.HTTP_502: "http_5xx",
    Fault.HTTP_503: "http_5xx",
    Fault.HTTP_503_RETRY: "shed",
    Fault.HTTP_503_DROPPED: "shed",
    Fault.HTTP_503_NO_ENDPOINTS: "http_5xx",
}
SILENT = {
    Fault.STALL: "timeout_stall",
    Fault.DRIP: "timeout_stall",
    Fault.NO_TAIL: "timeout_stall",
    Fault.SLOW_HEAD: "timeout_header",
    Fault.DRIP_HEAD: "timeout_header",
}


WRONG = {Fault.GARBLED: "mismatch", Fault.CROSSTALK: "crosstalk"}
"""Delivered well, and not the answer: see test_canary_sessions."""


def test_every_fault_has_its_verdict_here() -> None:
    assert set(VERDICTS) | set(SILENT) | set(WRONG) | {Fault.NONE} == set(Fault)


@pytest.mark.parametrize(("fault", "status"), VERDICTS.items())
def test_a_fault_is_told_at_once(params: MakeParams, fault: Fault, status: str) -> None:
    run = measure(params({"fault": fault.value}))
    assert run.stream.status == status, run.message
    assert run.message
    assert outcome_of(run.reason) is not Outcome.OK
    if run.stream.e2e is not None:
        assert run.stream.e2e < 5


@pytest.mark.parametrize(("fault", "status"), SILENT.items())
def test_a_peer_that_says_nothing_or_drips_meets_its_deadline(params: MakeParams, endpoint: SimulatedEndpoint, fault: Fault,
                                                              status: str) -> None:
    made = params({"fault": fault.value}, head_timeout=0.4, first_token_timeout=0.5, stall_timeout=0.3)
    began = time.monotonic()
    run = measure(made)
    took = time.monotonic() - began
    assert run.stream.status == status, run.message
    assert 0.25 < took < 5
    _wait_until(lambda: endpoint.served[-1].left, "the endpoint sees that the client left")


def test_no_first_token_though_the_head_and_keep_alives_come(params: MakeParams) -> None:
    run = measure(params({"fault": "drip", "at": 0}, first_token_timeout=2.5))
    assert run.stream.status == "timeout_first_token"
    assert "keep-alives came" in run.message
    assert run.stream.ttfb is not None
    assert run.stream.ttft is None


def test_an_answer_that_takes_too_long_as_a_whole(params: MakeParams) -> None:
    run = measure(params({"gap": 0.2}, total_timeout=0.5, stall_timeout=5))
    assert run.stream.status == "timeout_total"
    assert run.stream.token_events in (1, 2, 3)


def test_retry_after_is_passed_on(params: MakeParams) -> None:
    assert measure(params({"fault": "http_503_retry"})).stream.retry_after == 7.0


@pytest.mark.parametrize("scenario", [
    {"split": 1},
    {"split": 7},
    {"keep_alive": True},
    {"bundle": 4},
    {"coalesce": 2, "gap": 0.02, "ttft": 0.05, "bundle": 2},
    {"reasoning": 3},
    {"framing": "close"},
    {"early_head": False},
    {"tokens_per_event": 3},
    {"usage": False},
], ids=str)
def test_harmless_differences_between_servers_are_harmless(params: MakeParams, scenario: dict[str, Any]) -> None:
    run = measure(params(scenario, anchors="off", check_length=scenario.get("tokens_per_event", 1) == 1))
    assert delivered(run), run.message
    assert run.stream.finish_reason == "length"
    assert "日本" in "".join(run.answer.content + run.answer.reasoning)
    if scenario.get("reasoning") and run.stream.status == "ok":
        assert run.stream.ttfo is not None
        assert run.stream.ttft is not None
        assert run.stream.ttfo > run.stream.ttft


def test_a_whole_answer_behind_a_content_length_cannot_be_timed(params: MakeParams) -> None:
    run = measure(params({"framing": "length"}))
    assert (run.stream.status, run.stream.token_events, run.stream.unresolved_events) == ("disturbed", 8, 7)


def test_text_completions(params: MakeParams) -> None:
    run = measure(params(api="completions"))
    assert delivered(run), run.message
    assert (run.stream.output_tokens, run.stream.token_count_source) == (8, "usage")


def test_counts_of_every_event_where_the_server_gives_them(params: MakeParams) -> None:
    run = measure(params({"tokens_per_event": 2, "gap": 0.03}, continuous_usage=True))
    assert delivered(run), run.message
    assert run.stream.token_events == 4
    if run.stream.unresolved_events == 0:
        assert len(run.stream.itl) >= 4  # two gaps or three, each once a token
        assert all(0.005 < gap < 0.03 for gap in run.stream.itl)


def _wait_until(true: Any, what: str) -> None:
    until = time.monotonic() + 5
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.02)
