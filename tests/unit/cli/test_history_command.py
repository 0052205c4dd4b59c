"""`efa-pulse history` over a folder: what is asked for, in each form, also beside a running service and without an index."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import verdicts

from exporter.archive.folder import Folder
from exporter.archive.index import FILE
from exporter.archive.record import record_of
from exporter.cli import plot, run
from exporter.cli.exits import UsageError
from exporter.cli.history import moment

NOW = time.time()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive")
    folder = Folder(path, "east", keep=1 << 30, segment=1 << 20, upload=False, clock=lambda: NOW)
    folder.append([record_of(one, cluster="east") for one in (
        verdicts.pair("old", ("a", "b"), at=NOW - 8 * 86400),
        verdicts.pair("ab", ("a", "b"), at=NOW - 3600, bandwidth=2.5e9),
        verdicts.pair("bc", ("b", "c"), at=NOW - 1800, reason="below_floor", message="rank 1 was slow"),
        verdicts.pair("ba", ("b", "a"), at=NOW - 600, probe="mooncake"),
        verdicts.canary("chat", at=NOW - 60))])
    folder.close()
    return path


def ask(archive: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["history", "--folder", str(archive), *arguments])
    return code, capsys.readouterr().out


def ids(archive: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    code, out = ask(archive, capsys, "--format", "json", *arguments)
    found = [json.loads(line)["run_id"] for line in out.splitlines()]
    assert code == (0 if found else 2)
    return found


@pytest.mark.parametrize(("arguments", "expected"), [
    ((), ["chat", "ba", "bc", "ab", "old"]),
    (("--node", "c"), ["bc"]),
    (("--pair", "a", "b"), ["ba", "ab", "old"]),
    (("--node", "a", "--node", "b", "--probe", "mooncake"), ["ba"]),
    (("--since", "7d", "--node", "a"), ["ba", "ab"]),
    (("--since", "2h", "--until", "20m"), ["bc", "ab"]),
    (("--outcome", "degraded"), ["bc"]),
    (("--outcome", "failed"), []),
    (("--target", "chat"), ["chat"]),
    (("--limit", "2"), ["chat", "ba"]),
    (("--node", "nobody"), []),
])
def test_what_is_asked_for_is_found_newest_first(archive: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...],
                                                 expected: list[str]) -> None:
    assert ids(archive, capsys, *arguments) == expected


def test_a_table_for_people(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = ask(archive, capsys, "--node", "b", "--limit", "3")
    assert code == 0
    assert "2.5 GB/s write goodput" in out
    assert "below_floor: rank 1 was slow" in out
    assert "the newest 3; --limit shows more" in out


def test_brackets_in_names_and_messages_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(tmp_path, "east", keep=1 << 30, segment=1 << 20, upload=False, clock=lambda: NOW)
    lost = verdicts.pair("one", ("[/a]", "[bold]"), at=NOW - 60, reason="peer_lost", message="[/red] gone")
    folder.append([record_of(lost, cluster="east")])
    folder.close()
    code, out = ask(tmp_path, capsys)
    assert code == 0
    for text in ("[/a]", "[bold]", "[/red] gone"):
        assert text in out


def test_csv_has_a_head_and_one_row_a_run(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = ask(archive, capsys, "--format", "csv", "--node", "a", "--since", "2h")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["run_id"], row["outcome"], float(row["value"]), row["unit"]) for row in rows] == [
        ("ba", "ok", 3e9, "B/s"), ("ab", "ok", 2.5e9, "B/s")]


def test_a_plot_marks_what_was_not_ok(archive: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out = ask(archive, capsys, "--format", "plot", "--since", "2h")
    assert "3 GB/s" in out
    drawing = [line.partition("│")[2] for line in out.splitlines()]
    assert "".join(drawing).count(plot.BAD) == 1
    assert "".join(drawing).count(plot.GOOD) == 3
    assert "no figure" in out, "the canary's TTFT has another unit"
    picture = tmp_path / "history.svg"
    assert run(["history", "--folder", str(archive), "--svg", str(picture), "--node", "b"]) == 0
    drawn = ET.fromstring(picture.read_text())
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 4


def test_a_copy_without_index_and_a_folder_that_is_being_written_are_read_as_well(archive: Path, capsys: pytest.CaptureFixture[str],
                                                                                   tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(archive / "results", copy / "results")
    assert ids(copy, capsys, "--node", "c") == ["bc"]
    owner = Folder(copy, "east", keep=1 << 30, segment=1 << 20, upload=False, clock=lambda: NOW)
    owner.append([record_of(verdicts.pair("new", ("c", "d"), at=NOW), cluster="east")])
    assert ids(copy, capsys, "--node", "c") == ["new", "bc"]
    owner.close()
    (copy / FILE).unlink()
    assert ids(copy, capsys, "--node", "d") == ["new"]


@pytest.mark.parametrize(("arguments", "said"), [
    (("--folder", "/nonexistent"), "there is no archive in /nonexistent: name its folder with --folder"),
    (("--since", "yesterday"), "--since: neither a span such as 6h or 7d nor a time"),
    (("--s3",), "no bucket is known"),
    (("--bucket", "!"), "--bucket, --prefix, --region or --endpoint: "),
])
def test_a_mistake_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert run(["history", *arguments]) == 64
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_times_are_spans_or_moments() -> None:
    assert moment("6h", 100_000.0, "--since") == 100_000 - 6 * 3600
    assert moment("2026-12-01T18:00:00Z", 0.0, "--since") == 1796148000.0
    assert moment(None, 0.0, "--since") is None
    with pytest.raises(UsageError):
        moment("soon", 0.0, "--since")


@pytest.mark.parametrize("points", [[], [plot.Point(5.0, None, False)], [plot.Point(5.0, 0.0, True)],
                                    [plot.Point(5.0, float("nan"), True), plot.Point(6.0, 1e-9, False)]])
def test_plots_of_little_or_nothing_are_plots(points: list[plot.Point]) -> None:
    assert plot.terminal(points, "B/s")
    ET.fromstring(plot.svg(points, "B/s", "a <b> & c"))
