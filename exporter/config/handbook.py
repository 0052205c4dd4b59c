"""The reference of every key, generated from the models: `efa-pulse check-config --reference`."""

from __future__ import annotations

import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types as limits
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from exporter.config.root import Config
from exporter.config.tour import fields_of, model_in, walk
from probes.units import parse_duration, parse_rate, parse_size, show_duration, show_size

_INTRODUCTION = """# Configuration

The service reads one YAML file, `efa-pulse run --config FILE`. An empty file is valid. Unknown keys are errors.

- Durations are `30s`, `5m`, `1h30m`, `250ms` or a number of seconds; sizes `64KiB`, `64MiB`, `1GB` or a number of bytes; rates `25GB/s`,
  `200Gbit/s` or a number of bytes per second.
- A relative file name is relative to the folder of the configuration file.
- A secret is never written into the file: `{file: PATH}` or `{env: NAME}` stands in its place. Nothing else is replaced: `${NAME}` is an
  error.
- The file is YAML 1.2: `yes`, `no` and `22:00` are texts. Anchors and `<<` work; a section whose name begins with `x-` is left alone, to
  hold what they refer to.
- The file and the files it names are read again when they change, and on SIGHUP. A file with errors changes nothing.

`efa-pulse check-config FILE` tells every problem with its line; `--schema` prints the JSON Schema. This page is printed by `--reference`.
"""
_NAMES: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "file", type(None): "nothing"}
_PARSERS = {parse_duration: "duration", parse_size: "size", parse_rate: "rate"}


def reference() -> str:
    """The reference as Markdown: one table for the file, and one for each model below it where it appears first."""
    homes = _homes()
    parts = [_INTRODUCTION, _table("The file", Config, homes)]
    parts += [_table(f"`{where}`", model, homes) for model, where in homes.items()]
    return "\n".join(parts)


def _homes() -> dict[type[BaseModel], str]:
    """Each model and the place where it is described: the first at which it appears."""
    homes: dict[type[BaseModel], str] = {}
    for key in walk():
        model, many = model_in(key.field.annotation)
        if model is not None:
            homes.setdefault(model, key.path + ("[]" if many else ""))
    return homes


def _table(title: str, model: type[BaseModel], homes: dict[type[BaseModel], str]) -> str:
    lines = [f"## {title}", "", _text(model.__doc__), "", "| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {_type(info, homes)} | {_default(info)} | {_text(info.description)} |"
              for name, info in fields_of(model).items()]
    return "\n".join(lines) + "\n"


def _type(info: FieldInfo, homes: dict[type[BaseModel], str]) -> str:
    model, many = model_in(info.annotation)
    if model is None:
        return _plain(info.annotation, info.metadata)
    anchor = "".join(char for char in homes[model].lower() if char.isalnum() or char in "-_")
    link = f"[{homes[model]}](#{anchor})"
    return f"list of {link}" if many else link


def _plain(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """A type in words, with its limits."""
    metadata = _flat(metadata)
    readers = [one.func for one in metadata if isinstance(one, BeforeValidator)]
    kind = next((name for parser, name in _PARSERS.items() if parser in readers), "")
    origin, parts = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _plain(parts[0], [*annotation.__metadata__, *metadata])
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(_plain(part, metadata) for part in parts if part is not type(None))
    if origin in (list, tuple):
        return f"list of {_plain(parts[0])}"
    if origin is dict:
        return "mapping"
    return (kind or _NAMES.get(annotation, "value")) + _limits(metadata, kind)


def _flat(metadata: Iterable[Any]) -> list[Any]:
    """The metadata with that of nested Field() calls."""
    flat: list[Any] = []
    for one in metadata:
        flat += one.metadata if isinstance(one, FieldInfo) else [one]
    return flat


def _limits(metadata: list[Any], kind: str) -> str:
    low = high = ""
    for one in metadata:
        if isinstance(one, limits.Ge) and one.ge != 0:
            low = f"{_value(one.ge, kind)} or more"
        elif isinstance(one, limits.Gt):
            low = f"above {_value(one.gt, kind)}"
        elif isinstance(one, limits.Le):
            high = f"{_value(one.le, kind)} at most"
        elif isinstance(one, limits.Lt):
            high = f"below {_value(one.lt, kind)}"
    said = ", ".join(part for part in (low, high) if part)
    return f", {said}" if said else ""


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "needed"
    value = info.get_default(call_default_factory=True)
    if value is None:
        return ""
    if isinstance(value, BaseModel):
        shown = ", ".join(f"{name}: {_shown(getattr(value, name), field)}" for name, field in type(value).model_fields.items()
                          if getattr(value, name) != field.get_default(call_default_factory=True))
        return f"`{{{shown}}}`" if shown and len(shown) < 60 else ""
    shown = _shown(value, info)
    return f"`{shown}`" if shown else ""


def _shown(value: Any, info: FieldInfo) -> str:
    kind = _kind_of(info.annotation, info.metadata)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_entry(one, kind) for one in value) + "]"
    return _entry(value, kind)


def _entry(value: Any, kind: str) -> str:
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name}: {getattr(value, name)}" for name in type(value).model_fields
                               if name in value.model_fields_set) + "}"
    return _value(value, kind)


def _kind_of(annotation: Any, metadata: Iterable[Any]) -> str:
    """The unit of a value, or of the values of a list."""
    text = _plain(annotation, metadata)
    return next((name for name in _PARSERS.values() if name in text), "")


def _value(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "size" and value:
        return show_size(value)
    if kind == "duration":
        return show_duration(float(value))
    if kind == "rate" and value:
        return f"{value / 1e9:g}GB/s"
    if isinstance(value, float):
        return f"{value:g}"
    return "{}" if value == {} else str(value)


def _text(text: str | None) -> str:
    """A description on one line, safe inside a table."""
    return " ".join((text or "").split()).replace("|", "\\|")
