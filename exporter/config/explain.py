"""Validation errors in words: what was found, what is needed, and the nearest valid name."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from exporter.config.base import Secret
from exporter.config.document import Document
from exporter.config.problems import Loc, Problem
from exporter.config.tour import all_paths, fields_of, model_at

_SHOWN = 60
_CREDENTIALS = re.compile(r"//[^/@\s]*@")
"""Name and password in an address: never shown, whatever is wrong with it."""
_PLAIN = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?|true|false")
_KINDS: dict[str, str] = {
    "int_type": "a whole number", "int_from_float": "a whole number", "int_parsing": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "string_type": "a text", "bool_type": "true or false", "bool_parsing": "true or false",
    "model_type": "a mapping with keys", "model_attributes_type": "a mapping with keys", "dict_type": "a mapping with keys",
    "list_type": "a list", "tuple_type": "a list", "none_required": "nothing",
}
_SHAPES = {
    "true or false": "write true or false", "a mapping with keys": "write lines of 'key: value' below it",
    "a list": "write one line that begins with '- ' for each entry",
}
_LIMITS: dict[str, str] = {
    "greater_than": "more than {gt}", "greater_than_equal": "{ge} or more", "less_than": "less than {lt}",
    "less_than_equal": "{le} or less", "multiple_of": "a multiple of {multiple_of}",
    "too_short": "{min_length} or more entries", "too_long": "at most {max_length} entries",
    "string_too_short": "at least {min_length} characters", "string_too_long": "at most {max_length} characters",
}
_PATTERNS = {
    "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": "a name of letters, digits, '.', '_' and '-' that begins and ends with a letter or digit",
    "^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
    "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$": "a time of day from 00:00 to 24:00 (HH:MM)",
}


def explain(error: ValidationError, document: Document) -> list[Problem]:
    """One problem for each mistake in `error`, placed in the document. A value that fits no part of a choice is told once."""
    problems: dict[tuple[Loc, str], Problem] = {}
    union: dict[Loc, list[str]] = {}
    for detail in error.errors(include_url=False):
        loc = _real(detail["loc"], document.tree)
        kind = detail["type"]
        if len(loc) < len(detail["loc"]) and kind in _KINDS and detail["loc"][: len(loc)] == loc:
            union.setdefault(loc, []).append(_KINDS[kind])
            needs = " or ".join(dict.fromkeys(union[loc]))
            problems[loc, "union"] = document.problem(loc, f"{needs} is needed, got {show(detail['input'])}")
            continue
        problem = _one(detail, loc, document)
        problems[loc, problem.what] = problem
    # A list whose entries are all refused counts as empty, too.
    return [problem for (loc, _), problem in problems.items()
            if " entries " not in problem.what or not any(other[: len(loc)] == loc and other != loc for other, _ in problems)]


def _one(detail: ErrorDetails, loc: Loc, document: Document) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return document.problem(loc, f"unknown key {str(loc[-1])!r}", suggest(loc), at_key=True)
    if kind == "missing":
        return document.problem(loc, f"the key {str(detail['loc'][-1])!r} is missing", "add it")
    if kind in _KINDS:
        return document.problem(loc, f"{_KINDS[kind]} is needed, got {show(detail['input'])}", _remedy(kind, detail["input"]))
    if kind == "literal_error":
        return _choice(detail, loc, document)
    if kind == "string_pattern_mismatch":
        need = _PATTERNS.get(context.get("pattern", ""), f"a text that matches {context.get('pattern')}")
        # Somebody may have put the secret itself there: it is not repeated.
        got = "" if model_at(loc[:-1]) is Secret else f", got {show(detail['input'])}"
        return document.problem(loc, f"{need} is needed{got}")
    if kind in _LIMITS:
        numbers = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
        return document.problem(loc, f"{_LIMITS[kind].format(**numbers)} is needed, got {_measured(detail)}")
    what, colon, todo = detail["msg"].removeprefix("Value error, ").partition(": ")
    return document.problem(loc, what, todo if colon else "")


def _remedy(kind: str, value: Any) -> str:
    """What to do about a wrong type. The usual slip is quotes too many or too few."""
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return "put it in quotes"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(value, str) and _PLAIN.fullmatch(value):
        return "remove the quotes"
    return "give it a value, or remove the key" if value is None else _SHAPES.get(_KINDS[kind], "write one")


def _choice(detail: ErrorDetails, loc: Loc, document: Document) -> Problem:
    expected = str(detail.get("ctx", {}).get("expected", ""))
    names = [part.strip("' ") for part in expected.replace(" or ", ", ").split(",")]
    value = detail["input"]
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.6) if isinstance(value, str) else []
    todo = f"did you mean {near[0]!r}? One of {', '.join(names)}" if near else f"use one of {', '.join(names)}"
    return document.problem(loc, f"{show(value)} is not possible here", todo)


def suggest(loc: Loc) -> str:
    """What an unknown key at `loc` was meant to be: a near name here, the same name elsewhere, or all names possible here."""
    here, key = loc[:-1], str(loc[-1])
    model = model_at(here)
    names = list(fields_of(model)) if model is not None else []
    folded = {name.replace("_", "").replace("-", "").lower(): name for name in names}
    plain = key.replace("_", "").replace("-", "").lower()
    near = [folded[plain]] if plain in folded else difflib.get_close_matches(key, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    prefix = "".join(f".{part}" if isinstance(part, str) else "[]" for part in here).lstrip(".")
    elsewhere = [path for path in all_paths() if path.rpartition(".")[2] == key]
    if elsewhere:
        closest = max(elsewhere, key=lambda path: (_common(path, prefix), -path.count(".")))
        return f"it belongs to {closest.rpartition('.')[0] or 'the top'}: write it as {closest}"
    return f"use one of {', '.join(names)}" if names else "remove it"


def _common(one: str, other: str) -> int:
    count = 0
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        count += 1
    return count


def _real(loc: tuple[str | int, ...], tree: Any) -> Loc:
    """`loc` without the parts that pydantic adds for unions and validators: they are not keys of the file.

    The last part may name a key that the file lacks.
    """
    real: list[str | int] = []
    for index, part in enumerate(loc):
        if isinstance(tree, dict) and part in tree:
            tree = tree[str(part)]
        elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        elif isinstance(tree, dict) and isinstance(part, str) and index == len(loc) - 1:
            pass
        elif tree is None or isinstance(tree, (dict, list)):
            # A default's own key, or one that a check names though the file leaves it out.
            tree = None
        else:
            continue
        real.append(part)
    return tuple(real)


def _measured(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if "actual_length" in context:
        return str(context["actual_length"])
    value = detail["input"]
    return str(len(value)) if detail["type"].startswith("string_too") and isinstance(value, str) else show(value)


def show(value: Any) -> str:
    """A value in a message: its kind where the value itself says little."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, str):
        value = _CREDENTIALS.sub("//***@", value)
        return f"the text {value if len(value) <= _SHOWN else value[:_SHOWN] + '…'!r}" if value else "an empty text"
    return str(value)[:_SHOWN]
