"""A key that the endpoint repeats is not passed on."""

from __future__ import annotations

import pytest

from probes.canary.events import printable
from probes.canary.redact import redact

KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize(("text", "shown"), [
    ("", ""),
    ("no such model", "no such model"),
    (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: (key)."),
    (f"Bearer {KEY} ({KEY})", "Bearer (key) ((key))"),
    (f"redirect to /login?key={KEY[:9]}…, which is not followed", "redirect to /login?key=(key)…, which is not followed"),
    ("sk-0 is how keys begin", "sk-0 is how keys begin"),
    ("sk-…", "sk-…"),
])
def test_the_key_is_not_in_the_text(text: str, shown: str) -> None:
    assert redact(text, KEY) == shown


@pytest.mark.parametrize("before", range(140, 200))
def test_a_text_cut_inside_the_key_keeps_at_most_three_characters_of_it(before: int) -> None:
    shown = redact(printable("x" * before + KEY + "y" * 100, 200), KEY)
    assert KEY[:4] not in shown


def test_a_key_too_short_to_be_one_is_not_searched_for() -> None:
    assert redact("a cat", "a") == "a cat"
