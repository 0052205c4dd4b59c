"""Prompts of a wanted length that no cache has seen.

The nonce is made of common words and comes first, so that the first block of the prefix differs from every earlier one. Codes that the
answer has to copy stand at the start, in the middle and at the end (`probes.canary.anchors`), so that a garbled part of the KV shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from probes.canary.anchors import CODE_WORDS, make_code
from probes.canary.words import NONCE_WORDS, WORDS

NONCE_BYTES = 8
INSTRUCTION = "Go on with this list of words and do not stop."
INSTRUCTION_TOKENS = 13
ONE_CODE = "Say the code first, then go on with this list of words and do not stop."
ONE_CODE_TOKENS = 18
THREE_CODES = "Say the first, the middle and the last code, in this order, then go on with this list of words and do not stop."
THREE_CODES_TOKENS = 29
CODE_TOKENS = CODE_WORDS + 4
"""A code with its name and its end mark."""
TAIL_WORDS = 8
TEMPLATE_TOKENS = 64
"""Room left for what a chat template adds."""

SHORTEST = 16
SPARE = 1.1
"""Tokens a word may take at worst, for fitting a prompt into a context."""


@dataclass(frozen=True)
class Prompt:
    """What is sent as the prompt: text, or token ids for text completions. `tokens` is its length, about; `anchors` are the codes that the
    answer is asked to copy."""

    content: str | list[int] = ""
    tokens: int = 0
    nonce: bytes = b""
    anchors: tuple[str, ...] = ()


def make_nonce(entropy: bytes) -> str:
    """A nonce of one word a byte."""
    return " ".join(NONCE_WORDS[byte] for byte in entropy)


def make_prompt(tokens: int, entropy: bytes) -> str:
    """About `tokens` tokens that begin with a nonce made of `entropy`. The same entropy gives the same prompt."""
    rng = random.Random(entropy)  # noqa: S311 - filler, not a secret
    filler = max(0, tokens - len(entropy) - INSTRUCTION_TOKENS)
    words = [make_nonce(entropy), *rng.choices(WORDS, k=filler)]
    return f"{' '.join(words)}. {INSTRUCTION}"


def compose(tokens: int, nonce: bytes, anchors: int) -> Prompt:
    """A prompt of about `tokens` tokens with up to `anchors` codes; fewer where they do not fit."""
    three = NONCE_BYTES + 3 * CODE_TOKENS + THREE_CODES_TOKENS
    one = NONCE_BYTES + CODE_TOKENS + ONE_CODE_TOKENS
    if anchors >= 3 and tokens >= three:
        first, middle, last = (make_code(nonce, place) for place in range(3))
        words = _filler(nonce, tokens - three)
        half = len(words) // 2
        parts = [f"{make_nonce(nonce)}. First code: {first}", " ".join(words[:half]), f"Middle code: {middle}", " ".join(words[half:]),
                 f"Last code: {last}", THREE_CODES]
        return Prompt(". ".join(part for part in parts if part), tokens, nonce, (first, middle, last))
    if anchors >= 1 and tokens >= one:
        code = make_code(nonce, 0)
        parts = [f"{make_nonce(nonce)}. Code: {code}", " ".join(_filler(nonce, tokens - one)), ONE_CODE]
        return Prompt(". ".join(part for part in parts if part), tokens, nonce, (code,))
    return Prompt(make_prompt(tokens, nonce), tokens, nonce)


def compose_pair(tokens: int, nonce: bytes) -> tuple[Prompt, Prompt]:
    """Two prompts that share all but their last words and the instruction: for a second request that finds the first one's prefix."""
    words = _filler(nonce, max(0, tokens - len(nonce) - INSTRUCTION_TOKENS - TAIL_WORDS))
    shared = " ".join([make_nonce(nonce), *words])
    tails = (" ".join(_filler(nonce + bytes([number]), TAIL_WORDS)) for number in range(2))
    first, second = (Prompt(f"{shared}. {tail}. {INSTRUCTION}", tokens, nonce) for tail in tails)
    return first, second


def _filler(seed: bytes, count: int) -> list[str]:
    rng = random.Random(seed)  # noqa: S311 - filler, not a secret
    return rng.choices(WORDS, k=max(0, count))


def fit(wanted: int, max_tokens: int, context: int | None) -> int:
    """The prompt length that fits into the served context. Raises ValueError when none does. `context` None leaves it as it is."""
    if context is None:
        return wanted
    room = int((context - max_tokens - min(TEMPLATE_TOKENS, context // 4)) / SPARE)
    if room < SHORTEST:
        raise ValueError(f"the endpoint serves {context} tokens: a prompt and an answer of {max_tokens} do not fit")
    return min(wanted, room)
