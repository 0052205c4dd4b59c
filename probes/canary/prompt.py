"""Prompts of a wanted length that no cache has seen.

The words are short and common: with a blank before it, each is one token for GPT-4, Llama 3, Qwen 3, DeepSeek V3 and Gemma (tried with
their tokenizers). The nonce is made of them as well and comes first, so that the first block of the prefix differs from every earlier one.
"""

from __future__ import annotations

import random

NONCE_BYTES = 8
INSTRUCTION = "Go on with this list of words and do not stop."
INSTRUCTION_TOKENS = 13
TEMPLATE_TOKENS = 64
"""Room left for what a chat template adds."""

SHORTEST = 16
SPARE = 1.1
"""Tokens a word may take at worst, for fitting a prompt into a context."""

WORDS = tuple("""
time year people way day man thing woman life child world school state family student group country problem hand part place case week
company system program question work government number night point home water room mother area money story fact month lot right study
book eye job word business issue side kind head house service friend father power hour game line end member law car city community name
president team minute idea kid body information back parent face others level office door health person art war history party result
change morning reason research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death course someone experience table step church field rate road effort use data need show form light land paper space ground
support event official matter center couple site project activity star role north south east west red blue green black white brown gold
silver fire wind rain snow stone wood iron glass river lake sea hill tree leaf seed root fruit bread milk salt sugar rice meat fish bird
horse dog cat bear lion wolf king queen prince lady lord ship boat train bridge wall window floor roof street garden farm village town
park shop bank store hotel hall court board chair bed lamp clock phone key bag box cup plate knife coat hat shoe ring song dance film
play ball race goal score prize test class lesson page letter note list map picture card sign mark price cost sale trade tax bill debt
cash loan fund share stock profit loss gain
""".split())  # noqa: SIM905 - a list literal would take a page


def make_nonce(entropy: bytes) -> str:
    """A nonce of one word a byte."""
    return " ".join(_NONCE_WORDS[byte] for byte in entropy)


def make_prompt(tokens: int, entropy: bytes) -> str:
    """About `tokens` tokens that begin with a nonce made of `entropy`. The same entropy gives the same prompt."""
    rng = random.Random(entropy)  # noqa: S311 - filler, not a secret
    filler = max(0, tokens - len(entropy) - INSTRUCTION_TOKENS)
    words = [make_nonce(entropy), *rng.choices(WORDS, k=filler)]
    return f"{' '.join(words)}. {INSTRUCTION}"


def fit(wanted: int, max_tokens: int, context: int | None) -> int:
    """The prompt length that fits into the served context. Raises ValueError when none does. `context` None leaves it as it is."""
    if context is None:
        return wanted
    room = int((context - max_tokens - min(TEMPLATE_TOKENS, context // 4)) / SPARE)
    if room < SHORTEST:
        raise ValueError(f"the endpoint serves {context} tokens: a prompt and an answer of {max_tokens} do not fit")
    return min(wanted, room)


_NONCE_WORDS = WORDS[:256]
