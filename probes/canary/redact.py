"""No key leaves the process, also when the endpoint repeats it: some gateways answer 401 with the key they were given."""

from __future__ import annotations

SHOWN = "(key)"
_SHORTEST = 4


def redact(text: str, secret: str) -> str:
    """`text` without `secret`, and without a beginning of it that was cut off with an ellipsis.

    A secret, or such a beginning, of fewer than 4 characters stays: it protects nothing, and any text has it by chance.
    """
    if len(secret) < _SHORTEST:
        return text
    text = text.replace(secret, SHOWN)
    if "…" in text:
        for length in range(len(secret) - 1, _SHORTEST - 1, -1):
            text = text.replace(secret[:length] + "…", SHOWN + "…")
    return text
