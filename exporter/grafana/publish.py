"""Bringing the shipped dashboards into a Grafana, and nothing else: what somebody edited there stays, unless it is forced."""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from exporter.grafana.client import Grafana, GrafanaError, Trouble
from exporter.grafana.stamp import digest, plain, read, stamped

AMAZON = "grafana-amazonprometheus-datasource"
PROMETHEUS = ("prometheus", AMAZON)
"""Types of data sources that speak PromQL and take our queries."""

Json = dict[str, Any]


class State(Enum):
    """How a dashboard in Grafana stands to ours."""

    ABSENT = "absent"
    CURRENT = "current"
    OUTDATED = "outdated"
    MOVED = "moved"
    EDITED = "edited"
    FOREIGN = "foreign"
    PROVISIONED = "provisioned"

    @property
    def held(self) -> bool:
        """Whether a push leaves it alone unless it is forced."""
        return self in (State.EDITED, State.FOREIGN, State.PROVISIONED)


MEANINGS = {
    State.ABSENT: "not there yet", State.CURRENT: "as pushed, and up to date", State.OUTDATED: "as pushed by another version or with "
    "other options", State.MOVED: "up to date, in another folder", State.EDITED: "saved by somebody since it was pushed",
    State.FOREIGN: "there under our uid, but not pushed by us", State.PROVISIONED: "provisioned from a file: change it there",
}
"""What each state means, for people."""


@dataclass(frozen=True)
class Standing:
    """One dashboard: what is wanted, what is there (None: nothing), and how that stands."""

    uid: str
    title: str
    state: State
    wanted: Json
    there: Json | None = None
    version: int = 0
    folder_uid: str = ""
    url: str = ""

    def diff(self) -> list[str]:
        """What a push would change, as a unified diff of sorted JSON."""
        before = _lines(plain(self.there)) if self.there is not None else []
        return list(difflib.unified_diff(before, _lines(plain(self.wanted)), "in Grafana", "to be pushed", lineterm="", n=2))


@dataclass(frozen=True)
class Outcome:
    """What a push did with one dashboard: `created`, `updated`, `unchanged`, `held` or `conflict`. `why` of the last two."""

    standing: Standing
    did: str
    why: str = ""


@dataclass(frozen=True)
class Wishes:
    """How the dashboards are wanted: in which folder, over which data source (name or uid), with runbooks where."""

    folder_uid: str = "efa-pulse"
    folder_title: str = "efa-pulse"
    data_source: str | None = None
    runbooks: str | None = None


