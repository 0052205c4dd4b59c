"""The table for Athena says of every field what a record holds, and its partitions are where records lie."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import verdicts

import exporter.archive
from exporter.archive.record import Record, line_of, parse, record_of
from exporter.archive.segments import Name

DDL = Path(exporter.archive.__file__).with_name("schema.sql").read_text()
READ_ME = Path(exporter.archive.__file__).with_name("README.md").read_text()


def columns(text: str) -> dict[str, str]:
    """Names and types of a list of columns; types may hold commas in brackets."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    found.append(text[start:])
    return {match[1]: match[2] for one in found if (match := re.match(r"\s*`?(\w+)`?\s+(\S+)\s*$", one))}


TABLE = columns(DDL[DDL.index("efa_pulse_results (") + len("efa_pulse_results ("):DDL.index("\n)\nPARTITIONED")])
PARTITIONS = columns(re.findall(r"PARTITIONED BY \((.*)\)", DDL)[0])


def fits(value: Any, kind: str) -> bool:
    """Whether the OpenX JSON SerDe reads a value as this type; null fits all, any object is read as a string of JSON."""
    if value is None or kind == "string":
        return value is None or isinstance(value, (str, dict, list))
    if kind == "double":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind.startswith("array<"):
        return isinstance(value, list) and all(fits(one, kind[6:-1]) for one in value)
    if kind.startswith("map<string,"):
        return isinstance(value, dict) and all(fits(one, kind[11:-1]) for one in value.values())
    if kind.startswith("struct<"):
        fields = dict(one.split(":", 1) for one in kind[7:-1].split(","))
        return isinstance(value, dict) and value.keys() <= fields.keys() and all(fits(one, fields[name]) for name, one in value.items())
    raise AssertionError(f"no such type: {kind}")


@pytest.mark.parametrize("record", [
    record_of(verdicts.pair(), cluster="east"),
    record_of(verdicts.pair(reason="peer_lost", message="gone", labels={"round": "1"}), cluster="east", instance_ids=("i-1", None),
              instance_types=("p5.48xlarge", None), logs={0: "text"}),
    record_of(verdicts.pair(mode="efa", answers=verdicts.rdma(), floors=(verdicts.FLOOR,)), cluster="east"),
    record_of(verdicts.canary(), cluster="east"),
])
def test_every_field_of_a_record_is_a_column_of_its_type(record: Record) -> None:
    read = parse(line_of(record))
    assert read.keys() - PARTITIONS.keys() <= TABLE.keys()
    assert {name: value for name, value in read.items() if name in TABLE and not fits(value, TABLE[name])} == {}


def test_no_column_is_without_a_field() -> None:
    full = record_of(verdicts.pair(reason="peer_lost"), cluster="east", logs={0: "text"})
    assert full.keys() - PARTITIONS.keys() == TABLE.keys()


def test_the_partitions_are_the_folders() -> None:
    template = re.findall(r"'storage.location.template' = 's3://BUCKET/PREFIX/(.*)'", DDL)[0]
    name = Name.new("east", "2026-09-21", 1_790_000_000.0, "w1", 1)
    assert str(name).startswith(template.replace("${cluster}", "east").replace("${date}", "2026-09-21"))
    assert list(PARTITIONS) == ["cluster", "date"]


def test_the_page_explains_every_column() -> None:
    rows = " ".join(line.split("|")[1] for line in READ_ME.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", rows)) == TABLE.keys() - {"schema"}
