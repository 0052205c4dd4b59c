"""Baselines as a document that can be carried to another installation: `efa-pulse/baselines/v1`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from exporter.config.baselines import Baselines as Settings
from exporter.judge.baseline import NODE, NORM, Baselines

SCHEMA = "efa-pulse/baselines/v1"
LARGEST = 64 << 20
SHOWN = 3

Records = dict[str, dict[str, Any]]


class ExchangeError(ValueError):
    """A document that cannot be imported. The text says what is wrong and where."""


def export(records: Mapping[str, Mapping[str, Any]], at: float) -> str:
    """The document of these records of a journal: those of baselines, the others are left out."""
    kept = {key: dict(record) for key, record in sorted(records.items()) if key.startswith((NODE, NORM))}
    return json.dumps({"schema": SCHEMA, "exported": round(at), "records": kept}, indent=1) + "\n"


def parse(text: str) -> Records:
    """The records of a document, each of them checked. Raises ExchangeError; a document is taken as a whole or not at all."""
    if len(text) > LARGEST:
        raise ExchangeError(f"it has {len(text)} characters, at most {LARGEST} are read")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExchangeError(f"it is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ExchangeError(f"its schema is not {SCHEMA}: `efa-pulse baseline export` writes such a document")
    records = document.get("records")
    if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
        raise ExchangeError("its records are no table of objects")
    strange = [key for key in records if not key.startswith((NODE, NORM)) or not key.partition("/")[2]]
    if strange:
        raise ExchangeError(f"record {strange[0][:60]!r} is none of a baseline: keys begin with {NODE} or {NORM}")
    try:
        json.dumps(records, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        raise ExchangeError("it has text that is no Unicode, or figures that are no numbers") from None
    _, problems = loaded(records, Settings())
    if problems:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        raise ExchangeError("; ".join(problems[:SHOWN]) + more)
    return records


def loaded(records: Mapping[str, Mapping[str, Any]], settings: Settings) -> tuple[Baselines, list[str]]:
    """The baselines of these records of a journal, and what of them cannot be used."""
    book = Baselines(settings)
    problems = book.load(((key[len(NODE):], record) for key, record in records.items() if key.startswith(NODE)),
                         ((key[len(NORM):], record) for key, record in records.items() if key.startswith(NORM)))
    return book, problems
