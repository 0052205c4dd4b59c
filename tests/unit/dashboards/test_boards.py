"""Boards as they are shipped: up to date, complete, of known metrics, and in the shape that Grafana takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dashboards
from dashboards.__main__ import main
from dashboards.boards import BOARDS
from dashboards.panels import WORDS
from dashboards.rules.catalogue import ALERTS, GROUPS
from dashboards.rules.model import Recording
from dashboards.store import shipped
from exporter.publish import families as f
from exporter.publish.family import Kind

FOLDER = Path(dashboards.__file__).parent
UNUSED: dict[str, str] = {}
"""Families that neither a board nor a rule shows, and why."""
ELSEWHERE = ("efapulse_witness_", "process_")
"""Prefixes of metrics that are not of the exporter's catalogue: those of the witness and of the process."""

Json = dict[str, Any]
DOCUMENTS = shipped()


def panels(document: Json) -> Iterator[Json]:
    yield from (panel for panel in document["panels"] if panel["type"] != "row")


def expressions(document: Json) -> Iterator[tuple[str, str]]:
    """Where each query stands, and its text."""
    for panel in panels(document):
        yield from ((f"{panel['title']} {target['refId']}", target["expr"]) for target in panel["targets"])
    for annotation in document["annotations"]["list"]:
        if "expr" in annotation:
            yield annotation["name"], annotation["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


ALL_PANELS = [pytest.param(panel, id=f"{uid}: {panel['title']}") for uid, document in DOCUMENTS.items() for panel in panels(document)]


def known_names() -> set[str]:
    names: set[str] = set()
    for family in f.FAMILIES:
        names |= {family.name + end for end in ("_bucket", "_sum", "_count")} if family.kind is Kind.HISTOGRAM else {family.name}
    return names


def test_what_is_committed_is_what_the_code_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out


def test_a_changed_file_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dashboards.__main__.JSON", tmp_path)
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "node.json").write_text("{}")
    (tmp_path / "left-over.json").write_text("{}")
    assert main(["--check"]) == 1
    assert "left-over.json, node.json" in capsys.readouterr().out
    assert main([]) == 0
    assert not (tmp_path / "left-over.json").exists()


def test_every_board_is_shipped_under_its_own_uid() -> None:
    assert set(DOCUMENTS) == {board.uid for board in BOARDS} == {
        f"efa-pulse-{slug}" for slug in ("overview", "fabric", "kv", "canary", "node", "neighbours", "monitor")}


@pytest.mark.parametrize("panel", ALL_PANELS)
def test_every_panel_has_title_description_and_unit(panel: Json) -> None:
    assert len(panel["title"]) >= 3
    assert len(panel["description"]) >= 30
    assert panel["description"].rstrip().endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    if defaults["unit"] == WORDS and panel["type"] != "table":
        assert defaults["mappings"], "a unit of words needs words"
    assert "noValue" in defaults, "a panel without data must say so"


@pytest.mark.parametrize("uid", DOCUMENTS)
class TestEachBoard:
    """What holds for each document."""

    def test_data_source_and_cluster_are_variables(self, uid: str) -> None:
        document = DOCUMENTS[uid]
        variables = {one["name"]: one for one in document["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        assert variables["cluster"]["allValue"] == ".*"
        text = json.dumps(document)
        assert set(re.findall(r'"uid": "([^"]*)"', text)) <= {"${datasource}", "-- Grafana --", uid}
        for where, expr in expressions(document):
            selectors = re.findall(r"(efapulse_\w+)(\{[^{}]*\})?", expr)
            for metric, matchers in selectors:
                if not expr.startswith("label_values(efapulse_build_info"):
                    assert 'cluster=~"$cluster"' in matchers, f"{where}: {metric} is of every cluster"

    def test_every_variable_that_is_used_is_there(self, uid: str) -> None:
        document = DOCUMENTS[uid]
        there = {one["name"] for one in document["templating"]["list"]} | {"__range", "__rate_interval", "__interval"}
        used = {name for _, expr in expressions(document) for name in re.findall(r"\$\{?(\w+)", expr)}
        assert used <= there

    def test_every_metric_is_of_the_catalogue(self, uid: str) -> None:
        names = {name for _, expr in expressions(DOCUMENTS[uid]) for name in re.findall(r"\b(?:efapulse|process)_\w+", expr)}
        assert {name for name in names if not name.startswith(ELSEWHERE)} <= known_names()

    def test_recorded_series_are_of_the_rules(self, uid: str) -> None:
        recorded = {rule.record for group in GROUPS for rule in group.rules if isinstance(rule, Recording)}
        assert {name for _, expr in expressions(DOCUMENTS[uid]) for name in re.findall(r"\befapulse:[\w:]+", expr)} <= recorded

    def test_labels_are_those_of_the_metric(self, uid: str) -> None:
        labels = {family.name: set(family.labels) | {"cluster", "le"} for family in f.FAMILIES}
        for where, expr in expressions(DOCUMENTS[uid]):
            for metric, matchers in re.findall(r"(efapulse_\w+)\{([^{}]*)\}", expr):
                family = metric if metric in labels else re.sub(r"_(bucket|sum|count)$", "", metric)
                if metric.startswith(ELSEWHERE):
                    continue
                for label in re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers):
                    assert label in labels[family], f"{where}: {metric} has no label {label}"

    def test_panels_lie_side_by_side(self, uid: str) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in DOCUMENTS[uid]["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells

    def test_ids_and_titles_are_unique(self, uid: str) -> None:
        all_panels = DOCUMENTS[uid]["panels"]
        assert len({panel["id"] for panel in all_panels}) == len(all_panels)
        by_row: dict[str, list[str]] = {}
        row = ""
        for panel in all_panels:
            row = panel["title"] if panel["type"] == "row" else row
            by_row.setdefault(row, []).append(panel["title"])
        assert all(len(titles) == len(set(titles)) for titles in by_row.values())

    def test_runbooks_are_those_of_alerts(self, uid: str) -> None:
        for panel in panels(DOCUMENTS[uid]):
            for link in panel.get("links") or ():
                page = re.fullmatch(r"\$\{runbooks\}/(\w+)\.md", link["url"])
                assert page is not None
                assert page[1] in ALERTS


def test_every_family_is_shown_or_is_left_out_for_a_reason() -> None:
    shown = {name for document in DOCUMENTS.values() for _, expr in expressions(document) for name in re.findall(r"\befapulse_\w+", expr)}
    rules = "\n".join(path.read_text() for path in (FOLDER / "rules").rglob("*") if path.suffix in {".py", ".yaml", ".yml"})
    shown |= set(re.findall(r"\befapulse_\w+", rules))
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} | shown
    missing = {family.name for family in f.FAMILIES} - plain
    assert missing == set(UNUSED), "a family is shown by a board or a rule, or listed here with the reason why not"
    assert all(len(reason) > 10 for reason in UNUSED.values())
