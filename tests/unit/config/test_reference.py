"""The reference page is what the models say. After a change of a model: `UPDATE_EXPECTED=1 pytest tests/unit/config/test_reference.py`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import exporter.config
from exporter.config import reference
from exporter.config.tour import walk

PAGE = Path(exporter.config.__file__).with_name("reference.md")


def test_the_page_is_up_to_date() -> None:
    if os.environ.get("UPDATE_EXPECTED"):
        PAGE.write_text(reference())
    assert reference() == PAGE.read_text()


def test_every_key_has_a_row_and_every_link_leads_somewhere() -> None:
    page = reference()
    for key in walk():
        assert f"\n| `{key.name}` | " in page, key.path
    anchors = {re.sub(r"[^a-z0-9_-]", "", title.lower()) for title in re.findall(r"^## `?([^`\n]+)`?$", page, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors


def test_every_row_is_one_line_with_four_cells() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    for row in rows:
        assert len(re.split(r"(?<!\\)\|", row)) == 6, row


def test_units_are_shown_as_they_are_written() -> None:
    page = reference()
    assert "| `interval` | duration, 1s or more, 366d at most |" in page
    assert "| `sizes` | list of size, 1KiB or more, 1GiB at most | `[64KiB, 1MiB, 16MiB]` |" in page
    assert "| `grace` | duration, 1h at most | `15s` |" in page
