"""Prompts: their length, their nonce, and how they fit a context."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.canary.prompt import INSTRUCTION, NONCE_BYTES, fit, make_nonce, make_prompt
from probes.canary.words import WORDS


def test_the_prompt_begins_with_its_nonce() -> None:
    entropy = bytes(range(NONCE_BYTES))
    prompt = make_prompt(64, entropy)
    assert prompt.startswith(make_nonce(entropy) + " ")
    assert prompt.endswith(INSTRUCTION)


def test_another_try_has_another_first_block() -> None:
    rng = random.Random(1)
    starts = {" ".join(make_prompt(32, rng.randbytes(NONCE_BYTES)).split()[:NONCE_BYTES]) for _ in range(1000)}
    assert len(starts) == 1000


def test_each_byte_of_the_nonce_is_a_word_of_its_own() -> None:
    assert len({make_nonce(bytes([byte])) for byte in range(256)}) == 256


@settings(deadline=None)
@given(tokens=st.integers(24, 5000), entropy=st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES))
def test_the_length_is_as_asked_in_words_and_full_stops(tokens: int, entropy: bytes) -> None:
    prompt = make_prompt(tokens, entropy)
    assert abs(len(prompt.split()) + prompt.count(".") + 1 - tokens) <= 2
    assert prompt == make_prompt(tokens, entropy)


def test_every_word_is_plain_and_there_once() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@pytest.mark.parametrize(("wanted", "max_tokens", "context", "fitted"), [
    (4096, 32, None, 4096),
    (4096, 32, 32768, 4096),
    (4096, 32, 4096, 3636),
    (4096, 16, 256, 160),
    (32, 32, 128, 32),
])
def test_a_prompt_is_fitted_to_the_served_context(wanted: int, max_tokens: int, context: int | None, fitted: int) -> None:
    assert fit(wanted, max_tokens, context) == fitted


def test_a_context_too_small_for_any_prompt_is_an_error() -> None:
    with pytest.raises(ValueError, match="serves 64 tokens"):
        fit(32, 40, 64)
