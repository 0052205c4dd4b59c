"""The board's pages over real sockets: who may read, what is refused, what is never stored."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from verdicts import canary, pair

from exporter.config.base import Secret
from exporter.config.server import Server
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from exporter.status import Looked, StatusBoard
from exporter.status.pages import pages

Get = Callable[..., tuple[http.client.HTTPResponse, bytes]]


@pytest.fixture
def serve() -> Iterator[Callable[[Server], Get]]:
    servers: list[MetricsServer] = []
    board = StatusBoard(pace=0.0)
    board.verdict(pair())
    board.verdict(pair("nixl-2", mode="efa", at=110.0))
    board.verdict(canary())
    jobs = ({"id": "canary/chat/short", "probe": "canary", "target": "chat", "nodes": (), "next": 1.0, "prompt": "short"},)
    board.turn(lambda: Looked(150.0, "1.2.3", jobs=jobs))
    publisher = Publisher("1.2.3")

    def start(config: Server) -> Get:
        server = MetricsServer(config, lambda: publisher.snapshot, pages=pages(board, lambda: 150.0))
        servers.append(server)
        server.start()

        def get(path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
            connection = http.client.HTTPConnection(*server.address, timeout=5)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer, body

        return get

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def get(serve: Callable[[Server], Get]) -> Get:
    return serve(Server(listen="127.0.0.1:0"))


def test_status_is_json_that_nobody_stores(get: Get) -> None:
    answer, body = get("/api/status")
    assert (answer.status, answer.headers["Content-Type"], answer.headers["Cache-Control"]) == (200, "application/json", "no-store")
    document = json.loads(body)
    assert (document["schema"], document["version"], document["now"]) == ("efa-pulse/status/v1", "1.2.3", 150.0)


def test_head_has_the_length_and_no_body(get: Get) -> None:
    answer, body = get("/api/status", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(get("/api/status")[1])


@pytest.mark.parametrize(("what", "kind"), [("nixl-2", "run"), ("a", "node"), ("a--b", "pair"), ("b--a", "pair"), ("chat", "target"),
                                            ("a%2D%2Db", "pair"), ("+a+", "node")])
def test_explain_finds_what_is_asked_for_in_every_spelling(get: Get, what: str, kind: str) -> None:
    answer, body = get(f"/api/explain?what={what}")
    assert answer.status == 200
    assert (json.loads(body)["schema"], json.loads(body)["kind"]) == ("efa-pulse/explain/v1", kind)


def test_what_is_not_known_is_404_with_names_near_it(get: Get) -> None:
    answer, body = get("/api/explain?what=nixl-3")
    assert (answer.status, answer.headers["Cache-Control"]) == (404, "no-store")
    document = json.loads(body)
    assert set(document["details"]["near"]) == {"nixl-1", "nixl-2"}
    assert "nixl-3" in document["message"]


@pytest.mark.parametrize("path", ["/api/explain", "/api/explain?what=", "/api/explain?what=%20", f"/api/explain?what={'x' * 700}",
                                  "/api/status?only=all", "/api/status?node=a"])
def test_a_question_that_makes_no_sense_is_400(get: Get, path: str) -> None:
    answer, body = get(path)
    assert answer.status == 400
    assert "what=" in json.loads(body)["message"] or "only=notable" in json.loads(body)["message"]


@pytest.mark.parametrize("what", ["%00", "%ff%fe", "<script>", "%0a%0d", "'%22;--", "🦀".encode().hex()])
def test_hostile_names_are_not_known_and_come_back_as_json(get: Get, what: str) -> None:
    answer, body = get(f"/api/explain?what={what}")
    assert answer.status in (400, 404)
    assert json.loads(body)["message"]
    assert answer.headers["Content-Type"] == "application/json"


def test_they_ask_for_the_same_credentials_as_the_metrics(serve: Callable[[Server], Get], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    get = serve(Server(listen="127.0.0.1:0", bearer_token=Secret(file=tmp_path / "token")))
    for path in ("/api/status", "/api/explain?what=a", "/metrics"):
        assert get(path)[0].status == 401, path
        assert get(path, Authorization="Bearer open-sesame")[0].status == 200, path


def test_they_are_listed_counted_and_only_for_reading(get: Get) -> None:
    assert b"/api/status" in get("/")[1]
    assert b"/api/explain" in get("/nowhere")[1]
    assert get("/api/status", "POST")[0].status == 405
    get("/api/explain?what=a")
    get("/api/explain?what=b")
    lines = [line for line in get("/metrics")[1].decode().splitlines() if "/api/explain" in line]
    assert len(lines) == 1, "a name in the query makes no series of its own"
    assert float(lines[0].rsplit(" ", 1)[1]) == 2
