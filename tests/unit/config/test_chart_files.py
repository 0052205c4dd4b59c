"""What the chart holds is what it is made from. `UPDATE_EXPECTED=1` writes it anew, as `python charts/generate.py` does."""

from __future__ import annotations

import os
from typing import Any

import charting
import jsonschema
import pytest
import yaml

from exporter.config import Config


@pytest.fixture(scope="module")
def generate() -> Any:
    found = charting.generator()
    if os.environ.get("UPDATE_EXPECTED"):
        found.write()
    return found


def test_the_chart_holds_what_it_is_made_from(generate: Any) -> None:
    assert generate.stale() == [], "run: python charts/generate.py"


def test_every_value_is_explained_by_the_schema_and_has_a_line_in_the_page(generate: Any) -> None:
    values = yaml.safe_load((charting.CHART / "values.yaml").read_text())
    schema = yaml.safe_load(generate.values_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    page = generate.values_page()
    for section, keys in values.items():
        assert section in schema["properties"], section
        assert f"| `{section}" in page
        for key in keys if isinstance(keys, dict) else ():
            assert key in schema["properties"][section]["properties"], f"{section}.{key}"


def test_keys_that_the_chart_decides_are_not_known_under_config(generate: Any) -> None:
    schema = yaml.safe_load(generate.values_schema())
    pods = schema["$defs"]["config.Pods"]["properties"]
    assert "image" not in pods
    assert "runtime_class" in pods
    assert set(schema["properties"]["config"]["properties"]) == set(Config.model_fields)
