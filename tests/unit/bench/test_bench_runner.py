"""The benchmark runner: finding, naming, skipping, crashing, writing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench.report import FIELDS, machine, quantile, show, table
from rich.console import Console

ROW = {"name": "a", "what": "w", "value": 0.0123, "unit": "s", "peer": "p", "peer_value": 1.0, "ratio": 81.3, "goal": "ratio >= 10",
       "holds": True, "versions": {}}


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The runner, with a folder of its own for what it writes and reads."""
    module = importlib.import_module("bench.__main__")
    monkeypatch.setattr(module, "OUTPUT", tmp_path / "build" / "bench.json")
    monkeypatch.setattr(module, "RECORDED", tmp_path)
    return module


def answers(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, **by_name: dict[str, Any]) -> None:
    """Let each benchmark give this answer."""
    monkeypatch.setattr(runner, "names", lambda: sorted(by_name))
    monkeypatch.setattr(runner, "_in_child", lambda name: by_name[name])


def written(runner: ModuleType) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(runner.OUTPUT.read_text())
    return rows


def test_benchmarks_are_found_without_importing_them(runner: ModuleType) -> None:
    assert {"scrape_50k", "scrape_gzip_50k", "service_rss_50k", "mooncake_bandwidth", "nixl_bandwidth"} <= set(runner.names())
    assert not {"report", "scrape_rig", "__main__"} & set(runner.names())


def test_a_name_that_does_not_exist_is_2(runner: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["nothing"]) == 2
    assert "there is no benchmark nothing; there is" in capsys.readouterr().out


def test_every_row_has_every_field_and_the_machine(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(runner, monkeypatch, a={"rows": [ROW]})
    assert runner.main([]) == 0
    (row,) = written(runner)
    assert tuple(row) == FIELDS
    assert row["machine"] == machine()


def test_a_missed_goal_or_a_failure_is_1(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers(runner, monkeypatch, a={"rows": [{**ROW, "holds": False}]}, b={"error": "RuntimeError: no"})
    assert runner.main(["a"]) == 1
    assert runner.main(["b"]) == 1
    said = capsys.readouterr().out
    assert "goal missed: a: w: ratio >= 10" in said
    assert "failed: b: RuntimeError: no" in said


def test_a_skipped_one_is_named_with_its_recorded_rows(runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gpu.json").write_text(json.dumps([{**ROW, "name": "gpu", "machine": "a big one"}]))
    answers(runner, monkeypatch, gpu={"skipped": "no GPU here"})
    assert runner.main([]) == 0
    assert "skipped: gpu: no GPU here" in capsys.readouterr().out
    assert [(row["what"], row["machine"]) for row in written(runner)] == [("w (recorded)", "a big one")]


def test_a_named_run_replaces_its_own_rows_only(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(runner, monkeypatch, a={"rows": [ROW]}, b={"rows": [{**ROW, "name": "b"}]})
    runner.main([])
    answers(runner, monkeypatch, a={"rows": [{**ROW, "value": 5.0}]}, b={"rows": []})
    runner.main(["a"])
    assert sorted((row["name"], row["value"]) for row in written(runner)) == [("a", 5.0), ("b", 0.0123)]
    runner.main([])
    assert [row["name"] for row in written(runner)] == ["a"]


def test_a_child_that_dies_is_an_error_and_the_others_go_on(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHILD", "--no-such-child")
    assert "left no rows" in runner._in_child("scrape_50k")["error"]


def test_a_child_that_hangs_ends_at_its_deadline(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECONDS", 0.05)
    assert runner._in_child("scrape_50k") == {"error": "not finished after 0 s"}


@pytest.mark.parametrize(("values", "q", "expected"), [
    ([1, 2, 3, 4], 0.5, 2), ([5], 0.99, 5), (range(1, 101), 0.99, 99), (range(1, 101), 1.0, 100), ([3, 1, 2], 0.0, 1),
])
def test_quantiles_are_values_that_occurred(values: list[float], q: float, expected: float) -> None:
    assert quantile(list(values), q) == expected


@pytest.mark.parametrize(("value", "unit", "text"), [(0.0123, "s", "12.3 ms"), (5e9, "B/s", "5 GB/s"), (104857600, "B", "100.0 MiB"),
                                                     (None, "s", ""), (0, "s", "0 s"), (33.4, "x", "33.4 x"), (2e-10, "s", "0.2 ns")])
def test_figures_for_people(value: float | None, unit: str, text: str) -> None:
    assert show(value, unit) == text


def test_the_table_shows_both_sides_and_what_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    table([{**ROW, "holds": False}], Console(width=200))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("12.3 ms", "1 s", "81.3", "NO"))
