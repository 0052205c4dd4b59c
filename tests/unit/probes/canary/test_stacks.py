"""Stacks: from one question to the requests each serving stack wants, and the mistakes that are refused before anything is sent."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import ValidationError

from probes.canary.params import CanaryParams
from probes.canary.request import completion_body
from probes.canary.stacks import STACKS, Ask, HandoverError, Plan
from probes.canary.stacks.refusals import llm_d_refusal
from probes.canary.stacks.signs import path_signs
from probes.canary.stacks.vllm import handle_of
from probes.canary.status import Status

URL, PREFILL = "http://decode:8000", "http://prefill:30000"


def params(**fields: Any) -> CanaryParams:
    return CanaryParams.model_validate({"url": URL, "model": "m", **fields})


def plan(given: dict[str, Any] | None = None, seed: int = 1, **fields: Any) -> Plan:
    made = params(**fields)
    return STACKS[made.stack].plan(Ask(made, completion_body(made, "hello"), random.Random(seed).randbytes, given))


@pytest.mark.parametrize("stack", sorted(STACKS))
@pytest.mark.parametrize("route", ["router", "baseline"])
def test_router_and_baseline_are_one_plain_request(stack: str, route: str) -> None:
    made = plan(stack=stack, route=route)
    assert (made.order, made.prefill, made.visible.url, made.visible.headers) == ("single", None, URL, {})
    assert made.visible.body == completion_body(params(), "hello")


def test_a_vllm_pair_is_serial_and_asks_prefill_for_one_token_without_a_stream() -> None:
    made = plan(stack="vllm", route="pair", prefill=PREFILL, max_tokens=7)
    assert made.order == "serial"
    assert made.prefill is not None
    assert made.prefill.url == PREFILL
    assert (made.prefill.body["max_tokens"], made.prefill.body["stream"]) == (1, False)
    assert "stream_options" not in made.prefill.body
    assert made.visible.body["max_tokens"] == 7
    assert "kv_transfer_params" not in made.visible.body


@pytest.mark.parametrize(("reply", "says"), [
    ({}, "no kv_transfer_params"), ({"kv_transfer_params": None}, "null"), ({"kv_transfer_params": {}}, "empty"),
    ({"kv_transfer_params": []}, "type list"), ({"kv_transfer_params": {"do_remote_prefill": False}}, "lack do_remote_prefill"),
])
def test_a_reply_without_a_usable_handle_is_told(reply: dict[str, Any], says: str) -> None:
    with pytest.raises(HandoverError, match=says):
        handle_of(reply)


def test_a_handle_of_any_version_is_passed_on_whole() -> None:
    handle = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "some_new_field": {"x": 1}}
    assert handle_of({"kv_transfer_params": handle}) == {"kv_transfer_params": handle}


def test_a_given_handover_makes_one_leg() -> None:
    handle = {"kv_transfer_params": {"do_remote_prefill": True}}
    for stack in ("vllm", "llm-d"):
        made = plan(handle, stack=stack, route="pair", prefill=PREFILL)
        assert (made.prefill, made.visible.headers) == (None, {})
        assert made.visible.body["kv_transfer_params"] == {"do_remote_prefill": True}


def test_an_sglang_pair_is_the_same_body_at_once_in_a_fresh_room() -> None:
    first, second = (plan(seed=seed, stack="sglang", route="pair", prefill=PREFILL, bootstrap_port=9000) for seed in (1, 2))
    assert first.order == "concurrent"
    assert first.prefill is not None
    assert first.prefill.body == first.visible.body
    assert (first.visible.body["bootstrap_host"], first.visible.body["bootstrap_port"]) == ("prefill", 9000)
    assert first.visible.body["bootstrap_room"] != second.visible.body["bootstrap_room"]
    assert first.visible.body["max_tokens"] == 32, "SGLang's prefill side makes one token whatever is asked for"


def test_mooncake_asks_the_bootstrap_server_first() -> None:
    made = plan(stack="vllm", route="pair", prefill=PREFILL, connector="mooncake")
    assert made.lookup is not None
    assert made.lookup.url == "http://prefill:8998/query"
    prefill, decode = made.lookup.fields({"0": {"engine_id": "e1"}})
    assert prefill == {}
    assert decode["kv_transfer_params"]["remote_engine_id"] == "e1"
    with pytest.raises(HandoverError, match="engine_id"):
        made.lookup.fields({"1": {"engine_id": "e1"}})


@pytest.mark.parametrize(("prefill", "header"), [
    ("http://10.0.0.7:8000", "10.0.0.7:8000"), ("http://prefill-0", "prefill-0:80"), ("https://p:443/v1", "p:443"),
    ("http://[fd00::1]:8000", "[fd00::1]:8000"),
])
def test_the_routing_header_of_llm_d_always_has_one_host_and_a_port(prefill: str, header: str) -> None:
    assert plan(stack="llm-d", route="pair", prefill=prefill).visible.headers == {"x-prefiller-host-port": header}


@pytest.mark.parametrize(("connector", "has"), [("nixl", True), ("shared-storage", True), ("sglang", False), ("mooncake", False),
                                                ("offloading", False)])
def test_the_first_token_of_a_concurrent_connector_may_come_before_the_prefill(connector: str, has: bool) -> None:
    assert plan(stack="llm-d", route="pair", prefill=PREFILL, connector=connector).ttft_has_prefill is has


def test_a_low_priority_is_sent_where_it_is_asked_for() -> None:
    assert plan(stack="vllm", priority=1000).visible.body["priority"] == 1000
    assert plan(stack="llm-d", objective="canary").visible.headers == {"x-gateway-inference-objective": "canary"}
    assert "priority" not in plan(stack="vllm").visible.body


@pytest.mark.parametrize(("fields", "says"), [
    ({"route": "pair"}, "route pair is not possible with stack openai"),
    ({"stack": "ray-serve", "route": "pair"}, "not possible with stack ray-serve: use one of baseline, router"),
    ({"stack": "vllm", "route": "pair"}, "needs prefill"),
    ({"stack": "vllm", "prefill": PREFILL}, "prefill is for the route pair"),
    ({"stack": "vllm", "connector": "offloading"}, "makes no sense with stack vllm: use one of nixl, mooncake"),
    ({"connector": "nixl"}, "makes no sense with stack openai: leave it out"),
    ({"stack": "vllm", "route": "pair", "prefill": PREFILL, "extra_body": {"kv_transfer_params": {}}}, "set by the canary itself"),
    ({"stack": "ray-serve", "extra_body": {"kv_transfer_params": {}}}, "Ray Serve LLM sets kv_transfer_params itself"),
    ({"stack": "sglang", "route": "pair", "prefill": PREFILL, "bootstrap_host": "2.2.2.2"}, "fake the transfer"),
    ({"stack": "sglang", "cache_salt": True}, "dropped by SGLang's routers"),
    ({"stack": "sglang", "route": "pair", "prefill": PREFILL, "extra_body": {"bootstrap_room": 1}}, "bootstrap_room is set by the canary"),
    ({"stack": "llm-d", "headers": {"X-Prefiller-Host-Port": "a:1"}}, "use route pair and prefill"),
    ({"stack": "vllm", "objective": "x"}, "objective is for stack llm-d"),
    ({"stack": "vllm", "route": "pair", "prefill": "prefill:8000"}, "must begin with http"),
    ({"batch_invariant": True}, "needs reference"),
    ({"priority": 1, "extra_body": {"priority": 2}}, "extra_body as well"),
])
def test_what_cannot_work_is_refused_before_anything_is_sent(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        params(**fields)


def test_a_run_of_a_pair_or_of_two_requests_has_the_time_for_it() -> None:
    single = params().longest
    assert params(stack="vllm", route="pair", prefill=PREFILL).longest > single
    assert params(prompt="shared_prefix").longest > 2 * params().total_timeout
    assert params(reference="http://other:8000").longest > 2 * params().total_timeout


@pytest.mark.parametrize(("code", "headers", "body", "status", "who"), [
    (502, {}, "", None, "prefill worker"),
    (400, {}, '{"object":"error","message":"unexpected end of JSON input"}', Status.HTTP_5XX, "prefill worker's reply"),
    (400, {}, '{"object":"error","message":"invalid JSON: invalid character","type":"BadRequestError"}', None, None),
    (503, {"x-went-into-resp-headers": "true"}, "upstream connect error or disconnect/reset before headers", None, "decode pod's sidecar"),
    (500, {}, "", None, "endpoint picker"),
    (500, {}, '{"error":{"message":"x"}}', None, None),
    (429, {"x-llm-d-request-dropped-reason": "rejected-saturated"},
     "inference error: ResourceExhausted - no endpoints available for the given request", None, "no decode pod"),
    (400, {}, "inference error: BadRequest - model not found in request body", None, "picker refused"),
    (429, {}, "slow down", None, None),
])
def test_an_error_answer_of_llm_d_says_who_refused(code: int, headers: dict[str, str], body: str, status: Status | None,
                                                   who: str | None) -> None:
    found = llm_d_refusal(code, headers, body)
    assert (found is None) is (who is None)
    if found is not None and who is not None:
        assert found.status is status
        assert who in found.who


def test_signs_of_the_way_are_words_and_claim_no_transfer() -> None:
    assert path_signs([("x-went-into-resp-headers", "true")], None) == ("an llm-d endpoint picker in the path",)
    assert path_signs([], "chatcmpl-9f5bc4ea-ec3e-11f1-93cb-3dd293e70efa")[0].startswith("an id made by an llm-d sidecar")
    assert path_signs([], "chatcmpl-571ec56a-2ece-459b-b9c8-6993af051c47") == ()
    assert path_signs([("x-smg-routed-worker-id", "http://d:1")], "x") == ("the decode worker that smg chose",)
