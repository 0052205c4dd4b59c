"""An archive folder: nothing is lost but a torn line, nothing is there twice, everything is found again, also without its index."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import verdicts

from exporter.archive import segments
from exporter.archive.folder import Folder, FullError, LockedError
from exporter.archive.index import FILE, Index, Query
from exporter.archive.record import Record, RecordError, line_of, parse, record_of, verdict_of
from exporter.archive.segments import Name

AT = 1_790_000_000.0
DAY = 86400.0


def record(run_id: str = "nixl-1", nodes: tuple[str, str] = ("a", "b"), at: float = AT, **more: Any) -> Record:
    return record_of(verdicts.pair(run_id, nodes, at=at, **more), cluster="east")


def opened(path: Path, **more: Any) -> Folder:
    return Folder(path, "east", **{"keep": 1 << 30, "segment": 1 << 20, "upload": False, "clock": lambda: AT, **more})


def fill(folder: Folder) -> None:
    for number in range(60):
        folder.append([record(f"run-{number}")])


def kept(path: Path) -> list[str]:
    return [record["run_id"] for name in segments.find(path) for _, _, record in segments.lines(path / str(name))]


def test_a_record_is_the_verdict_with_every_result_and_comes_back_as_one() -> None:
    verdict = verdicts.pair("nixl-1", at=AT, reason="peer_lost", message="gone", labels={"round": "3"})
    one = parse(line_of(record_of(verdict, cluster="east", instance_ids=("i-1", "i-2"), logs={1: "the end"})))
    assert (one["cluster"], one["instance_ids"], one["logs"], one["labels"]) == ("east", ["i-1", "i-2"], {"1": "the end"}, {"round": "3"})
    assert (one["figure"], one["value"], one["unit"]) == ("write goodput", 3e9, "B/s")
    again = verdict_of(one)
    assert again.run.results == verdict.run.results
    assert (again.reason, again.message, again.transport, again.proofs) == (verdict.reason, "gone", verdict.transport, verdict.proofs)
    assert record_of(verdicts.canary(), cluster="east")["figure"] == "ttft"


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"schema":"other"}', b'{"schema":"efa-pulse/archive/v1"}', b"\0\0\0", b"\xff\xfe"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        parse(line)


def changed(**more: Any) -> bytes:
    return json.dumps({**record("strange"), **more}).encode() + b"\n"


STRANGE = {
    "no time": changed(finished=float("nan")), "endless": changed(finished=1e300), "a truth value": changed(finished=True),
    "nodes are a number": changed(nodes=5), "a node is an object": changed(nodes=[{"a": 1}]), "target is an object": changed(target={}),
    "reason is a list": changed(reason=["a"]), "another outcome": changed(outcome="great"), "half a character": changed(run_id="\ud800"),
    "half a character in a name": changed(nodes=["\udfff"]), "a figure beyond any": changed(value=10**400),
    "too deep": changed().replace(b'"logs"', b'"x"').rstrip()[:-1] + b',"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
}


@pytest.mark.parametrize("line", STRANGE.values(), ids=STRANGE.keys())
def test_a_strange_line_costs_only_itself(tmp_path: Path, line: bytes) -> None:
    with pytest.raises(RecordError):
        parse(line)
    folder = opened(tmp_path)
    folder.adopt(Name("west", segments.day(AT), "20260901T000000", "other", 1), line_of(record("before")) + line + line_of(record("after")))
    assert sorted(row.run_id for row in folder.index.find(Query())) == ["after", "before"]
    folder.close()


def test_a_line_too_long_for_a_record_hides_none_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LINE_LIMIT", 20_000)
    path = tmp_path / "one.jsonl"
    lines = [line_of(record("before")), b"x" * 70_000 + b"\n", b"[" + b" " * 19_998 + b"\n", line_of(record("after")), b'{"torn']
    path.write_bytes(b"".join(lines))
    found = list(segments.lines(path))
    assert [one["run_id"] for _, _, one in found] == ["before", "after"]
    for offset, length, one in found:
        assert parse(path.read_bytes()[offset:offset + length]) == one


@pytest.mark.parametrize("name", ["a?b", "a#b", "50%20", "a b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = opened(tmp_path / name)
    folder.append([record()])
    folder.close()
    assert (tmp_path / name / FILE).exists()


def test_results_lie_under_the_day_of_their_end_whenever_they_were_written(tmp_path: Path) -> None:
    folder = opened(tmp_path, clock=lambda: AT + DAY)
    folder.append([record("one"), record("two", at=AT + DAY)])
    names = [str(name) for name in segments.find(tmp_path)]
    assert [name.rpartition("/")[0] for name in names] == [f"results/v1/cluster=east/date=2026-09-{day}" for day in (21, 22)]
    assert all(Name.parse(name + ".gz") == Name.parse(name) and Name.parse(name) for name in names)
    assert segments.find(tmp_path)[0].begun == AT + DAY


def test_a_run_that_comes_twice_is_kept_once(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    assert [one["run_id"] for one in folder.append([record("one"), record("two"), record("one")])] == ["one", "two"]
    assert folder.append([record("two")]) == []
    folder.close()
    again = opened(tmp_path)
    assert again.append([record("one"), record("three")])[0]["run_id"] == "three"
    assert kept(tmp_path) == ["one", "two", "three"]


def test_a_file_is_rolled_when_it_is_large_and_after_a_restart(tmp_path: Path) -> None:
    folder = opened(tmp_path, segment=4096)
    for number in range(9):
        folder.append([record(f"run-{number}")])
    folder.close()
    before = len(segments.find(tmp_path))
    assert before > 1
    opened(tmp_path).append([record("later")])
    assert len(segments.find(tmp_path)) == before + 1
    assert sorted(kept(tmp_path)) == sorted([*(f"run-{number}" for number in range(9)), "later"])


@pytest.mark.parametrize("torn", [b'{"schema":"efa-pulse/archive/v1","run_id":"tor', b"\0" * 5000, b"x" * 100_000])
def test_a_torn_line_is_cut_off_and_the_whole_ones_before_it_stay(tmp_path: Path, torn: bytes) -> None:
    folder = opened(tmp_path)
    folder.append([record("one"), record("two")])
    path = tmp_path / str(segments.find(tmp_path)[0])
    folder.close()
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(torn)
    again = opened(tmp_path)
    assert again.cut == len(torn)
    assert path.stat().st_size == whole
    again.append([record("torn")])
    assert kept(tmp_path) == ["one", "two", "torn"]


def test_whole_lines_that_the_index_missed_are_taken_in(tmp_path: Path) -> None:
    """A process that is killed between the sync of the file and that of the index."""
    folder = opened(tmp_path)
    folder.append([record("one")])
    path = tmp_path / str(segments.find(tmp_path)[0])
    folder.close()
    with path.open("ab") as file:
        file.write(line_of(record("missed")))
    again = opened(tmp_path)
    assert again.append([record("missed")]) == []
    assert [row.run_id for row in again.index.find(Query(nodes=("a",)))] == ["missed", "one"]


@pytest.mark.parametrize("damage", [b"", b"no database at all, but long enough to be read as a header of one" * 40])
def test_a_lost_or_damaged_index_is_built_anew_from_the_files(tmp_path: Path, damage: bytes) -> None:
    folder = opened(tmp_path)
    folder.append([record(f"run-{number}", at=AT + number) for number in range(20)])
    folder.close()
    (tmp_path / FILE).unlink()
    for rest in tmp_path.glob(FILE + "-*"):
        rest.unlink()
    if damage:
        (tmp_path / FILE).write_bytes(damage)
    assert [row.run_id for row in opened(tmp_path).index.find(Query(limit=2))] == ["run-19", "run-18"]


def test_the_oldest_files_go_first_and_never_what_is_not_uploaded(tmp_path: Path) -> None:
    folder = opened(tmp_path / "local", keep=60_000, segment=8192)
    for number in range(60):
        folder.append([record(f"run-{number}")])
    folder.prune()
    assert folder.size <= 60_000
    runs = kept(tmp_path / "local")
    assert runs == [f"run-{number}" for number in range(60 - len(runs), 60)]
    assert [row.run_id for row in folder.index.find(Query(nodes=("b",)))] == runs[::-1]

    spool = opened(tmp_path / "spool", keep=60_000, segment=8192, upload=True)
    with pytest.raises(FullError, match=r"raise archive\.keep"):
        fill(spool)
    held = kept(tmp_path / "spool")
    assert held == [f"run-{number}" for number in range(len(held))]
    spool.seal()
    for name in spool.owed()[:2]:
        spool.index.uploaded(name)
    spool.append([record("after")])
    assert "run-0" not in kept(tmp_path / "spool")


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(LockedError, match="another process"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_runs_that_another_replica_has_uploaded_leave_our_own_segments(tmp_path: Path) -> None:
    folder = opened(tmp_path, upload=True)
    folder.append([record("ours"), record("both")])
    mine = folder.seal()[0]
    theirs = Name.new("east", "2026-09-21", AT, "wother", 1)
    folder.adopt(theirs, line_of(record("both")) + line_of(record("theirs")))
    assert folder.index.runs_of(mine) == ["ours"]
    assert folder.index.runs_of(theirs) == ["both", "theirs"]
    assert folder.owed() == [mine]
    assert b"both" not in folder.read(mine)
    folder.close()
    assert opened(tmp_path, upload=True).index.place_of("both") == str(theirs)


def test_the_index_finds_what_a_plain_scan_finds(tmp_path: Path) -> None:
    rng = random.Random(7)
    folder = opened(tmp_path)
    nodes = [f"node-{number}" for number in range(6)]
    records = [record(f"run-{number}", tuple(rng.sample(nodes, 2)), AT + rng.uniform(0, 1000),  # type: ignore[arg-type]
                      reason=rng.choice(["ok", "ok", "peer_lost"]), probe=rng.choice(["nixl", "mooncake"])) for number in range(300)]
    folder.append(records)
    for query in (Query(), Query(("node-1",)), Query(("node-2", "node-3")), Query(("node-1",), since=AT + 300, until=AT + 600),
                  Query(probe="nixl", outcome="ok"), Query(("node-4",), probe="mooncake"), Query(target="node-1--node-2"),
                  Query(("nobody",)), Query(since=AT + 999_999), Query(("node-1", "node-2", "node-3"))):
        expected = sorted((one for one in records if query.takes(one)), key=lambda one: -one["finished"])
        assert [row.run_id for row in folder.index.find(query)] == [one["run_id"] for one in expected], query


def test_an_index_of_another_version_is_no_index(tmp_path: Path) -> None:
    Index(tmp_path / FILE).close()
    import sqlite3

    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version=99")
    folder = opened(tmp_path)
    folder.append([record("one")])
    assert folder.index.count() == 1


def test_the_same_lines_are_the_same_object(tmp_path: Path) -> None:
    data = line_of(record("one"))
    assert segments.packed(data) == segments.packed(data)
    assert segments.unpacked(segments.packed(data)) == data
    assert segments.unpacked(b"damaged") == b""
    assert json.loads(data)["run_id"] == "one"
