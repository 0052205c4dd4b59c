"""Code words that a prompt hides and an answer must copy.

A code is five words: two by chance and three that follow from them, so that any code can be known as one of a canary's without a list of
those that were sent. A text that holds a code of another canary got it from another canary's KV: five words that fit by chance come up once
in 2^24 windows.
"""

from __future__ import annotations

import hashlib
import re

from probes.canary.words import NONCE_WORDS

CHANCE_WORDS = 2
CHECK_WORDS = 3
CODE_WORDS = CHANCE_WORDS + CHECK_WORDS

_INDEX = {word: index for index, word in enumerate(NONCE_WORDS)}
_WORD = re.compile(r"[a-z]+")


def make_code(nonce: bytes, place: int) -> str:
    """The code of a prompt with this nonce at its `place`. The same arguments give the same code."""
    chance = hashlib.sha256(b"efa-pulse code" + nonce + bytes([place])).digest()[:CHANCE_WORDS]
    return " ".join(NONCE_WORDS[byte] for byte in chance + _check(chance))


def codes_in(text: str) -> set[str]:
    """Every code in `text`, whatever stands between its words."""
    return set(find_codes(text))


def find_codes(text: str) -> list[str]:
    """The codes of `text` in their order."""
    words = _WORD.findall(text.lower())
    indexes = [_INDEX.get(word) for word in words]
    found = []
    for at in range(len(words) - CODE_WORDS + 1):
        window = indexes[at:at + CODE_WORDS]
        chance = [index for index in window[:CHANCE_WORDS] if index is not None]
        if len(chance) == CHANCE_WORDS and window[CHANCE_WORDS:] == list(_check(bytes(chance))):
            found.append(" ".join(words[at:at + CODE_WORDS]))
    return found


def _check(chance: bytes) -> bytes:
    return hashlib.sha256(b"efa-pulse check" + chance).digest()[:CHECK_WORDS]
