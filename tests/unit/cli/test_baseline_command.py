"""`efa-pulse baseline` over the file of a service, and the document that carries baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from usual import DAY, NEW, T, book, fleet, rounds

from exporter.cli import run
from exporter.fleet import keep
from exporter.judge import exchange
from exporter.memory import lock
from exporter.plan.journal import Journal, flush
from exporter.plan.store import FileStore

NODES = fleet()
RATE = 60e9


@pytest.fixture(scope="module")
def learned() -> dict[str, Any]:
    """Records of eight nodes, upgraded after a while, one of which became slower."""
    made = book()
    rounds(made, NODES, dict.fromkeys(NODES, RATE), 40)
    rounds(made, NODES, dict.fromkeys(NODES, 0.9 * RATE), 40, start=T + 2 * DAY, versions=NEW)
    rounds(made, NODES, {**dict.fromkeys(NODES, 0.9 * RATE), "n3": 0.8 * RATE}, 14, start=T + 4 * DAY, versions=NEW)
    journal = Journal()
    keep(made, journal)
    return journal.records


@pytest.fixture
def place(tmp_path: Path, learned: dict[str, Any]) -> Path:
    path = tmp_path / "baselines.json"
    journal = Journal()
    for key, record in learned.items():
        journal.put(key, record)
    journal.put("node/i-3", {"name": "n3"})
    flush(journal, FileStore(path), 0.0, everything=True)
    return path


def stored(path: Path) -> dict[str, Any]:
    return Journal.loaded(FileStore(path).load()).records


class TestShow:
    def test_baselines_with_what_was_before_and_the_node_that_changed(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "show", "--file", str(place), "--json"]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "efa-pulse/baseline-list/v1"
        now = [one for one in document["baselines"] if one["current"]]
        assert [round(one["before"]["ratio"], 2) for one in now] == [0.9, 0.9]
        assert all(one["used"] and "libfabric 1.23" in one["software_says"] for one in now)
        changed = [one for one in document["nodes"] if one["state"] == "changed"]
        assert [(one["node"], one["change"]["kind"]) for one in changed] == [("n3", "step")]

    def test_one_node_for_people(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "show", "--file", str(place), "--node", "n3"]) == 1
        said = " ".join(capsys.readouterr().out.split())
        assert "n3 mooncake: changed, write of 16MiB, 48" in said
        assert "slower than it was, seen 2027-01-19" in said
        assert "with software" in said

    def test_a_node_that_is_as_it_was(self, place: Path) -> None:
        assert run(["baseline", "show", "--file", str(place), "--node", "i-5"]) == 0

    def test_a_probe_that_has_none(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "show", "--file", str(place), "--probe", "nccl"]) == 0
        assert capsys.readouterr().out == "nothing is learned yet\n"

    @pytest.mark.parametrize(("arguments", "code", "says"), [
        (["--node", "nobody"], 2, "nothing is learned of node 'nobody'"),
        (["--kubeconfig", "x"], 64, "give either it or --kubeconfig"),
    ])
    def test_questions_without_an_answer(self, place: Path, arguments: list[str], code: int, says: str,
                                         capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "show", "--file", str(place), *arguments]) == code
        assert says in capsys.readouterr().err

    def test_a_file_that_is_not_there(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "show", "--file", str(tmp_path / "none")]) == 64
        assert "there is no such file: a service writes it when `baselines.file` names it" in capsys.readouterr().err

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other", "records": {}}', '{"schema": "efa-pulse/journal/v1"}'])
    def test_a_file_that_is_no_journal(self, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "j.json"
        path.write_text(content)
        assert run(["baseline", "show", "--file", str(path)]) == 64
        assert str(path) in capsys.readouterr().err

    def test_a_damaged_record_is_told_and_the_others_are_shown(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        document = json.loads(place.read_text())
        document["records"]["baseline/i-5"] = {"mooncake": {"t": 5}}
        place.write_text(json.dumps(document))
        assert run(["baseline", "show", "--file", str(place), "--json"]) == 1
        told = capsys.readouterr()
        assert "the baseline of node 'i-5' cannot be read" in told.err
        assert len(json.loads(told.out)["nodes"]) == 7

    def test_the_file_that_the_configuration_names(self, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = tmp_path / "config.yaml"
        config.write_text(f"baselines: {{file: {place}}}\n")
        assert run(["baseline", "show", "--config", str(config), "--json"]) == 1
        config.write_text("{}\n")
        assert run(["baseline", "show", "--config", str(config)]) == 64
        assert "baselines.file is not set" in capsys.readouterr().err


class TestExchange:
    def test_what_is_exported_is_imported_the_same(self, place: Path, tmp_path: Path, learned: dict[str, Any]) -> None:
        document, other = tmp_path / "out.json", tmp_path / "new.json"
        assert run(["baseline", "export", str(document), "--file", str(place)]) == 0
        assert run(["baseline", "import", str(document), "--file", str(other)]) == 0
        assert stored(other) == json.loads(json.dumps(learned))

    def test_only_baselines_are_exported(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "export", "--file", str(place)]) == 0
        assert "node/i-3" not in json.loads(capsys.readouterr().out)["records"]

    @pytest.mark.parametrize("change", [
        lambda records: records.update({"baseline/\ud800": {}}),
        lambda records: records["baseline/i-3"].update({"order": {"text": "\udfff"}}),
        lambda records: records["baseline/i-3"]["mooncake"].update({"g": ["write", 1e999, "host", "goodput"]}),
        lambda records: records["baseline/i-3"]["mooncake"].update({"p": [["x", 10**400, 1, 1, 1]]}),
    ], ids=["half a character", "half a character inside", "an endless size", "a time beyond any"])
    def test_text_and_figures_that_are_none_are_refused(self, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                        change: Callable[[dict[str, Any]], None]) -> None:
        document, other = tmp_path / "out.json", tmp_path / "new.json"
        assert run(["baseline", "export", str(document), "--file", str(place)]) == 0
        made = json.loads(document.read_text())
        change(made["records"])
        document.write_text(json.dumps(made))
        assert run(["baseline", "import", str(document), "--file", str(other)]) == 64
        assert "was not imported" in capsys.readouterr().err
        assert not other.exists()

    def test_an_import_keeps_what_the_document_does_not_have_unless_it_is_to_replace(self, place: Path, tmp_path: Path) -> None:
        document = tmp_path / "some.json"
        some = {key: record for key, record in stored(place).items() if key.startswith("norm/")}
        document.write_text(exchange.export(some, T))
        assert run(["baseline", "import", str(document), "--file", str(place)]) == 0
        assert "baseline/i-3" in stored(place)
        assert run(["baseline", "import", str(document), "--file", str(place), "--replace"]) == 0
        assert stored(place).keys() == {*some, "node/i-3"}

    @pytest.mark.parametrize(("change", "says"), [
        (lambda document: document.pop("schema"), "its schema is not efa-pulse/baselines/v1"),
        (lambda document: document.update(records=[]), "its records are no table"),
        (lambda document: document["records"].update({"node/i-3": {}}), "record 'node/i-3' is none of a baseline"),
        (lambda document: document["records"].update({"baseline/i-3": {"mooncake": {"t": {}}}}), "node 'i-3' cannot be read"),
        (lambda document: document["records"].update({"norm/0000000000000000": {}}), "baseline '0000000000000000' cannot be read"),
        (lambda document: document["records"].update({"norm/": {}}), "is none of a baseline"),
    ])
    def test_a_document_with_anything_wrong_is_refused_as_a_whole(self, place: Path, tmp_path: Path, change: Any, says: str,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
        document = json.loads(exchange.export(stored(place), T))
        change(document)
        path = tmp_path / "bad.json"
        path.write_text(json.dumps(document))
        before = place.read_bytes()
        assert run(["baseline", "import", str(path), "--file", str(place)]) == 64
        assert says in capsys.readouterr().err
        assert place.read_bytes() == before

    @pytest.mark.parametrize("text", ["", "no json", "[" * 100_000])
    def test_what_is_no_json_is_refused(self, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "bad.json"
        path.write_text(text)
        assert run(["baseline", "import", str(path), "--file", str(tmp_path / "new.json")]) == 64
        assert "it is no JSON" in capsys.readouterr().err


class TestReset:
    def test_one_node(self, place: Path) -> None:
        assert run(["baseline", "reset", "--node", "i-3", "--file", str(place)]) == 0
        assert "baseline/i-3" not in stored(place)
        assert "baseline/i-4" in stored(place)

    def test_one_probe_or_everything(self, place: Path) -> None:
        assert run(["baseline", "reset", "--probe", "nccl", "--file", str(place)]) == 2
        assert run(["baseline", "reset", "--probe", "mooncake", "--file", str(place)]) == 0
        assert stored(place).keys() == {"node/i-3"}
        assert run(["baseline", "reset", "--all", "--file", str(place)]) == 2

    @pytest.mark.parametrize("arguments", [[], ["--all", "--node", "n3"], ["--probe", "nccl", "--all"]])
    def test_exactly_one_thing_is_reset(self, place: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["baseline", "reset", "--file", str(place), *arguments]) == 64
        assert "--node NAME, --probe PROBE and --all" in capsys.readouterr().err

    def test_a_file_that_a_service_uses_is_not_written(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        held = lock(place)
        try:
            before = place.read_bytes()
            assert run(["baseline", "reset", "--all", "--file", str(place)]) == 64
            assert "is in use by another efa-pulse: stop it first" in capsys.readouterr().err
            assert place.read_bytes() == before
            assert run(["baseline", "show", "--file", str(place)]) == 1, "reading is always possible"
        finally:
            os.close(held)
        assert run(["baseline", "reset", "--all", "--file", str(place)]) == 0
