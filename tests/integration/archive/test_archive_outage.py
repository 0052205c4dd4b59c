"""S3 is away for an hour of time that runs fast, the process is killed twice in it: every result is in the archive once afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from exporter.archive import segments
from exporter.archive.index import Query
from exporter.archive.search import Local

CHILD = Path(__file__).with_name("archiving_child.py")
SPEED = 240.0
HOUR = 3600.0
BEGAN = 1_790_000_000.0
FAST = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-west-2", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Bucket:
    """moto's S3, which can go away and come back with everything it held."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._server: ThreadedMotoServer | None = None

    def up(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()

    def down(self) -> None:
        assert self._server is not None
        self._server.stop()
        self._server = None

    def client(self) -> Any:
        return boto3.session.Session().client("s3", endpoint_url=self.url, region_name="us-west-2")

    def runs(self) -> Counter[str]:
        s3 = self.client()
        found: Counter[str] = Counter()
        for one in s3.list_objects_v2(Bucket="results").get("Contents", []):
            body = segments.unpacked(s3.get_object(Bucket="results", Key=one["Key"])["Body"].read())
            found.update(json.loads(line)["run_id"] for line in body.splitlines())
        return found


@pytest.fixture
def bucket(port: int) -> Iterator[Bucket]:
    one = Bucket(port)
    one.up()
    one.client().create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    yield one
    if one._server is None:
        one.up()
    # What moto holds belongs to this very process, and the next test begins with nothing.
    urllib.request.urlopen(urllib.request.Request(f"{one.url}/moto-api/reset", method="POST"), timeout=10).close()
    one.down()


class Life:
    """The process: started again after each kill, as a Deployment does. Time goes on while it is away."""

    def __init__(self, work: Path, url: str) -> None:
        self.work, self.url = work, url
        self.began_at = time.time()
        self.process: subprocess.Popen[str] | None = None

    def now(self) -> float:
        return BEGAN + (time.time() - self.began_at) * SPEED

    def start(self, until: float) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHILD.parents[2]), str(CHILD.parents[3])])}
        self.process = subprocess.Popen([sys.executable, str(CHILD), str(self.work), self.url, str(SPEED), str(self.now()), str(until)],
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def wait_until(self, at: float) -> None:
        time.sleep(max(0.0, (at - self.now()) / SPEED))

    def kill(self) -> str:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        out, _ = self.process.communicate(timeout=30)
        return out


@pytest.mark.timeout(240)
def test_every_result_is_in_the_archive_once_after_an_hour_without_s3_and_two_kills(tmp_path: Path, bucket: Bucket) -> None:
    life = Life(tmp_path, bucket.url)
    end = BEGAN + 3 * HOUR
    life.start(end)
    first_line = life.process.stdout.readline() if life.process is not None and life.process.stdout is not None else ""
    assert first_line, "the process runs"
    life.wait_until(life.now() + 0.5 * HOUR)
    bucket.down()
    gone = life.now()
    life.wait_until(gone + HOUR / 3)
    said = life.kill()
    life.start(end)
    life.wait_until(gone + HOUR * 2 / 3)
    said += life.kill()
    torn = next(path for path in sorted((tmp_path / "archive").rglob("*.jsonl"), reverse=True))
    with torn.open("ab") as file:
        file.write(b'{"schema":"efa-pulse/archive/v1","run_id":"torn')  # a kill in the middle of a write
    life.start(max(end, life.now() + HOUR))
    life.wait_until(gone + HOUR)
    assert life.process is not None
    assert life.process.poll() is None, "the process runs without S3"
    bucket.up()
    out, _ = life.process.communicate(timeout=150)
    assert out.endswith("the end\n")
    assert "no answer" in said, "while S3 was away the process said so"

    produced = (tmp_path / "all").read_text().split()
    assert len(produced) > 100
    found = bucket.runs()
    assert {run: count for run, count in found.items() if count > 1} == {}, "nothing twice"
    assert sorted(set(produced) - found.keys()) == [], "nothing lost"
    assert sorted(found.keys() - set(produced)) == []
    assert list((tmp_path / "jobs").iterdir()) == [], "no Job is left behind"
    with Local(tmp_path / "archive") as local:
        assert sorted(row.run_id for row in local.find(Query())) == sorted(produced), "and the local folder knows the same"
