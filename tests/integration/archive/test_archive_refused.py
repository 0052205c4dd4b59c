"""No credentials, wrong region, throttled, denied: results wait in the folder, and metric, log and status page say why.

moto refuses nobody, so the refusals of S3 are played here with the bodies of its API reference.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import verdicts
from running import Running

from exporter.archive.archive import Archive
from exporter.archive.index import Query
from exporter.archive.s3 import S3Store
from exporter.archive.search import Local
from exporter.aws import AwsError
from exporter.cli import run
from exporter.config.archive import S3
from exporter.config.archive import Archive as Settings
from exporter.publish import families_archive as f
from exporter.publish.archived import readings

REFUSALS = {
    "denied": (403, "AccessDenied", "User: arn:aws:sts::111122223333:assumed-role/x/y is not authorized to perform: s3:PutObject"),
    "throttled": (503, "SlowDown", "Please reduce your request rate."),
    "wrong_region": (400, "AuthorizationHeaderMalformed", "The authorization header is malformed; the region 'us-west-2' is wrong"),
    "no_credentials": (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
    "missing": (404, "NoSuchBucket", "The specified bucket does not exist"),
    "unreachable": (500, "InternalError", "We encountered an internal error. Please try again."),
}


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A server that refuses everything as the first word of its list says; an empty list: it takes everything."""
    says: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            status, code, text = REFUSALS[says[0]] if says else (200, "", "")
            body = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>" if code else \
                '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated></ListBucketResult>'
            self.send_response(status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", says
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("exporter.archive.archive.TICK_SECONDS", 0.01)


def bucket(url: str) -> dict[str, Any]:
    return {"bucket": "results", "endpoint": url, "region": "us-west-2", "timeout": 2, "interval": 1}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_is_told_and_everything_is_uploaded_when_it_ends(refusing: tuple[str, list[str]], kind: str, tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    url, says = refusing
    says.append(kind)
    now = [1_790_000_000.0]
    archive = Archive(Settings.model_validate({"s3": bucket(url)}), folder=tmp_path, clock=lambda: now[0])
    archive.offer(verdicts.pair("one", at=now[0]))
    archive.turn()
    now[0] += 60
    archive._retry_at.clear()
    archive.turn()
    told = {family.name: samples for family, samples in readings(archive)}
    assert told[f.ARCHIVE_TROUBLE.name]["s3",] == 1.0
    assert told[f.ARCHIVE_FAILURES.name]["s3", kind] >= 1
    assert told[f.ARCHIVE_PENDING.name][()] == 1.0
    assert REFUSALS[kind][1] in archive.trouble
    assert "the archive cannot be written, it is tried again" in capsys.readouterr().out
    says.clear()
    archive._retry_at.clear()
    archive.turn()
    assert (archive.pending, archive.trouble, archive.settled()) == (0, "", ["one"])
    assert archive._folder is not None
    archive._folder.close()


def test_history_says_why_s3_cannot_be_asked(refusing: tuple[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    url, says = refusing
    says.append("denied")
    assert run(["history", "--bucket", "results", "--endpoint", url, "--region", "us-west-2"]) == 2
    assert "AccessDenied" in capsys.readouterr().err
    with pytest.raises(AwsError, match="the role lacks the right"):
        S3Store(S3.model_validate(bucket(url))).get("x")


@pytest.mark.timeout(180)
def test_the_service_runs_without_credentials_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    folder = tmp_path / "archive"
    service = Running(tmp_path, {
        "schedule": {"start_spread": 0}, "archive": {"folder": str(folder), "s3": bucket("http://127.0.0.1:9")},
        "probes": {"node": {"schedule": {"interval": "2m"}}, "mooncake": {"enabled": False}, "nixl": {"enabled": False}}})
    try:
        service.until(lambda: service.get("/-/ready")[0] == 200, 90)
        service.until(lambda: service.value("efapulse_archive_results_total", store="local") == 1, 60)
        service.until(lambda: (service.value("efapulse_archive_write_failures_total", store="s3", trouble="no_credentials") or 0) >= 1, 60)
        assert service.value("efapulse_archive_pending_results") == 1
        service.until(lambda: any("IRSA" in one for one in json.loads(service.get("/api/status")[1])["troubles"]))
        assert service.get("/-/healthy")[0] == 200
        assert "the archive cannot be written" in service.log
        assert service.end() == 0
    finally:
        if service.process.poll() is None:
            service.process.kill()
    with Local(folder) as local:
        assert [row.probe for row in local.find(Query())] == ["node"]
    assert run(["history", "--folder", str(folder), "--probe", "node"]) == 0
    assert "node" in capsys.readouterr().out
