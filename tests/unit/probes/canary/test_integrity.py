"""Is the answer the right one: codes, references, garbage, crosstalk."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.canary.anchors import CODE_WORDS, codes_in, make_code
from probes.canary.answer import Answer
from probes.canary.integrity import compare, judge, reason_of, repetition_of
from probes.canary.prompt import Prompt, compose, compose_pair
from probes.canary.words import WORDS
from probes.reasons import Reason

NONCE = b"12345678"
LONG = compose(400, NONCE, 3)
WORDY = "time year people way day man thing woman life child world school"


def says(text: str, **fields: list[tuple[str, float]] | list[int]) -> Answer:
    return replace(Answer(content=[text]), **fields)  # type: ignore[arg-type]


# codes


@given(nonce=st.binary(min_size=8, max_size=8), place=st.integers(0, 2))
@settings(deadline=None)
def test_a_code_is_found_whatever_stands_between_its_words(nonce: bytes, place: int) -> None:
    code = make_code(nonce, place)
    assert len(code.split()) == CODE_WORDS
    for text in (code, code.upper(), code.replace(" ", ", "), f"1. {code.replace(' ', '-')}.\nand more"):
        assert codes_in(text) == {code}


def test_words_by_chance_are_no_code() -> None:
    rng = random.Random(5)
    assert codes_in(" ".join(rng.choices(WORDS, k=200_000))) == set()


def test_a_code_that_lost_a_word_is_none() -> None:
    words = make_code(NONCE, 0).split()
    assert codes_in(" ".join(words[:-1])) == set()
    assert codes_in(" ".join([words[1], words[0], *words[2:]])) == set()


# prompts with codes


def test_three_codes_stand_at_the_start_in_the_middle_and_at_the_end() -> None:
    assert isinstance(LONG.content, str)
    places = [LONG.content.index(code) / len(LONG.content) for code in LONG.anchors]
    assert places[0] < 0.1
    assert 0.35 < places[1] < 0.65
    assert places[2] > 0.8


@pytest.mark.parametrize(("tokens", "asked", "codes"), [(400, 3, 3), (70, 3, 3), (50, 3, 1), (40, 3, 1), (40, 1, 1), (30, 3, 0),
                                                        (400, 0, 0), (400, 2, 1)])
def test_as_many_codes_as_fit(tokens: int, asked: int, codes: int) -> None:
    assert len(compose(tokens, NONCE, asked).anchors) == codes


@given(tokens=st.integers(40, 5000), nonce=st.binary(min_size=8, max_size=8), anchors=st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_a_prompt_has_about_the_length_asked_for(tokens: int, nonce: bytes, anchors: int) -> None:
    prompt = compose(tokens, nonce, anchors)
    assert isinstance(prompt.content, str)
    words = len(prompt.content.replace(".", " .").replace(":", " :").replace(",", " ,").split())
    assert abs(words - tokens) <= 12
    assert codes_in(prompt.content) >= set(prompt.anchors)


def test_a_pair_of_prompts_shares_all_but_its_end() -> None:
    first, second = compose_pair(1024, NONCE)
    assert isinstance(first.content, str)
    assert isinstance(second.content, str)
    common = next(at for at, (a, b) in enumerate(zip(first.content, second.content, strict=False)) if a != b)
    assert 0.95 < common / len(first.content) < 1
    assert first.content != second.content


# verdicts


def test_all_codes_copied_is_ok() -> None:
    found = judge(LONG, says(", ".join(LONG.anchors) + ". And then: " + WORDY))
    assert (found.verdict, found.anchors) == ("ok", (3, 3))


def test_codes_in_the_reasoning_count() -> None:
    assert judge(LONG, Answer(reasoning=[" ".join(LONG.anchors)])).verdict == "ok"


def test_a_missing_code_is_drift_when_graded_and_a_mismatch_when_required() -> None:
    answer = says(f"{LONG.anchors[0]} {LONG.anchors[2]} {WORDY}")
    assert judge(LONG, answer).verdict == "drift"
    found = judge(LONG, answer, required=True)
    assert (found.verdict, found.anchors) == ("mismatch", (2, 3))
    assert reason_of(found) is Reason.WRONG_CONTENT


def test_a_model_that_copies_nothing_is_unknown_and_said_so() -> None:
    found = judge(LONG, says(WORDY))
    assert found.verdict == "unknown"
    assert "set anchors to required" in found.why
    assert reason_of(found) is None


def test_a_code_of_another_canary_is_crosstalk_even_beside_our_own() -> None:
    other = make_code(b"anothers", 1)
    found = judge(LONG, says(" ".join([*LONG.anchors, other])))
    assert found.verdict == "crosstalk"
    assert other not in found.why, "answers leave as scores only"
    assert reason_of(found) is Reason.WRONG_CONTENT


def test_no_text_is_empty_but_token_ids_without_text_are_not() -> None:
    assert judge(LONG, says("  \n")).verdict == "empty"
    assert judge(LONG, Answer(token_ids=[1, 2])).verdict == "unknown"


@pytest.mark.parametrize("text", ["!" * 64, "the the the the the the the the the the the the", "go on go on go on go on go on go on go on",
                                  "a\ufffdb\ufffdc\ufffd d e f", "ok \x00\x01\x02 fine"])
def test_garbage_is_degenerate(text: str) -> None:
    assert judge(LONG, says(text)).verdict == "degenerate"


def test_an_answer_that_copies_and_then_repeats_is_ok() -> None:
    assert judge(LONG, says(" ".join(LONG.anchors) + " stop" * 100)).verdict == "ok"


def test_one_cut_character_is_not_garbage() -> None:
    assert judge(compose(400, NONCE, 0), says(WORDY + " caf\ufffd")).verdict == "unknown"


# references

SURE, TIE = math.log(0.95), math.log(0.5)


def sequence(tokens: str, logprob: float = SURE) -> Answer:
    words = tokens.split()
    return Answer(content=[tokens], logprobs=[(word, logprob) for word in words])


def test_the_same_answer_as_the_reference_is_ok() -> None:
    found = judge(Prompt(), sequence("a b c d"), reference=sequence("a b c d"))
    assert (found.verdict, found.first_token, found.common_prefix, found.logprob_drift) == ("ok", True, 1.0, 0.0)


def test_two_runs_that_are_sure_of_different_tokens_contradict_each_other() -> None:
    found = judge(Prompt(), sequence("a b x d"), reference=sequence("a b c d"))
    assert found.verdict == "mismatch"
    assert "both sure" in found.why


def test_a_near_tie_that_falls_the_other_way_is_no_mismatch() -> None:
    answer, reference = sequence("a b c x", TIE), sequence("a b c d", TIE)
    assert judge(Prompt(), answer, reference=reference).verdict == "ok"
    assert judge(Prompt(), answer, reference=reference, exact=True).verdict == "mismatch", "unless batch invariance is declared"


def test_another_first_token_and_large_drift_are_signs_only() -> None:
    assert judge(Prompt(), sequence("x b", TIE), reference=sequence("a b", TIE)).verdict == "drift"
    found = judge(Prompt(), sequence("a b", math.log(0.9)), reference=sequence("a b", math.log(0.3)))
    assert (found.verdict, "log probabilities" in found.why) == ("drift", True)


def test_token_ids_are_compared_before_texts() -> None:
    compared = compare(Answer(content=["ab"], token_ids=[1, 2, 3]), Answer(content=["xy"], token_ids=[1, 2, 4]))
    assert (compared.common, compared.total) == (2, 3)


def test_a_longer_answer_is_not_equal() -> None:
    assert not compare(says("abcd"), says("abc")).equal
    assert judge(Prompt(), says("abcd"), reference=says("abc"), exact=True).verdict == "mismatch"


@given(st.text(max_size=300), st.text(max_size=300))
@settings(deadline=None, max_examples=60)
def test_any_answer_gives_a_verdict_with_scores_in_range(text: str, reference: str) -> None:
    found = judge(LONG, says(text), reference=says(reference))
    assert 0 <= (found.repetition or 0) <= 1
    assert 0 <= (found.common_prefix or 0) <= 1
    assert 0 <= repetition_of(text) <= 1
