"""The generated dashboards as they are shipped: files of this package, read without any library."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

FOLDER = "json"


def shipped() -> dict[str, dict[str, Any]]:
    """Every dashboard by its uid, in the order of their names."""
    folder = resources.files("dashboards") / FOLDER
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if file.name.endswith(".json"):
            document = json.loads(file.read_text(encoding="utf-8"))
            found[document["uid"]] = document
    return found
