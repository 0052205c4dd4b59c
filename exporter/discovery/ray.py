"""Prefill and decode replicas of Ray Serve LLM, by the REST API of Serve (`GET /api/serve/applications/` of the dashboard, port 8265).

Replicas take no requests of others, so there are no pairs: what their nodes' metrics pages count is what a canary through the proxy is
judged by. Several replicas of one Ray node share its page. The RayService says what they are configured for.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from exporter.config.pd import PdServing
from exporter.discovery.addresses import url, usable
from exporter.discovery.configured import of_vllm
from exporter.discovery.model import Configured, EnginePod, Found, Role
from exporter.kube.api import Api, ApiError
from exporter.kube.watch import Watch
from probes.canary.pd import fetch

APPLICATIONS = "/api/serve/applications/"
SERVICES = "/apis/ray.io/v1/namespaces/{}/rayservices"
POLL_SECONDS = 15.0
TIMEOUT_SECONDS = 5.0
ANSWER_LIMIT = 8 << 20
REPLICAS_LIMIT = 1000
DEPTH_LIMIT = 30
VALUES_LIMIT = 100_000
"""Values of a `serveConfigV2` that are looked at: aliases of YAML make a short text endless."""

_ROLE = re.compile(r"^(prefill|decode)", re.IGNORECASE)
Place = tuple[str, str]
"""Node and name of a Ray pod."""


class RayPods:
    """Asks Serve now and then, in the caller's thread. `api` is for the nodes of Ray's pods, where a namespace is named."""

    def __init__(self, serving: PdServing, api: Api | None = None, *, get: fetch.Get = fetch.get,
                 monotonic: Callable[[], float] = time.monotonic) -> None:
        if serving.source.ray is None:
            raise ValueError("this source is not Ray")
        self._ray, self._api, self._get, self._monotonic = serving.source.ray, api, get, monotonic
        self._found = Found(seen=False)
        self._asked = float("-inf")
        self._told: Mapping[Role, Configured] = {}
        self._lock = threading.Lock()
        self._watch: Watch[tuple[str, Place]] | None = None
        if api is not None and self._ray.namespace is not None:
            self._watch = Watch(api, f"/api/v1/namespaces/{self._ray.namespace}/pods", _place, query={"labelSelector": "ray.io/cluster"})
            self._watch.start()

    def found(self) -> Found:
        """The replicas there are, asked for at most every `POLL_SECONDS`."""
        with self._lock:
            if self._monotonic() - self._asked >= POLL_SECONDS:
                self._asked = self._monotonic()
                self._ask()
            return self._found

    def close(self) -> None:
        """Follow nothing any more."""
        if self._watch is not None:
            self._watch.close()

    def _ask(self) -> None:
        try:
            text = self._get(self._ray.url.rstrip("/") + APPLICATIONS, TIMEOUT_SECONDS, False)
            answer = json.loads(text)
        except (fetch.FetchError, ValueError, RecursionError) as error:
            # What was seen before may still be there; that it is old is said.
            self._found = Found(self._found.pods, f"Ray Serve at {self._ray.url}: {error}", self._found.seen)
            return
        self._told = self._services()
        places = dict(self._watch.items().values()) if self._watch is not None else {}
        pods = tuple(replicas(answer, application=self._ray.application, metrics_port=self._ray.metrics_port, places=places,
                              told=self._told))[:REPLICAS_LIMIT]
        self._found = Found(pods, "" if pods else f"Ray Serve at {self._ray.url} has no prefill and no decode deployment")

    def _services(self) -> Mapping[Role, Configured]:
        if self._api is None or self._ray.namespace is None:
            return {}
        try:
            listed = self._api.get(SERVICES.format(self._ray.namespace)).get("items") or []
        except ApiError:
            return self._told
        found: dict[Role, Configured] = {}
        for service in listed:
            found |= service_configured(str((service.get("spec") or {}).get("serveConfigV2") or ""))
        return found


def replicas(answer: Any, *, application: str | None, metrics_port: int, places: Mapping[str, Place] | None = None,
             told: Mapping[Role, Configured] | None = None) -> Iterator[EnginePod]:
    """The prefill and decode replicas in Serve's answer, by the names of their deployments (`Prefill:<model>`, `Decode:<model>`).

    Anything that is not of the documented shape is passed over.
    """
    applications = _table(_table(answer).get("applications"))
    for name, app in sorted(applications.items()):
        if application is not None and name != application:
            continue
        for deployment, details in sorted(_table(_table(app).get("deployments")).items()):
            match = _ROLE.match(str(deployment))
            if match is None:
                continue
            role: Role = "prefill" if match.group(1).lower() == "prefill" else "decode"
            listed = _table(details).get("replicas")
            for replica in listed if isinstance(listed, list) else []:
                one = _table(replica)
                address = str(one.get("node_ip") or "")
                if not usable(address):
                    continue
                node = (places or {}).get(address)
                started = one.get("start_time_s")
                yield EnginePod(
                    name=str(one.get("replica_id") or one.get("actor_name") or one.get("actor_id"))[:253], role=role, url="",
                    metrics=url("http", address, metrics_port, "/metrics"), life=str(one.get("actor_id") or one.get("replica_id")),
                    node=node[0] if node is not None else None, ready=str(one.get("state")) == "RUNNING",
                    started=float(started) if isinstance(started, int | float) and 0 < started < 2**33 else None,
                    configured=(told or {}).get(role, Configured()))


def service_configured(text: str) -> dict[Role, Configured]:
    """What a RayService's `serveConfigV2` says of prefill and decode. Nothing where it cannot be read."""
    try:
        config = yaml.safe_load(text[:1 << 20])
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    found: dict[Role, Configured] = {}
    for path, transfer in _transfers(config, (), iter(range(VALUES_LIMIT))):
        said = of_vllm(transfer)
        role: Role | None = next((part for part in ("prefill", "decode") if any(part in word for word in path)), None)
        role = role or (said.role if said.role in ("prefill", "decode") else None)
        for each in (role,) if role is not None else ("prefill", "decode"):
            found[each] = said
    return found


def _transfers(value: Any, path: tuple[str, ...], allowed: Iterator[int]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every `kv_transfer_config` with the keys that lead to it, until `allowed` ends."""
    if len(path) > DEPTH_LIMIT or next(allowed, None) is None:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "kv_transfer_config":
                yield path, inner
            else:
                yield from _transfers(inner, (*path, str(key).lower()), allowed)
    elif isinstance(value, list):
        for inner in value:
            yield from _transfers(inner, (*path, "[]"), allowed)


def _place(pod: dict[str, Any]) -> tuple[str, Place] | None:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or not status.get("podIP"):
        return None
    return str(status["podIP"]), (str(spec["nodeName"]), str((pod.get("metadata") or {}).get("name")))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
