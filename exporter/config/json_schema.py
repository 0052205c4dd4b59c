"""The JSON Schema (2020-12) of the configuration file, as `efa-pulse check-config --schema` prints it."""

from __future__ import annotations

from typing import Any

from exporter.config.load import SCRATCH
from exporter.config.root import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
IDENTIFIER = "efa-pulse/config/v1"


def schema() -> dict[str, Any]:
    """The schema. A file that it refuses is refused by `load`; `load` also checks what spans several keys and what lies outside."""
    found = Config.model_json_schema(by_alias=True, mode="validation")
    found["patternProperties"] = {f"^{SCRATCH}": {}}
    return {"$schema": DIALECT, "$id": IDENTIFIER, **found}
