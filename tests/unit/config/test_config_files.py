"""The corpus of configuration files: every wrong one is refused with exactly the expected message, every right one loads.

After a wanted change of a message: `UPDATE_EXPECTED=1 pytest tests/unit/config/test_config_files.py`, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from exporter.config import ConfigError, load, schema
from exporter.config.document import parse

FILES = Path(__file__).parents[2] / "config"
INVALID = sorted((FILES / "invalid").glob("*.yaml"))
VALID = sorted((FILES / "valid").glob("*.yaml"))
VALIDATOR = Draft202012Validator(schema())


def message_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(path.parent)
    with pytest.raises(ConfigError) as caught:
        load(path.name)
    return str(caught.value).replace(f"{path.parent}/", "") + "\n"


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_a_wrong_file_is_refused_with_the_expected_message(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = message_of(path, monkeypatch)
    expected = path.with_suffix(".txt")
    if os.environ.get("UPDATE_EXPECTED"):
        expected.write_text(said)
    assert expected.exists(), f"{path.name} has no {expected.name} with the expected message"
    assert said == expected.read_text()


def test_every_expectation_has_its_file() -> None:
    assert {path.stem for path in (FILES / "invalid").iterdir()} == {path.stem for path in INVALID}
    assert len(INVALID) > 80


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_a_message_says_where_and_never_repeats_a_secret(path: Path) -> None:
    for line in path.with_suffix(".txt").read_text().splitlines():
        where, line_number, column, rest = line.split(":", 3)
        assert where == path.name
        assert int(line_number) >= 1
        assert int(column) >= 1
        assert len(rest) > 20
        assert "do-not-repeat-me" not in rest


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_right_file_loads_and_satisfies_the_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "a-key")
    assert load(path).jobs()
    assert [error.message for error in VALIDATOR.iter_errors(parse(path.read_bytes(), path.name).tree or {})] == []


def test_the_schema_is_one_and_says_what_every_section_means() -> None:
    Draft202012Validator.check_schema(schema())
    models = schema()["$defs"]
    for section in schema()["properties"].values():
        assert section.get("description") or models[section["$ref"].rpartition("/")[2]]["description"]


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_the_schema_refuses_nothing_that_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round than usual: a file refused by an editor that knows the schema must be one that `load` refuses, too."""
    refused = any(VALIDATOR.iter_errors(parse(path.read_bytes(), path.name).tree or {}))
    assert not refused or message_of(path, monkeypatch)


@pytest.mark.parametrize("name", ["unknown-key", "unknown-key-deep", "bad-choice", "missing-keys", "number-for-text", "inline-secret",
                                  "bad-duration", "bad-size", "out-of-range", "quiet-window-time", "unknown-section"])
def test_the_schema_finds_the_slips_that_a_schema_can_find(name: str) -> None:
    assert any(VALIDATOR.iter_errors(parse((FILES / "invalid" / f"{name}.yaml").read_bytes(), name).tree))
