"""A walk over the models: every key with its type, default and text, as the schema, the reference and the error messages need it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from exporter.config.root import Config


@dataclass(frozen=True)
class Key:
    """One key. `path` is dotted, with `[]` for each list on the way; `model` is the model that has the field."""

    path: str
    name: str
    field: FieldInfo
    model: type[BaseModel]


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model by the name they have in a file."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def model_in(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model that an annotation holds, alone or optional or in a list, and whether it is a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin = get_origin(annotation)
    if origin in (list, tuple):
        for part in get_args(annotation):
            model, _ = model_in(part)
            if model is not None:
                return model, True
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            model, many = model_in(part)
            if model is not None:
                return model, many
    elif hasattr(annotation, "__metadata__"):
        return model_in(get_args(annotation)[0])
    return None, False


def model_at(loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that stands at `loc`, which may be cut short by parts that pydantic puts in for unions."""
    model: type[BaseModel] = Config
    for part in loc:
        if isinstance(part, int):
            continue
        info = fields_of(model).get(part)
        if info is None:
            return None
        below, _ = model_in(info.annotation)
        if below is None:
            return None
        model = below
    return model


def walk(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Key]:
    """Every key below `model`, depth first, in the order of the models."""
    for name, info in fields_of(model).items():
        path = f"{prefix}.{name}" if prefix else name
        yield Key(path, name, info, model)
        below, many = model_in(info.annotation)
        if below is not None:
            yield from walk(below, f"{path}[]" if many else path)


@cache
def all_paths() -> tuple[str, ...]:
    """The dotted path of every key."""
    return tuple(key.path for key in walk())


def choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal, also behind Annotated, Optional and list."""
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    found: list[str] = []
    for part in get_args(annotation):
        found += [value for value in choices(part) if value not in found]
    return tuple(found)
