"""The canary in the place of the router: vLLM with NIXL and with Mooncake, SGLang by bootstrap room.

The engines are doubles, the sockets are real."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from canary_peers import delivered, quick
from doubles.llmd import FAULTS, LlmD, llm_d
from doubles.sglang import SglangPair, sglang_pair

from probes.canary.client import CanaryRun, measure, prefill_only
from probes.canary.dial import SetupError
from probes.canary.prompt import compose
from probes.canary.stacks.vllm import ASK_FOR_HANDLE
from probes.reasons import Reason

SOON: dict[str, Any] = {"head_timeout": 3.0, "first_token_timeout": 3.0, "stall_timeout": 1.0, "total_timeout": 8.0}


def vllm(there: LlmD, **fields: Any) -> CanaryRun:
    where = {"bootstrap_port": there.bootstrap.house.port, "prefill": there.prefill.house.url}
    return measure(quick(there.decode.house.url, stack="vllm", route="pair", model="canary-model", max_tokens=8,
                         **{**SOON, **where, **fields}))


def sglang(there: SglangPair, **fields: Any) -> CanaryRun:
    return measure(quick(there.decode.url, stack="sglang", route="pair", prefill=there.prefill.url, model="canary-model", max_tokens=8,
                         **{**SOON, **fields}))


# vLLM with NIXL: first the prefill leg, then the decode leg with its handle


def test_the_decode_leg_carries_the_handle_of_the_prefill_leg_as_it_came() -> None:
    with llm_d() as there:
        run = vllm(there)
        assert delivered(run), run.message
        prefill, decode = there.prefill.seen[0].json(), there.decode.seen[0].json()
        assert run.stream.handover == "given"
        assert decode["kv_transfer_params"] == there.prefill.behaviour.handle
        assert prefill["kv_transfer_params"] == ASK_FOR_HANDLE
        assert (prefill["max_tokens"], prefill["stream"], "stream_options" in prefill) == (1, False, False)
        assert prefill["messages"] == decode["messages"]
        assert there.prefill.seen[0].get("x-request-id") is None


def test_the_time_to_the_first_token_has_the_prefill_in_it() -> None:
    with llm_d() as there:
        there.prefill.behaviour.ttft = 0.2
        there.decode.behaviour.kv = 0.05
        stream = vllm(there).stream
    assert stream.prefill is not None
    assert stream.prefill.seconds is not None
    assert stream.ttft is not None
    assert stream.decode_ttft is not None
    assert 0.19 < stream.prefill.seconds < 1.5
    assert 0.04 < stream.decode_ttft < 1.0
    # Both legs are on one clock: what lies between them is the hand-over, the canary's own.
    assert stream.prefill.seconds + stream.decode_ttft <= stream.ttft < stream.prefill.seconds + stream.decode_ttft + 0.5
    assert stream.prefill.start == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("case", ["prefill 200 without kv_transfer_params", "prefill 200, kv_transfer_params null",
                                  "prefill 200, kv_transfer_params {}", "prefill 200, do_remote_prefill false"])
def test_a_prefill_worker_that_gives_no_handle_is_seen_at_once(case: str) -> None:
    with llm_d() as there:
        FAULTS[case](there)
        run = vllm(there)
    assert delivered(run)
    assert run.stream.handover == "missing"
    assert "prefill" in run.handover_problem


@pytest.mark.parametrize(("case", "reason", "says"), [
    ("prefill port closed", Reason.CONNECT_FAILED, "refused"),
    ("prefill never answers", Reason.TIMEOUT_FIRST_TOKEN, "no reply in time"),
    ("prefill 500", Reason.HTTP_SERVER_ERROR, "prefill says 500"),
    ("prefill 429", Reason.SHED, "prefill says 429"),
    ("prefill 200, empty body", Reason.PROTOCOL_ERROR, "not a JSON object"),
])
def test_a_fault_of_the_prefill_leg_is_named_and_decode_is_left_alone(case: str, reason: Reason, says: str) -> None:
    with llm_d() as there:
        FAULTS[case](there)
        run = vllm(there)
        assert there.decode.seen == []
    assert run.reason is reason
    assert run.message.startswith("prefill leg: ")
    assert says in run.message


def test_a_fault_of_the_decode_leg_is_not_put_on_prefill() -> None:
    with llm_d() as there:
        FAULTS["decode 500"](there)
        run = vllm(there)
    assert run.reason is Reason.HTTP_SERVER_ERROR
    assert "prefill leg" not in run.message
    assert run.stream.prefill is not None
    assert run.stream.prefill.status == "ok"


def test_a_decode_worker_that_closed_its_idle_connection_is_called_again() -> None:
    """Servers close what is idle, and the decode connection waits for the prefill leg."""
    with llm_d() as there:
        there.prefill.behaviour.ttft = 0.3
        port = there.decode.house.port
        import threading

        def restart() -> None:
            there.decode.house.kill()
            there.decode.house.port = port
            there.decode.house.open()

        threading.Timer(0.15, restart).start()
        run = vllm(there)
    assert delivered(run), run.message


def test_a_handover_can_be_kept_for_another_prompt() -> None:
    """What the provenance test is made of: A's prefill, B's decode."""
    with llm_d() as there:
        params = quick(there.decode.house.url, stack="vllm", route="pair", prefill=there.prefill.house.url, model="canary-model",
                       api="completions", cache_salt=True)
        first, second = compose(40, b"12345678", 0), compose(40, b"87654321", 0)
        kept = prefill_only(params, first)
        assert kept.fields == {"kv_transfer_params": there.prefill.behaviour.handle}
        run = measure(params, prompt=second, given=kept.fields)
        assert delivered(run), run.message
        assert len(there.prefill.seen) == 1
        sent = there.decode.seen[0].json()
        assert (sent["prompt"], sent["kv_transfer_params"]) == (second.content, there.prefill.behaviour.handle)
        assert there.prefill.seen[0].json()["cache_salt"] != sent["cache_salt"]
        with pytest.raises(SetupError, match="no prefill leg"):
            prefill_only(quick(there.url, stack="openai"), first)


def test_a_key_that_the_prefill_worker_repeats_is_in_no_message(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-very-secret-key")
    refusal = (401, [("Content-Type", "application/json")], b'{"error":{"message":"bad key sk-very-secret-key"}}')
    with llm_d() as there:
        there.prefill.behaviour.canned = refusal
        run = vllm(there, key_file=str(key))
        kept = prefill_only(quick(there.decode.house.url, stack="vllm", route="pair", prefill=there.prefill.house.url, key_file=str(key)),
                            compose(40, b"12345678", 0))
        assert there.prefill.seen[0].get("authorization") == "Bearer sk-very-secret-key"
    for text in (run.message, run.stream.model_dump_json(), kept.message, kept.leg.model_dump_json()):
        assert "very-secret" not in text
        assert "(key)" in text


# vLLM with Mooncake: both at once, after a look at the bootstrap server


def test_mooncake_legs_share_a_transfer_and_name_the_engine() -> None:
    with llm_d() as there:
        run = vllm(there, connector="mooncake")
        assert delivered(run), run.message
        prefill, decode = (engine.seen[0].json()["kv_transfer_params"] for engine in (there.prefill, there.decode))
        assert prefill["transfer_id"] == decode["transfer_id"]
        assert decode["remote_engine_id"] == "8e9eaa7a-380f-519a-89d4-2e638316111f"
        assert decode["remote_bootstrap_addr"] == f"http://127.0.0.1:{there.bootstrap.house.port}"
        assert run.ttft_has_prefill is False
        assert run.stream.prefill is not None
        assert run.stream.prefill.status == "ok"


@pytest.mark.parametrize("case", ["bootstrap port closed", "bootstrap 500", "bootstrap without engine_id"])
def test_a_bootstrap_server_that_does_not_help_ends_the_request(case: str) -> None:
    with llm_d() as there:
        FAULTS[case](there)
        run = vllm(there, connector="mooncake")
        assert there.legs() == ([], [])
    assert run.reason in (Reason.CONNECT_FAILED, Reason.HTTP_SERVER_ERROR, Reason.PROTOCOL_ERROR)


# SGLang: both at once, each waits for the other


def test_both_sglang_workers_get_the_same_body_and_a_room_of_its_own() -> None:
    with sglang_pair() as there:
        runs = [sglang(there), sglang(there)]
        assert all(delivered(run) for run in runs), runs[0].message
        bodies = [(p.json(), d.json()) for p, d in zip(there.prefill.seen, there.decode.seen, strict=True)]
    assert all(prefill == decode for prefill, decode in bodies)
    first, second = bodies[0][0], bodies[1][0]
    assert first["bootstrap_host"] == "127.0.0.1"
    assert first["bootstrap_port"] == 8998
    assert first["bootstrap_room"] != second["bootstrap_room"]
    assert 0 < first["bootstrap_room"] < 2**63
    assert runs[0].stream.prefill is not None
    assert runs[0].stream.prefill.status == "ok"


def test_a_dead_sglang_prefill_worker_is_named_though_decode_would_wait_for_minutes() -> None:
    with sglang_pair() as there:
        there.prefill.refuse = (500, b'{"object":"error","message":"out of memory","code":500}')
        began = time.monotonic()
        run = sglang(there)
        assert time.monotonic() - began < 2.5, "nobody waits for the deadline of the first token"
        there.prefill.house.close()
        dead = sglang(there)
        deadline = time.monotonic() + 2
        while there.decode.seen[0].left_at is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert there.decode.seen[0].left_at is not None, "the decode worker's request was aborted"
    assert (run.reason, run.message) == (Reason.HTTP_SERVER_ERROR, "prefill leg: HTTP 500: out of memory")
    assert dead.reason is Reason.CONNECT_FAILED
    assert dead.message.startswith("prefill leg: ")


@pytest.mark.parametrize(("fault", "reason"), [("abort", Reason.FINISH_ABORT), ("error", Reason.ERROR_IN_STREAM), ("cut", Reason.TRUNCATED),
                                               ("stall", Reason.TIMEOUT_STALL)])
def test_sglangs_ways_to_fail_in_a_stream(fault: str, reason: Reason) -> None:
    with sglang_pair() as there:
        there.decode.fault = fault
        run = sglang(there)
    assert run.reason is reason
    assert run.stream.token_events == 3


def test_a_dead_decode_worker_ends_the_prefill_leg_soon() -> None:
    with sglang_pair() as there:
        there.decode.refuse = (503, b'{"object":"error","message":"The request queue is full.","code":503}')
        run = sglang(there)
        deadline = time.monotonic() + 2
        while there.prefill.seen[0].left_at is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert there.prefill.seen[0].left_at is not None
    assert run.reason is Reason.SHED


def test_a_worker_without_a_room_says_so() -> None:
    """A prefill or decode worker serves nothing alone: it is no baseline."""
    with sglang_pair() as there:
        run = measure(quick(there.decode.url, stack="sglang", route="baseline", model="canary-model", **SOON))
    assert run.reason is Reason.HTTP_CLIENT_ERROR
    assert "bootstrap room" in run.message
