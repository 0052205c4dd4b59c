"""The pause switch: a ConfigMap by which a person stops all probing of an installation, and lets it go on.

    data: {paused: "true", reason: "maintenance", until: "2026-12-01T18:00:00Z", by: "alice@laptop"}

Whoever may write ConfigMaps of the service's namespace may pause it, also with kubectl. What cannot be understood pauses: somebody wanted
something, and probing goes on by `efa-pulse resume`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from exporter.kube.api import Api, ApiError, Json
from exporter.kube.watch import Watch

NAME = "efa-pulse-control"
TEXT_LIMIT = 500
_NO = frozenset({"", "false", "no", "off", "0"})


@dataclass(frozen=True)
class Pause:
    """A pause that was asked for. `until` is Unix seconds, None for one without an end; `problem` is what is wrong with its end."""

    reason: str
    by: str = ""
    until: float | None = None
    problem: str = ""

    def holds(self, now: float) -> bool:
        """Whether it still holds at `now`, Unix seconds."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        parts = [f"paused{f' by {self.by}' if self.by else ''}: {self.reason}"]
        if self.until is not None:
            parts.append(f"until {show_time(self.until)}")
        if self.problem:
            parts.append(f"without an end: {self.problem}")
        return ", ".join(parts)


class PauseSwitch:
    """Follows the switch. `paused` costs nothing and may be asked at any time from any thread.

    Until the switch was read once, probing counts as paused: a service that starts during a pause must not begin with a wave.
    """

    def __init__(self, api: Api, namespace: str, *, clock: Callable[[], float] | None = None,
                 on_change: Callable[[], None] = lambda: None) -> None:
        self._clock = clock or api.now
        self._where = f"ConfigMap {namespace}/{NAME}"
        self._watch: Watch[Pause] = Watch(api, f"/api/v1/namespaces/{namespace}/configmaps", parse,
                                          query={"fieldSelector": f"metadata.name={NAME}"}, on_change=lambda _: on_change())

    def start(self) -> None:
        """Begin to follow it."""
        self._watch.start()

    def wait(self, seconds: float) -> bool:
        """Wait until it was read once. Returns whether it was."""
        return self._watch.wait(seconds)

    def close(self) -> None:
        """Follow it no longer."""
        self._watch.close()

    @property
    def paused(self) -> str | None:
        """Why nothing is to be probed now, in words; None when probing goes on."""
        if not self._watch.synced:
            return f"{self._where} is not read yet: {self._watch.error}"
        now = self._clock()
        return next((str(pause) for pause in self._watch.items().values() if pause.holds(now)), None)

    @property
    def trouble(self) -> str:
        """Why the switch cannot be followed now; empty when it can."""
        return self._watch.error


def read(api: Api, namespace: str) -> Pause | None:
    """The pause that holds now, None when there is none. Raises ApiError."""
    try:
        found = parse(api.get(f"/api/v1/namespaces/{namespace}/configmaps/{NAME}"))
    except ApiError as error:
        if error.not_found:
            return None
        raise
    return found if found is not None and found.holds(api.now()) else None


def write(api: Api, namespace: str, pause: Pause | None, *, by: str) -> None:
    """Pause, or with None let probing go on. One that is there is replaced, whoever made it. Raises ApiError."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    # In a merge patch null removes a key; nothing of an older pause may stay.
    changes: dict[str, str | None] = {"paused": "true" if pause is not None else "false", "by": by or None,
                                      "reason": (pause.reason or None) if pause is not None else None,
                                      "until": show_time(pause.until) if pause is not None and pause.until is not None else None}
    try:
        api.patch(f"{path}/{NAME}", {"data": changes})
    except ApiError as error:
        if not error.not_found or error.reason != "NotFound":
            raise
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap",
                      "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "efa-pulse"}},
                      "data": {key: value for key, value in changes.items() if value is not None}}
        try:
            api.create(path, body)
        except ApiError as late:
            if not late.exists:
                raise
            api.patch(f"{path}/{NAME}", {"data": changes})


def parse(one: Json) -> Pause | None:
    """The pause that a ConfigMap asks for, None when it asks for none. Never raises."""
    data = one.get("data")
    if not isinstance(data, dict) or str(data.get("paused", "")).strip().lower() in _NO:
        return None
    until, problem = None, ""
    text = str(data.get("until") or "").strip()
    if text:
        try:
            until = parse_time(text)
        except ValueError as error:
            problem = str(error)
    return Pause(str(data.get("reason") or "no reason given")[:TEXT_LIMIT], str(data.get("by") or "")[:TEXT_LIMIT], until, problem)


def parse_time(text: str) -> float:
    """Unix seconds of a time such as `2026-12-31T18:00:00Z`; one without a zone is UTC. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text.strip()[:60]!r} is no time such as 2026-12-31T18:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return moment.timestamp()
    except (OverflowError, ValueError, OSError):
        raise ValueError(f"{text.strip()[:60]!r} is too far away") from None


def show_time(at: float) -> str:
    """`2026-12-31T18:00:00Z`."""
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(0)) if at < 0 else "9999-12-31T23:59:59Z"
