"""How a check that spans several keys reports what it found: any number of problems, each at its own key."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

Where = tuple[str | int, ...]
Found = tuple[Where, str]
"""Where (relative to the model that checks) and what."""


def refuse(title: str, found: Iterable[Found]) -> None:
    """Raises one ValidationError that holds every problem of `found`; does nothing when there is none."""
    details = [InitErrorDetails(type=PydanticCustomError("semantic", "{what}", {"what": what}), loc=where, input=None)
               for where, what in found]
    if details:
        raise ValidationError.from_exception_data(title, details)


def within(error: ValidationError, place: dict[str, Where], otherwise: Where) -> list[Found]:
    """The problems of `error`, moved: those below key `k` to `place[k]`, all others below `otherwise`."""
    found: list[Found] = []
    for detail in error.errors(include_url=False, include_input=False, include_context=False):
        loc = detail["loc"]
        key = str(loc[0]) if loc else ""
        where = (*place[key], *loc[1:]) if key in place else (*otherwise, *loc)
        found.append((where, detail["msg"].removeprefix("Value error, ")))
    return found


def repeated(names: Iterable[str]) -> list[tuple[int, str]]:
    """Position and name of every name that already appeared before it."""
    seen: set[str] = set()
    again: list[tuple[int, str]] = []
    for index, name in enumerate(names):
        if name in seen:
            again.append((index, name))
        seen.add(name)
    return again
