"""KV bytes learned from the engine, the formula beside them, and the parts of the time to the first token."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.pd.evidence import Evidence, Side
from probes.canary.pd.learn import formula, learn, padded, predict
from probes.canary.pd.params import KvShape
from probes.canary.pd.reading import Change
from probes.canary.pd.split import Transfer, split, transfer


def test_two_lengths_give_slope_and_constant() -> None:
    learned = learn([(100, 100 * 512 + 4096), (4000, 4000 * 512 + 4096)])
    assert learned is not None
    assert (learned.slope, learned.constant) == (512, 4096)
    assert predict(learned, 1000) == 1000 * 512 + 4096


def test_blocks_are_taken_whole() -> None:
    """Recorded: 456 tokens in blocks of 128 moved 1,048,576 bytes, which is 4 blocks."""
    learned = learn([(456, 1048576), (32, 262144)], block_tokens=128)
    assert learned is not None
    assert (learned.slope, learned.constant) == (2048, 0)
    assert predict(learned, 500) == 1048576
    assert predict(learned, 513) == 1310720
    assert padded(456, 128) == 512


def test_one_length_or_two_alike_teach_nothing() -> None:
    assert learn([(456, 1048576)] * 5) is None
    assert learn([(456, 1000), (500, 1100)]) is None
    assert learn([]) is None
    assert learn([(10, 0), (1000, 0)]) is None
    assert learn([(100, 5000), (1000, 5000)]) is None, "bytes that do not grow with the prompt are no KV"


def test_one_shared_window_moves_nothing() -> None:
    good = [(t, t * 1000) for t in (32, 512, 4096) for _ in range(3)]
    learned = learn([*good, (4096, 9 * 4096 * 1000)])
    assert learned is not None
    assert predict(learned, 2048) == pytest.approx(2048 * 1000, rel=0.02)


@given(st.integers(1, 10_000), st.integers(0, 1 << 20), st.sampled_from([None, 16, 128]), st.lists(st.integers(16, 9000), min_size=3))
def test_what_is_linear_is_learned_within_two_percent(slope: int, constant: int, block: int | None, lengths: list[int]) -> None:
    samples = [(t, padded(t, block) * slope + constant) for t in lengths]
    learned = learn(samples, block)
    if learned is not None:
        for tokens, moved in samples:
            assert predict(learned, tokens) == pytest.approx(moved, rel=0.02, abs=1)


def test_the_formula_with_full_attention_and_with_a_latent_cache() -> None:
    assert formula(KvShape(layers=4, kv_heads=2, head_dim=64), 456, 128) == 512 * 4 * 2 * 2 * 64 * 2
    assert formula(KvShape(layers=61, head_dim=576, latent=True), 1000) == 1000 * 61 * 576 * 2


def pair(**decode: float) -> Evidence:
    prefill = Change("prefill", "p", "vllm", {"requests": 1.0, "queue_seconds": 0.01, "queue_count": 1.0, "prefill_seconds": 0.2,
                                              "prefill_count": 1.0})
    mine = {"requests": 1.0, "kv_bytes": 8e8, "kv_transfers": 8.0, "kv_seconds": 0.4, "kv_timed": 8.0, "queue_seconds": 0.07,
            "queue_count": 1.0, **decode}
    return Evidence("pair", delivered=True, prompt_tokens=4096, prefill=Side((prefill,)),
                    decode=Side((Change("decode", "d", "vllm", mine),)))


def test_ranks_transfer_side_by_side() -> None:
    moved = transfer(pair())
    assert (moved.moved, moved.seconds, moved.rate) == (800_000_000, 0.05, 1.6e10)


def test_the_parts_make_up_the_time_to_the_first_token() -> None:
    """vLLM counts the wait for remote KV as queueing on decode: 0.07 s there hold the 0.05 s of the transfer."""
    parts = split(pair(), transfer(pair()), ttft=0.4, prefill_leg=0.25, ttft_has_prefill=True)
    assert parts.queue == pytest.approx(0.03)
    assert parts.prefill == pytest.approx(0.24)
    assert parts.transfer == pytest.approx(0.05)
    assert (parts.queue or 0) + (parts.prefill or 0) + (parts.transfer or 0) + (parts.handover or 0) == pytest.approx(0.4)


def test_without_a_leg_of_its_own_the_engine_tells_the_prefill() -> None:
    parts = split(pair(), transfer(pair()), ttft=0.4, prefill_leg=None, ttft_has_prefill=True)
    assert parts.prefill == pytest.approx(0.2)


def test_a_first_token_that_need_not_hold_the_prefill_has_no_handover() -> None:
    assert split(pair(), transfer(pair()), ttft=0.06, prefill_leg=0.25, ttft_has_prefill=False).handover is None


def test_beside_other_traffic_nothing_is_ours() -> None:
    shared = pair(requests=2.0)
    assert transfer(shared) == Transfer()
    assert split(shared, transfer(shared), ttft=0.4, prefill_leg=0.2, ttft_has_prefill=True).handover is None


def test_an_engine_that_pushes_counts_on_the_prefill_side() -> None:
    sent = Change("prefill", "p", "sglang", {"requests": 1.0, "kv_bytes": 1e6, "kv_seconds": 0.02, "kv_timed": 1.0})
    evidence = Evidence("pair", delivered=True, prompt_tokens=4096, prefill=Side((sent,)),
                        decode=Side((Change("decode", "d", "sglang", {"requests": 1.0}),)))
    assert transfer(evidence) == Transfer(1_000_000, 0.02)
    gauge = replace(sent, grew={"requests": 1.0, "kv_seconds": 0.03})
    assert transfer(replace(evidence, prefill=Side((gauge,)))) == Transfer(None, 0.03), "a gauge of the last transfer stands for itself"


def test_a_part_longer_than_the_whole_is_not_told() -> None:
    """Recorded: vLLM 0.32 adds queue times of half a minute, and of minus hours, for requests that failed."""
    odd = pair(queue_seconds=30.1)
    parts = split(odd, transfer(odd), ttft=0.4, prefill_leg=0.25, ttft_has_prefill=True)
    assert parts.queue == pytest.approx(0.01), "prefill's own queue is still told"


def test_a_transfer_that_was_not_made_took_no_time() -> None:
    none = pair(kv_bytes=0.0, kv_transfers=0.0, kv_seconds=0.0, kv_timed=0.0)
    assert transfer(none) == Transfer()
