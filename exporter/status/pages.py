"""The board's pages on the exporter's server: GET /status for people, GET /api/status and GET /api/explain?what=NAME as JSON.

Nobody stores them. All three stand behind the authentication of the metrics.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from exporter.publish.http import Answer, Handler, Request
from exporter.publish.server import HTML, Page
from exporter.status.board import StatusBoard
from exporter.status.document import status
from exporter.status.explain import UnknownSubject, explain
from exporter.status.page import policy, render
from exporter.status.view import view

JSON = "application/json"
NO_STORE = (("Cache-Control", "no-store"),)
LONGEST_NAME = 600


def pages(board: StatusBoard, clock: Callable[[], float] = time.time) -> Mapping[str, Page]:
    """The pages for `MetricsServer`."""
    return {"/status": Page("what is known now, for people", _page(board, clock)),
            "/api/status": Page("what is known now, as JSON; only=notable leaves out what is good", _status(board, clock)),
            "/api/explain": Page("why a verdict is what it is, as JSON; what=RUN, NODE, PAIR (a--b) or canary target",
                                 _explain(board, clock))}


def _status(board: StatusBoard, clock: Callable[[], float]) -> Handler:
    def answer(request: Request) -> Answer:
        query = urllib.parse.parse_qs(request.query)
        unknown = sorted(query.keys() - {"only"})
        if unknown or query.get("only", ["notable"]) != ["notable"]:
            return _json(HTTPStatus.BAD_REQUEST, {"message": "the only parameter of this page is only=notable"})
        return _json(HTTPStatus.OK, status(board.snapshot, clock(), notable="only" in query))

    return answer


def _page(board: StatusBoard, clock: Callable[[], float]) -> Handler:
    def answer(request: Request) -> Answer:
        if request.query:
            return Answer.text(HTTPStatus.BAD_REQUEST, "this page takes no parameters")
        headers = (("Content-Security-Policy", policy()), ("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))
        return Answer(HTTPStatus.OK, (render(view(board.snapshot, clock())),), HTML, (*NO_STORE, *headers))

    return answer


def _explain(board: StatusBoard, clock: Callable[[], float]) -> Handler:
    def answer(request: Request) -> Answer:
        what = urllib.parse.parse_qs(request.query).get("what", [""])[-1].strip()
        if not what or len(what) > LONGEST_NAME:
            return _json(HTTPStatus.BAD_REQUEST, {"message": "say what to explain: what=RUN, NODE, PAIR (a--b) or canary target"})
        try:
            return _json(HTTPStatus.OK, explain(board.snapshot, what, clock()))
        except UnknownSubject as unknown:
            return _json(HTTPStatus.NOT_FOUND, {"message": str(unknown), "details": {"what": unknown.what, "near": unknown.near}})

    return answer


def _json(status_code: int, document: dict[str, Any]) -> Answer:
    return Answer(status_code, (json.dumps(document, separators=(",", ":")).encode() + b"\n",), JSON, NO_STORE)
