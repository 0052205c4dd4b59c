"""The archive before S3 (moto's server): gathered, uploaded once, over outages, refusals and changes of the leader."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import verdicts
from moto.server import ThreadedMotoServer

from exporter.archive import segments
from exporter.archive.archive import Archive
from exporter.archive.index import Query
from exporter.archive.s3 import S3Store
from exporter.archive.search import Local
from exporter.aws import AwsError
from exporter.cli import run
from exporter.config.archive import S3
from exporter.config.archive import Archive as Settings

BUCKET = "results"
AT = 1_790_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = AT

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-west-2",
                        "AWS_DEFAULT_REGION": "us-west-2", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    one = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    one.start()
    host, port = one.get_host_and_port()
    yield f"http://{host}:{port}"
    one.stop()


@pytest.fixture
def server(credentials: None, moto: str) -> Iterator[str]:
    client(moto).create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield moto
    urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST"), timeout=10).close()


def client(url: str) -> Any:
    return boto3.session.Session().client("s3", endpoint_url=url, region_name="us-west-2")


def settings(url: str, **more: Any) -> Settings:
    return Settings.model_validate({
        "cluster": "east", "s3": {"bucket": BUCKET, "endpoint": url, "region": "us-west-2", "timeout": 3}, **more})


def stored(url: str) -> dict[str, list[str]]:
    """Ids of the runs in every object."""
    s3 = client(url)
    found = {}
    for one in s3.list_objects_v2(Bucket=BUCKET).get("Contents", []):
        body = segments.unpacked(s3.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read())
        found[one["Key"]] = [json.loads(line)["run_id"] for line in body.splitlines()]
    return found


def runs(url: str) -> list[str]:
    return sorted(run for ids in stored(url).values() for run in ids)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.archive.archive.TICK_SECONDS", 0.02)


def turns(archive: Archive, count: int = 3) -> None:
    for _ in range(count):
        archive.turn(stopping=False)
        archive._retry_at.clear()


def offer(archive: Archive, *ids: str, at: float = AT) -> None:
    for run_id in ids:
        assert archive.offer(verdicts.pair(run_id, at=at), ("i-1", "i-2"))


def test_results_are_gathered_and_uploaded_once_under_their_fixed_name(server: str, tmp_path: Path) -> None:
    clock = Clock()
    archive = Archive(settings(server), folder=tmp_path, clock=clock)
    offer(archive, "one", "two")
    turns(archive)
    assert (runs(server), archive.settled(), archive.pending) == ([], [], 2)
    clock.now += 301
    turns(archive)
    [key] = stored(server)
    assert key == f"efa-pulse/{segments.find(tmp_path)[0]}.gz"
    assert (runs(server), sorted(archive.settled()), archive.pending) == (["one", "two"], ["one", "two"], 0)
    clock.now += 301
    turns(archive)
    assert len(stored(server)) == 1
    assert archive.counts.results == {"local": 2, "s3": 2}


def test_encryption_is_asked_for(server: str, tmp_path: Path) -> None:
    config = S3.model_validate({"bucket": BUCKET, "endpoint": server, "encryption": "aws:kms", "kms_key": "alias/results",
                                "prefix": "a/b/"})
    S3Store(config).put("x.gz", b"1")
    head = client(server).head_object(Bucket=BUCKET, Key="a/b/x.gz")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/results")


def test_many_runs_that_wait_for_their_jobs_are_uploaded_before_the_interval(server: str, tmp_path: Path) -> None:
    archive = Archive(settings(server), folder=tmp_path, clock=Clock(), hold=10)
    offer(archive, *(f"run-{number}" for number in range(5)))
    turns(archive)
    assert len(archive.settled()) == 5


def test_while_s3_is_away_jobs_beyond_the_hold_go_and_everything_arrives_once_afterwards(server: str, tmp_path: Path) -> None:
    clock = Clock()
    archive = Archive(settings("http://127.0.0.1:9"), folder=tmp_path, clock=clock, hold=4)
    offer(archive, *(f"run-{number}" for number in range(10)))
    turns(archive)
    clock.now += 301
    turns(archive)
    assert archive.settled() == [f"run-{number}" for number in range(6)], "the oldest first, down to the hold"
    assert archive.pending == 10
    assert "no answer" in archive.trouble
    assert archive.counts.failures["s3", "unreachable"] >= 1
    archive.close()
    assert archive._folder is not None
    archive._folder.close()

    again = Archive(settings(server), folder=tmp_path, clock=clock, hold=4)
    offer(again, "run-8", "run-9")  # their Jobs are still there
    turns(again)
    assert (runs(server), again.trouble) == (sorted(f"run-{number}" for number in range(10)), "")
    assert len(again.settled()) == 10


def test_an_upload_whose_answer_was_lost_is_made_again_under_the_same_name(server: str, tmp_path: Path) -> None:
    class Deaf(S3Store):
        def put(self, name: str, data: bytes) -> None:
            super().put(name, data)
            raise AwsError(_trouble())

    clock = Clock()
    config = settings(server)
    assert config.s3 is not None
    archive = Archive(config, folder=tmp_path, clock=clock, store=Deaf(config.s3))
    offer(archive, "one")
    turns(archive)
    clock.now += 301
    turns(archive, 1)
    assert archive.settled() == []
    assert archive._folder is not None
    archive._folder.close()
    again = Archive(config, folder=tmp_path, clock=clock)
    again.start()
    offer(again, "two")
    again.close()
    assert runs(server) == ["one", "two"]
    assert len(stored(server)) == 2


def _trouble() -> Any:
    from exporter.aws import Trouble

    return Trouble("unreachable", "the answer was lost")


def test_a_new_pod_with_an_empty_folder_knows_what_s3_holds(server: str, tmp_path: Path) -> None:
    clock = Clock()
    first = Archive(settings(server), folder=tmp_path / "first", clock=clock)
    offer(first, "one", "two")
    turns(first)
    clock.now += 301
    turns(first)
    second = Archive(settings(server), folder=tmp_path / "second", clock=clock)
    offer(second, "two", "three")  # the Job of `two` was still there
    turns(second)
    clock.now += 301
    turns(second)
    assert runs(server) == ["one", "three", "two"]
    assert sorted(second.settled()) == ["one", "three", "two"]
    assert second._folder is not None
    assert len(second._folder.index.find(Query(nodes=("a",)))) == 3, "history knows all of it"


def test_two_replicas_that_both_have_a_run_upload_it_once(server: str, tmp_path: Path) -> None:
    """The old leader has it in its spool, the new one read it again from its Job."""
    clock = Clock()
    old = Archive(settings(server), folder=tmp_path / "old", clock=clock)
    offer(old, "both", "canary-of-the-old")
    turns(old)
    new = Archive(settings(server), folder=tmp_path / "new", clock=clock)
    old.leading(False)
    new.leading(True)
    offer(new, "both", "next")
    turns(new)
    clock.now += 301
    turns(new)
    turns(old)
    assert runs(server) == ["both", "canary-of-the-old", "next"]


@pytest.mark.parametrize(("trouble", "change"), [
    ("missing", {"bucket": "no-such-bucket"}),
    ("unreachable", {"endpoint": "http://127.0.0.1:9"}),
])
def test_what_is_wrong_is_told_and_counted(server: str, tmp_path: Path, trouble: str, change: dict[str, str]) -> None:
    clock = Clock()
    config = settings(server).model_dump()
    config["s3"] |= change
    archive = Archive(Settings.model_validate(config), folder=tmp_path, clock=clock)
    offer(archive, "one")
    turns(archive)
    clock.now += 301
    turns(archive)
    assert archive.counts.failures["s3", trouble]
    assert archive.trouble.startswith("s3: ")


def test_without_credentials_results_wait_and_the_service_says_so(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    clock = Clock()
    archive = Archive(settings(server), folder=tmp_path / "a", clock=clock)
    offer(archive, "one")
    turns(archive)
    clock.now += 301
    turns(archive)
    assert archive.counts.failures["s3", "no_credentials"]
    assert "IRSA" in archive.trouble
    assert archive.pending == 1


def test_the_thread_takes_results_and_its_end_uploads_them(server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    archive = Archive(settings(server), folder=tmp_path).start()
    found = [verdicts.pair(f"run-{number}", at=time.time()) for number in range(300)]
    before = time.monotonic()
    for verdict in found:
        archive.offer(verdict)
    assert time.monotonic() - before < 3
    archive.close(60)
    assert len(runs(server)) == 300
    assert not archive._thread.is_alive()


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    archive = Archive(Settings(queue=10), folder=blocked / "archive")
    assert [archive.offer(verdicts.pair(f"run-{number}")) for number in range(12)] == [True] * 10 + [False] * 2
    archive.turn()
    assert archive.counts.dropped == 2
    assert archive.counts.failures["local", "disk"] == 1
    assert "set archive.folder" in archive.trouble


def test_jobs_beyond_the_hold_go_while_the_folder_cannot_be_written_and_all_is_written_afterwards(tmp_path: Path) -> None:
    blocked = tmp_path / "archive"
    blocked.write_text("in the way")
    archive = Archive(Settings(), folder=blocked, hold=3)
    offer(archive, *(f"run-{number}" for number in range(5)))
    archive.turn()
    assert archive.settled() == ["run-0", "run-1"]
    offer(archive, "run-5")
    archive.turn()
    assert archive.settled() == ["run-2"], "each once"
    blocked.unlink()
    turns(archive)
    assert archive.pending == 0
    assert archive._folder is not None
    assert archive._folder.index.count() == 6


def test_logs_are_kept_of_runs_that_were_not_ok_where_that_is_wanted(tmp_path: Path) -> None:
    def logs(run: Any) -> dict[int, str]:
        if run.spec.run_id == "forbidden":
            raise OSError("no right")
        return {0: "the beginning" + "x" * 500 + "the end", 1: ""}

    def records(folder: Path, *, wanted: bool) -> dict[str, Any]:
        archive = Archive(Settings(logs=wanted, log_bytes=256), folder=folder, logs=logs)
        for run_id, reason in (("good", "ok"), ("bad", "transfer_failed"), ("forbidden", "transfer_failed")):
            archive.offer(verdicts.pair(run_id, at=AT, reason=reason))
        archive.turn()
        return {one["run_id"]: one.get("logs") for name in segments.find(folder) for _, _, one in segments.lines(folder / str(name))}

    kept = records(tmp_path / "with", wanted=True)
    assert (kept["good"], kept["forbidden"]) == (None, None)
    assert kept["bad"]["0"].endswith("the end")
    assert (len(kept["bad"]["0"]), list(kept["bad"])) == (256, ["0"])
    assert records(tmp_path / "without", wanted=False) == {"good": None, "bad": None, "forbidden": None}


def test_what_another_replica_could_upload_only_an_hour_later_is_not_uploaded_again(server: str, tmp_path: Path) -> None:
    clock = Clock()
    old = Archive(settings("http://127.0.0.1:9"), folder=tmp_path / "old", clock=clock)
    offer(old, "both", "old")
    turns(old)
    clock.now += 301
    turns(old)
    old.leading(False)
    new = Archive(settings(server), folder=tmp_path / "new", clock=clock)
    new.leading(False)
    offer(new, "first")
    turns(new)
    clock.now += 301
    turns(new)
    assert runs(server) == ["first"], "it has looked, and there was nothing"
    clock.now += 3600
    assert old._folder is not None
    old._folder.close()
    late = Archive(settings(server), folder=tmp_path / "old", clock=clock)
    turns(late)
    assert runs(server) == ["both", "first", "old"]
    offer(new, "both", "last")
    turns(new)
    clock.now += 301
    turns(new)
    assert runs(server) == ["both", "first", "last", "old"]


def test_an_index_that_breaks_while_it_is_used_is_built_anew_and_nothing_is_lost(tmp_path: Path) -> None:
    archive = Archive(Settings(), folder=tmp_path).start()
    offer(archive, "one")
    _until(lambda: archive.counts.results["local"] == 1)
    assert archive._folder is not None
    archive._folder.index._db.execute("DROP TABLE places")
    offer(archive, "two", "three")
    _until(lambda: sorted(archive.settled()) == ["one", "three", "two"] or archive.pending == 0)
    archive.close(30)
    with Local(tmp_path) as local:
        assert sorted(row.run_id for row in local.find(Query(nodes=("a",)))) == ["one", "three", "two"]


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_history_reads_s3_by_node_and_time(server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    archive = Archive(settings(server), folder=tmp_path)
    for run_id, nodes, age in (("old", ("a", "b"), 3 * 86400), ("ab", ("a", "b"), 7200), ("bc", ("b", "c"), 3600), ("new", ("a", "c"), 60)):
        archive.offer(verdicts.pair(run_id, nodes, at=now - age))
    archive.turn()
    archive.turn(stopping=True)
    capsys.readouterr()
    there = ("--bucket", BUCKET, "--endpoint", server, "--region", "us-west-2", "--cluster", "east", "--format", "json")

    def ids(*arguments: str) -> list[str]:
        run(["history", *there, *arguments])
        return [json.loads(line)["run_id"] for line in capsys.readouterr().out.splitlines()]

    assert ids() == ["new", "bc", "ab"], "without a beginning the last day"
    assert ids("--node", "a", "--since", "7d") == ["new", "ab", "old"]
    assert ids("--pair", "b", "a", "--until", "1h", "--since", "7d") == ["ab", "old"]
    assert ids("--limit", "1") == ["new"]
    assert ids("--cluster", "west") == []
