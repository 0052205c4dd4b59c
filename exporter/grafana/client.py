"""Grafana's HTTP API as far as it is needed here, with one kind of error that says what to do. Every call has a deadline."""

from __future__ import annotations

import re
import urllib.parse
from enum import Enum
from pathlib import Path
from typing import Any

import niquests.exceptions
from grafana_client import GrafanaApi
from grafana_client.client import GrafanaClientError, GrafanaException, GrafanaServerError, GrafanaTimeoutError, TokenAuth

TIMEOUT_SECONDS = 10.0

Json = dict[str, Any]


class Trouble(Enum):
    """What kind of trouble it was."""

    ADDRESS = "address"
    TOKEN = "token"  # noqa: S105 - a word
    RIGHTS = "rights"
    MISSING = "missing"
    CONFLICT = "conflict"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SERVER = "server"


class GrafanaError(Exception):
    """A call that did not work. The text names what, where and what to do, never the token."""

    def __init__(self, trouble: Trouble, text: str, status: str = "") -> None:
        super().__init__(text)
        self.trouble, self.status = trouble, status


class Grafana:
    """One Grafana. Raises GrafanaError for an address that cannot be one, and from every call.

    `url` may have a path, where Grafana is served below one. `ca_file` has the only certificate authorities that are trusted.
    """

    def __init__(self, url: str, token: str, *, ca_file: Path | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
        parts = _parts(url)
        self.url = url.rstrip("/")
        prefix = parts.path.strip("/")
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise GrafanaError(Trouble.TOKEN, "the token has characters that no token has: one line of a service account token is needed")
        self._api = GrafanaApi(TokenAuth(token), host=_host(parts), port=parts.port, protocol=parts.scheme,
                               url_path_prefix=f"{prefix}/" if prefix else "", verify=str(ca_file) if ca_file is not None else True,
                               timeout=timeout, user_agent="efa-pulse")
        self._timeout = timeout

    def data_sources(self) -> list[Json]:
        """Every data source."""
        return self._list("/datasources")

    def folder(self, uid: str) -> Json | None:
        """A folder, None when it is not there."""
        return self._maybe(f"/folders/{urllib.parse.quote(uid, safe='')}")

    def create_folder(self, uid: str, title: str) -> Json:
        """Make a folder."""
        return self._object("POST", "/folders", {"uid": uid, "title": title})

    def dashboard(self, uid: str) -> Json | None:
        """A dashboard with its `meta`, None when it is not there."""
        found = self._maybe(f"/dashboards/uid/{urllib.parse.quote(uid, safe='')}")
        if found is not None and not (isinstance(found.get("dashboard"), dict) and isinstance(found.get("meta"), dict)):
            raise GrafanaError(Trouble.SERVER, f"{self.url} gave something else than a dashboard for {uid}")
        return found

    def save_dashboard(self, dashboard: Json, folder_uid: str, message: str, *, overwrite: bool) -> Json:
        """Save a dashboard. Its `version` must be the present one unless `overwrite`: else a GrafanaError of kind CONFLICT."""
        body = {"dashboard": dashboard, "folderUid": folder_uid, "message": message, "overwrite": overwrite}
        return self._object("POST", "/dashboards/db", body)

    def annotate(self, at: float, tags: list[str], text: str) -> None:
        """Write an annotation of the organisation at `at`, Unix seconds."""
        self._object("POST", "/annotations", {"time": int(at * 1000), "tags": tags, "text": text})

    def _maybe(self, path: str) -> Json | None:
        try:
            return self._object("GET", path)
        except GrafanaError as error:
            if error.trouble is Trouble.MISSING:
                return None
            raise

    def _list(self, path: str) -> list[Json]:
        found = self._call("GET", path)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self._strange(path)
        return found

    def _object(self, method: str, path: str, body: Json | None = None) -> Json:
        found = self._call(method, path, body)
        if not isinstance(found, dict):
            raise self._strange(path)
        return found

    def _strange(self, path: str) -> GrafanaError:
        return GrafanaError(Trouble.ADDRESS, f"{self.url}/api{path} does not answer as Grafana does: is --url its address, with the path "
                                             "below which it is served, and no login page before it?")

    def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        try:
            return getattr(self._api.client, method)(path, json=body)
        except GrafanaTimeoutError:
            raise GrafanaError(Trouble.UNREACHABLE, f"{self.url} did not answer within {self._timeout:g} s") from None
        except (GrafanaClientError, GrafanaServerError) as error:
            raise self._refusal(method, path, error) from None
        except niquests.exceptions.JSONDecodeError:
            raise self._strange(path) from None
        except (GrafanaException, niquests.exceptions.RequestException, OSError) as error:
            raise GrafanaError(Trouble.UNREACHABLE, f"{self.url} cannot be reached: {_short(str(error))}") from None

    def _refusal(self, method: str, path: str, error: GrafanaClientError | GrafanaServerError) -> GrafanaError:
        answer = error.response if isinstance(error.response, dict) else {}
        words, status = _short(str(answer.get("message") or error.response or error)), str(answer.get("status", ""))
        match int(error.status_code):
            case 401:
                return GrafanaError(Trouble.TOKEN, f"{self.url} does not take the token ({words}): it needs one of a service account")
            case 403:
                return GrafanaError(Trouble.RIGHTS, f"the token may not {method} {path} ({words}): the role Editor on the folder is enough "
                                                    "for dashboards, Viewer with annotations:create for annotations", status)
            case 404:
                return GrafanaError(Trouble.MISSING, f"{self.url}/api{path} is not there ({words})", status)
            case 409 | 412:
                return GrafanaError(Trouble.CONFLICT, words, status)
            case code if code >= 500:
                return GrafanaError(Trouble.SERVER, f"{self.url} failed with {code} ({words}): its log says why")
            case code:
                return GrafanaError(Trouble.REFUSED, f"{self.url} refused {method} {path} with {code}: {words}", status)


def _parts(url: str) -> urllib.parse.SplitResult:
    parts = urllib.parse.urlsplit(url)
    try:
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok or parts.query or parts.fragment:
        raise GrafanaError(Trouble.ADDRESS, "the address of Grafana is http(s)://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise GrafanaError(Trouble.ADDRESS, "no name or password in the address of Grafana: use a token file")
    return parts


def _host(parts: urllib.parse.SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
