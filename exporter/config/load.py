"""From a file to a Config, or to every problem in it."""

from __future__ import annotations

import copy
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exporter.config import capacity
from exporter.config.base import SecretError, read_file
from exporter.config.document import SIZE_LIMIT, Document, parse
from exporter.config.explain import explain, show
from exporter.config.problems import ConfigError, Loc, Problem
from exporter.config.root import Config, Reference
from exporter.config.semantic import Found

_VARIABLE = re.compile(r"\$\{[^}]*\}|\$\([A-Za-z_][A-Za-z0-9_]*\)|\{\{.*\}\}")
SCRATCH = "x-"
# Free text that goes into a request as it is.
_VERBATIM = ("extra_body",)


def load(path: Path | str, *, references: bool = True) -> Config:
    """The configuration in the file at `path`; `-` is not special.

    `references` also checks that the files and secrets it names can be read. Raises ConfigError with every problem.
    """
    return from_bytes(read(Path(path)), Path(path), references=references)


def read(path: Path) -> bytes:
    """The file's bytes, at most a little more than are accepted. Raises ConfigError."""
    try:
        return read_file(path, SIZE_LIMIT + 1)
    except IsADirectoryError:
        raise ConfigError.about_file(path, "this is a folder", "name the file in it") from None
    except FileNotFoundError:
        raise ConfigError.about_file(path, "no such file", "check the name, or start without a configuration file") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError.about_file(path, f"cannot be read: {said}", "check owner and mode of the file and its folders") from None


def from_bytes(raw: bytes, path: Path, *, references: bool = True) -> Config:
    """The configuration in `raw`, which was read from `path`. Raises ConfigError with every problem."""
    document = parse(raw, str(path))
    problems = [*document.problems, *_unexpanded(document)]
    told = list(problems)
    tree = {} if document.tree is None else document.tree
    if not isinstance(tree, dict):
        sections = ", ".join(Config.model_fields)
        problems.append(document.problem((), f"a mapping of sections is needed, got {show(tree)}", f"use the keys {sections}"))
        raise ConfigError(problems)
    context = {"base": path.absolute().parent}
    # Sections beginning with x- hold what anchors refer to.
    config, found = _validate({name: value for name, value in tree.items() if not name.startswith(SCRATCH)}, context)
    problems += [problem for error in found for problem in explain(error, document) if not _covered(problem, told)]
    if config is not None:
        checks = capacity.check(config)
        problems += [_semantic(one, document) for one in checks]
        if references:
            problems += _unreadable(config, document)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _validate(tree: dict[str, Any], context: dict[str, Any]) -> tuple[Config | None, list[ValidationError]]:
    """The Config, or what is wrong.

    Checks over several keys run only where every key is right by itself. So that one slip does not hide what they find, they run again
    without the unknown keys, and once more for the sections that belong together when only other ones are broken.
    """
    errors: list[ValidationError] = []
    for part in (lambda tree, _: tree, _without_unknown, _nodes_and_probes):
        rest = part(tree, errors)
        if rest is None:
            continue
        try:
            # By way of JSON, because strictness then means what it means for a file: lists are tuples, texts are never numbers.
            config = Config.model_validate_json(json.dumps(rest), strict=True, context=context)
        except ValidationError as error:
            errors.append(error)
            continue
        if not errors:
            return config, []
    return None, errors


def _without_unknown(tree: dict[str, Any], errors: list[ValidationError]) -> dict[str, Any] | None:
    unknown = [detail["loc"] for detail in errors[0].errors(include_url=False) if detail["type"] == "extra_forbidden"]
    if not unknown:
        return None
    rest = copy.deepcopy(tree)
    for loc in unknown:
        place: Any = rest
        for step in loc[:-1]:
            place = place[step]
        place.pop(loc[-1], None)
    return rest


def _nodes_and_probes(tree: dict[str, Any], errors: list[ValidationError]) -> dict[str, Any] | None:
    broken = {str(detail["loc"][0]) for detail in errors[-1].errors(include_url=False) if detail["loc"]}
    if broken & {"inventory", "probes"}:
        return None
    return {name: tree[name] for name in ("inventory", "probes") if name in tree}


def _covered(problem: Problem, earlier: list[Problem]) -> bool:
    """Whether the reader has been told already: what could not be read is None in the tree, and fails again as None."""
    return any(one.path == problem.path and one.path for one in earlier)


def _semantic(found: Found, document: Document) -> Problem:
    where, text = found
    what, _, todo = text.partition(": ")
    return document.problem(where, what, todo)


def _unexpanded(document: Document) -> Iterator[Problem]:
    for loc, text in _texts(document.tree, ()):
        match = _VARIABLE.search(text)
        if match is not None and not any(part in _VERBATIM for part in loc):
            yield document.problem(loc, f"{match[0][:40]!r} is not replaced by anything here",
                                   "write the value itself; where a secret is expected write {env: NAME}")


def _texts(value: Any, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, str):
        yield loc, value
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _texts(below, (*loc, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _texts(below, (*loc, index))


def _unreadable(config: Config, document: Document) -> Iterator[Problem]:
    for reference in config.references():
        said = _try(reference)
        if said:
            named = reference.secret is not None and reference.secret.env is not None
            yield document.problem(reference.loc, said, f"{'set it' if named else 'put it there'}, or correct the name")


def _try(reference: Reference) -> str:
    """What stands against reading the reference; empty when nothing does."""
    if reference.secret is not None:
        try:
            reference.secret.read()
        except SecretError as error:
            return str(error)
        return ""
    assert reference.file is not None  # noqa: S101 - one of the two is set
    try:
        read_file(reference.file, 1)
        if reference.certificates:
            ssl.create_default_context(cafile=reference.file)
    except ssl.SSLError:
        return f"file {reference.file} holds no certificates in PEM form"
    except OSError as error:
        return f"file {reference.file} cannot be read: {error.strerror}"
    return ""


