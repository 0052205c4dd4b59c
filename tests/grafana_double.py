"""A double of Grafana's HTTP API over real sockets, after its documentation (dashboard, folder, data source and annotation API).

No Grafana runs here. What it does like the real one: service account tokens, rights by role, counted versions and the three kinds of 412,
provisioned dashboards that cannot be saved, folders with uids, annotations of the organisation. What it can do on demand: answer late,
with a server error, with a login page, with something else than JSON; normalise what it stores, as later versions do.
"""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from thismachine import serving

Json = dict[str, Any]
EDITOR, VIEWER = "glsa_editor_0123456789", "glsa_viewer_0123456789"


class Refused(Exception):  # noqa: N818 - an answer
    """An answer other than 200."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code, self.body = code, {"message": message, **more}


@dataclass
class GrafanaDouble:
    """What a Grafana holds. `saves` counts accepted saves; `requests` has method and path of every request."""

    folders: dict[str, str] = field(default_factory=dict)
    dashboards: dict[str, Json] = field(default_factory=dict)
    annotations: list[Json] = field(default_factory=list)
    sources: list[Json] = field(default_factory=lambda: [
        {"id": 1, "uid": "prom-1", "name": "Prometheus", "type": "prometheus", "isDefault": True, "url": "http://prometheus:9090"},
        {"id": 2, "uid": "amp-1", "name": "AMP", "type": "grafana-amazonprometheus-datasource", "isDefault": False, "url": "https://aps"},
        {"id": 3, "uid": "loki-1", "name": "Logs", "type": "loki", "isDefault": False, "url": "http://loki:3100"}])
    saves: int = 0
    requests: list[str] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda *_: None
    """Called with method and path before each answer; may raise Refused or sleep."""
    raw: Callable[[str], tuple[int, str, bytes] | None] = lambda _: None
    """Gives status, content type and body to answer a path with, instead."""
    normalises: bool = False
    step: int = 1
    prefix: str = ""
    lock: Any = field(default_factory=threading.Lock)

    def edit(self, uid: str, change: Callable[[Json], None], user: str = "ann") -> None:
        """Somebody changes a dashboard in the browser and saves it."""
        kept = self.dashboards[uid]
        change(kept["dashboard"])
        kept["dashboard"]["version"] += self.step
        kept["meta"]["updatedBy"] = user

    def provision(self, dashboard: Json) -> None:
        """A dashboard that comes from a file."""
        self.dashboards[dashboard["uid"]] = {"dashboard": {**copy.deepcopy(dashboard), "id": 99, "version": 1},
                                             "meta": {"provisioned": True, "folderUid": "", "version": 1}}

    def answer(self, method: str, path: str, body: Json, token: str) -> Any:
        """One request of the API. Raises Refused."""
        if token not in (EDITOR, VIEWER):
            raise Refused(401, "Invalid API key" if token else "Unauthorized", traceID="", messageId="api-key.invalid")
        writes = method != "GET"
        if writes and token == VIEWER:
            raise Refused(403, "You'll need additional permissions to perform this action.", accessErrorId="ACE0123456789",
                          title="Access denied")
        match method, path:
            case "GET", "/datasources":
                return self.sources
            case "POST", "/folders":
                return self._make_folder(body)
            case "POST", "/dashboards/db":
                return self._save(body)
            case "POST", "/annotations":
                if not body.get("text"):
                    raise Refused(400, "Failed to save annotation")
                self.annotations.append(body)
                return {"id": len(self.annotations), "message": "Annotation added"}
        if found := re.fullmatch(r"/folders/([^/]+)", path):
            if found[1] not in self.folders:
                raise Refused(404, "folder not found", status="not-found")
            return {"id": 1, "uid": found[1], "title": self.folders[found[1]], "version": 1}
        if found := re.fullmatch(r"/dashboards/uid/([^/]+)", path):
            if found[1] not in self.dashboards:
                raise Refused(404, "Dashboard not found")
            return copy.deepcopy(self.dashboards[found[1]])
        raise Refused(404, "Not found")

    def _make_folder(self, body: Json) -> Json:
        uid, title = body.get("uid") or "made-uid", body.get("title", "")
        if not title:
            raise Refused(400, "folder title cannot be empty")
        if uid in self.folders:
            raise Refused(412, "the folder has been changed by someone else", status="version-mismatch")
        if title in self.folders.values():
            raise Refused(409, "a folder with the same name already exists in the current location")
        self.folders[uid] = title
        return {"id": len(self.folders), "uid": uid, "title": title, "version": 1}

    def _save(self, body: Json) -> Json:
        dashboard = copy.deepcopy(body["dashboard"])
        uid, title, folder = dashboard.get("uid"), dashboard.get("title"), body.get("folderUid") or ""
        if not title:
            raise Refused(400, "Dashboard title cannot be empty", status="empty-name")
        if not uid or len(uid) > 40 or not re.fullmatch(r"[\w-]+", uid):
            raise Refused(400, "uid contains illegal characters", status="bad-request")
        if folder and folder not in self.folders:
            raise Refused(404, "folder not found", status="not-found")
        there = self.dashboards.get(uid)
        if there is not None and there["meta"].get("provisioned"):
            raise Refused(400, "Cannot save provisioned dashboard")
        present = there["dashboard"]["version"] if there is not None else 0
        if there is not None and not body.get("overwrite") and dashboard.get("version") != present:
            raise Refused(412, "The dashboard has been changed by someone else", status="version-mismatch")
        twin = any(other["dashboard"]["title"] == title and other["meta"]["folderUid"] == folder
                   for name, other in self.dashboards.items() if name != uid)
        if twin and not body.get("overwrite"):
            raise Refused(412, "A dashboard with the same name in the folder already exists", status="name-exists")
        version = present + self.step
        if self.normalises:
            dashboard = {**dashboard, "schemaVersion": 41, "preload": False}
            for panel in dashboard["panels"]:
                panel.setdefault("pluginVersion", "12.0.0")
        self.dashboards[uid] = {"dashboard": {**dashboard, "id": 7, "version": version}, "meta": {
            "version": version, "folderUid": folder, "folderTitle": self.folders.get(folder, "General"), "updatedBy": "sa-efa-pulse",
            "provisioned": False, "slug": title.lower(), "message": body.get("message", "")}}
        self.saves += 1
        return {"id": 7, "uid": uid, "url": f"/d/{uid}/x", "status": "success", "version": version, "slug": "x", "folderUid": folder}


@contextlib.contextmanager
def served(double: GrafanaDouble) -> Iterator[str]:
    """The double at a loopback address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            start = f"{double.prefix}/api"
            with double.lock:
                double.requests.append(f"{self.command} {path}")
            raw = double.raw(path)
            if raw is not None:
                self._send(*raw)
                return
            try:
                double.before(self.command, path)
                if not path.startswith(start):
                    raise Refused(404, "Not found")
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                with double.lock:
                    answer = double.answer(self.command, path[len(start):], body, token)
                self._send(200, "application/json", json.dumps(answer).encode())
            except Refused as refused:
                self._send(refused.code, "application/json; charset=UTF-8", json.dumps(refused.body).encode())

        do_GET = do_POST = do_PUT = do_DELETE = _any  # noqa: N815 - names of http.server

        def _send(self, code: int, kind: str, body: bytes) -> None:
            with contextlib.suppress(OSError):
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def slow(seconds: float) -> Callable[[str, str], None]:
    """A `before` that makes every answer late."""
    return lambda *_: time.sleep(seconds)