class Publisher:
    """Compares and pushes. Every method asks Grafana anew and raises GrafanaError."""

    def __init__(self, grafana: Grafana, dashboards: Mapping[str, Json], wishes: Wishes, version: str) -> None:
        self._grafana, self._wishes, self._version = grafana, wishes, version
        source = self._source()
        self._wanted = {uid: wanted(document, source, wishes.runbooks) for uid, document in dashboards.items()}

    def standings(self) -> list[Standing]:
        """How each of our dashboards stands."""
        return [self._standing(uid, document) for uid, document in self._wanted.items()]

    def push(self, *, force: bool = False) -> list[Outcome]:
        """Make Grafana have what is wanted. One dashboard that cannot be saved holds up no other; without rights nothing goes on."""
        standings = self.standings()
        if any(_will_save(standing, force) for standing in standings):
            self._folder()
        return [self._pushed(standing, force) for standing in standings]

    def _pushed(self, standing: Standing, force: bool) -> Outcome:
        if standing.state is State.CURRENT:
            return Outcome(standing, "unchanged")
        if not _will_save(standing, force):
            return Outcome(standing, "held", MEANINGS[standing.state])
        try:
            saved = self._save(standing, standing.version, standing.version + 1, force)
            # Where Grafana does not count by one the stamp promised a wrong version: once more, by its own step.
            if saved != standing.version + 1:
                self._save(standing, saved, saved + (saved - standing.version), force)
        except GrafanaError as error:
            if error.trouble is not Trouble.CONFLICT and "provisioned" not in str(error).lower():
                raise
            return Outcome(standing, "conflict", _conflict(error))
        return Outcome(standing, "created" if standing.state is State.ABSENT else "updated")

    def _save(self, standing: Standing, version: int, promised: int, force: bool) -> int:
        document = {**stamped(standing.wanted, promised), "id": None, "version": version}
        answer = self._grafana.save_dashboard(document, self._wishes.folder_uid, f"efa-pulse {self._version}", overwrite=force)
        return int(answer.get("version", promised))

    def _folder(self) -> None:
        uid = self._wishes.folder_uid
        if not uid or self._grafana.folder(uid) is not None:
            return
        try:
            self._grafana.create_folder(uid, self._wishes.folder_title)
        except GrafanaError as error:
            if error.trouble is Trouble.CONFLICT and self._grafana.folder(uid) is None:
                raise GrafanaError(Trouble.REFUSED, f"the folder cannot be made: {error}; name its uid with --folder-uid") from None
            if error.trouble is not Trouble.CONFLICT:
                raise

    def _standing(self, uid: str, document: Json) -> Standing:
        found = self._grafana.dashboard(uid)
        if found is None:
            return Standing(uid, document["title"], State.ABSENT, document)
        there, meta = found["dashboard"], found["meta"]
        version = int(there.get("version") or meta.get("version") or 0)
        folder = str(meta.get("folderUid") or "")
        state = self._state(document, there, meta, version, folder)
        return Standing(uid, document["title"], state, document, there, version, folder, f"{self._grafana.url}/d/{uid}")

    def _state(self, document: Json, there: Json, meta: Json, version: int, folder: str) -> State:
        if meta.get("provisioned"):
            return State.PROVISIONED
        ours, stamp, same = digest(document), read(there), plain(there) == plain(document)
        if stamp is None:
            return State.OUTDATED if same else State.FOREIGN
        if not same and stamp.version != version and digest(there) != stamp.digest:
            return State.EDITED
        if not same and stamp.digest != ours:
            return State.OUTDATED
        return State.CURRENT if folder == self._wishes.folder_uid else State.MOVED

    def _source(self) -> Json | None:
        """The data source by its name or uid."""
        name = self._wishes.data_source
        if name is None:
            return None
        found = [one for one in self._grafana.data_sources() if name in (one.get("name"), one.get("uid"))]
        fitting = [one for one in found if one.get("type") in PROMETHEUS]
        if not fitting:
            what = f"is of type {found[0].get('type')}, not Prometheus" if found else "is not there"
            raise GrafanaError(Trouble.REFUSED, f"the data source {name!r} {what}")
        return fitting[0]


def wanted(document: Json, source: Json | None, runbooks: str | None) -> Json:
    """The document over this data source and with runbooks at this address; the variables stay, so that both can be changed."""
    made = copy.deepcopy(document)
    for variable in made["templating"]["list"]:
        if source is not None and variable["name"] == "datasource":
            variable |= {"current": {"selected": True, "text": source["name"], "value": source["uid"]}, "query": source["type"]}
        if runbooks is not None and variable["name"] == "runbooks":
            address = runbooks.rstrip("/")
            variable |= {"query": address, "current": {"text": address, "value": address}}
    if source is not None and source["type"] != "prometheus":
        made = _typed(made, str(source["type"]))
    return made


def _typed(value: Any, kind: str) -> Any:
    """The document with every reference to the variable data source of another type."""
    if isinstance(value, list):
        return [_typed(one, kind) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: _typed(one, kind) for key, one in value.items()}
    if made.get("uid") == "${datasource}" and made.get("type") == "prometheus":
        made["type"] = kind
    return made


def _will_save(standing: Standing, force: bool) -> bool:
    return standing.state is not State.CURRENT and (not standing.state.held or (force and standing.state is not State.PROVISIONED))


def _conflict(error: GrafanaError) -> str:
    if error.status == "version-mismatch":
        return "somebody saved it while it was pushed: nothing was overwritten, push again"
    if error.status == "name-exists":
        return "another dashboard of the folder has its title: move or rename that one"
    return str(error)


def _lines(document: Json) -> list[str]:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
