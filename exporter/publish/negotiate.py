"""Which format and which encoding a client wants: the Accept and Accept-Encoding headers with their weights (RFC 9110, 12.5)."""

from __future__ import annotations

from typing import NamedTuple

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"


class Format(NamedTuple):
    """A format of the page and the Content-Type that names it."""

    openmetrics: bool
    content_type: str


class _Choice(NamedTuple):
    value: str
    parameters: dict[str, str]
    weight: float


def choose_format(accept: str) -> Format:
    """OpenMetrics where the client prefers it or likes it as well as plain text, in a version we speak (1.0.0, 0.0.1); else text 0.0.4.

    A page is always sent: a client that accepts neither gets the text format.
    """
    best = Format(False, CLASSIC)
    best_weight = 0.0
    plain = 0.0
    for choice in _parse(accept):
        version = choice.parameters.get("version", "")
        if choice.value == "application/openmetrics-text" and version in {"", "1.0.0", "0.0.1"} and choice.weight > best_weight:
            best = Format(True, f"application/openmetrics-text; version={version or '1.0.0'}; charset=utf-8")
            best_weight = choice.weight
        elif choice.value in {"text/plain", "text/*"} and version in {"", "0.0.4", "1.0.0"}:
            plain = max(plain, choice.weight)
    return best if best_weight >= plain else Format(False, CLASSIC)


def wants_gzip(accept_encoding: str) -> bool:
    """Whether gzip is accepted and not less liked than no encoding. `*` stands for gzip where gzip is not named."""
    weights = {choice.value: choice.weight for choice in _parse(accept_encoding)}
    gzip = max((weights[name] for name in ("gzip", "x-gzip") if name in weights), default=weights.get("*", 0.0))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _parse(header: str) -> list[_Choice]:
    choices = []
    for item in header.split(","):
        value, *parts = (part.strip() for part in item.split(";"))
        if not value:
            continue
        parameters = {}
        for part in parts:
            name, _, text = part.partition("=")
            parameters[name.strip().lower()] = text.strip().strip('"')
        choices.append(_Choice(value.lower(), parameters, _weight(parameters.pop("q", "1"))))
    return choices


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return min(1.0, weight) if weight > 0 else 0.0
