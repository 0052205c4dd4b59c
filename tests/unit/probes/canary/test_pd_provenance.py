"""The provenance test: whose answer it is, when it may be made, what it sends."""

from __future__ import annotations

from typing import Any

import pytest
from doubles.vllm import MODEL, Server
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.params import CanaryParams
from probes.canary.pd.provenance import APART, OUTPUT_TOKENS, RefusedError, classify, prompts, prove, refusal

A, B = tuple(range(16)), tuple(range(100, 116))


def params(**more: Any) -> CanaryParams:
    return CanaryParams.model_validate({"url": "http://d", "prefill": "http://p", "model": MODEL, "stack": "vllm", "route": "pair",
                                        "cache_salt": True, "prompt_tokens": 64, "pd": {"provenance": True}, **more})


@pytest.mark.parametrize(("answer", "says"), [
    (A, "moved"), (B, "recomputed"), ((7,) * 16, "neither"), ((*A[:5], *B[5:]), "moved"), ((*B[:9], 1), "recomputed"), ((), "neither"),
    ((*A[:2], 9, 9), "neither"),
], ids=["A's", "B's", "nobody's", "A's with a flipped token", "B's that was cut", "none", "too little of A's"])
def test_whose_answer_it_is(answer: tuple[int, ...], says: str) -> None:
    assert classify(answer, A, B) == says


def test_a_model_that_answers_everything_alike_proves_nothing() -> None:
    assert classify(A, A, A) == "inconclusive"
    assert classify(A, A, (*A[:14], 0, 0)) == "inconclusive"
    assert classify((), (), ()) == "inconclusive"


@given(st.lists(st.integers(0, 3), max_size=16), st.lists(st.integers(0, 3), max_size=16), st.lists(st.integers(0, 3), max_size=16))
def test_moved_needs_more_agreement_than_chance(answer: list[int], one: list[int], other: list[int]) -> None:
    if classify(tuple(answer), tuple(one), tuple(other)) == "moved":
        assert answer[:APART] == one[:APART]
        assert classify(tuple(answer), tuple(other), tuple(one)) == "recomputed", "the mirror image"


def test_both_prompts_have_one_length_and_one_end_and_nothing_else_in_common() -> None:
    a, b = prompts(64, b"x" * 16)
    assert len(a) == len(b) == 64
    assert a[-1] == b[-1]
    assert a[:16] != b[:16]
    assert prompts(64, b"x" * 16) == (a, b)
    assert prompts(64, b"y" * 16) != (a, b), "no block is ever used again"


@pytest.mark.parametrize(("more", "why"), [
    ({"route": "router", "prefill": None}, "needs the route pair"),
    ({"stack": "sglang", "cache_salt": False}, "works where the hand-over is kv_transfer_params"),
    ({"connector": "mooncake"}, "works where the hand-over"),
    ({"stack": "llm-d", "connector": "shared-storage"}, "works where the hand-over"),
    ({"cache_salt": False}, "needs cache_salt"),
    ({"pd": {"provenance": True, "shared_store": True}}, "refused: the engines share a KV store"),
])
def test_where_it_must_not_or_cannot_be_made(more: dict[str, Any], why: str) -> None:
    refused = params(**more)
    assert why in (refusal(refused) or "")
    with pytest.raises(RefusedError, match=why):
        prove(refused, [], seconds=1)


class Talking(Server):
    """A server whose answer depends on the prompt, or on that of the hand-over where it really uses it."""

    def __init__(self, *, honest: bool, handles: dict[str, list[int]]) -> None:
        super().__init__(ttft=0.0)
        self.honest, self.handles = honest, handles
        self.bodies: list[dict[str, Any]] = []

    def answer(self, fields: dict[str, Any]) -> list[int]:
        self.bodies.append(fields)
        given = (fields.get("kv_transfer_params") or {}).get("remote_engine_id")
        prompt = self.handles[given] if given in self.handles and self.honest else fields["prompt"]
        return [sum(prompt) * (index + 3) % 997 for index in range(fields["max_tokens"])]

    def handle(self, fields: dict[str, Any]) -> dict[str, Any]:
        name = f"h{len(self.handles)}"
        self.handles[name] = fields["prompt"]
        return {"remote_engine_id": name}


@pytest.mark.parametrize(("honest", "says"), [(True, "moved"), (False, "recomputed")])
def test_a_pair_that_moves_kv_and_one_that_recomputes(honest: bool, says: str) -> None:
    handles: dict[str, list[int]] = {}
    with Talking(honest=honest, handles=handles) as prefill, Talking(honest=honest, handles=handles) as decode:
        tested = prove(params(url=decode.url, prefill=prefill.url), [], seconds=20)
    assert tested.says == says, tested
    salts = [body["cache_salt"] for body in (*prefill.bodies, *decode.bodies)]
    assert len(salts) == len(set(salts)) == 4, "every request has a salt of its own"
    assert all(body["stream"] is False for body in decode.bodies)
    assert {body["max_tokens"] for body in decode.bodies} == {OUTPUT_TOKENS}
    assert [body["max_tokens"] for body in prefill.bodies] == [1]


def test_a_prefill_without_a_hand_over_is_inconclusive() -> None:
    with Talking(honest=True, handles={}) as prefill, Talking(honest=True, handles={}) as decode:
        prefill.drops = True
        tested = prove(params(url=decode.url, prefill=prefill.url), [], seconds=20)
    assert tested.says == "inconclusive"
    assert "did not act as prefill worker" in tested.why


def test_a_server_that_is_broken_or_gone_is_inconclusive() -> None:
    with Talking(honest=True, handles={}) as prefill, Talking(honest=True, handles={}) as decode:
        decode.broken = True
        assert prove(params(url=decode.url, prefill=prefill.url), [], seconds=20).says == "inconclusive"
    assert prove(params(url=decode.url, prefill=prefill.url), [], seconds=5).says == "inconclusive"
