"""A pod of the cluster as an engine pod: its role by label, its container, its address, its starts, its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from exporter.config.pd import PdServing
from exporter.discovery.addresses import url, usable
from exporter.discovery.configured import configured
from exporter.discovery.model import ROLES, EnginePod, Role

Json = dict[str, Any]
RoleOf = Callable[[Mapping[str, str]], Role | None]
"""Labels of a pod -> its role, None when it has none."""

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
ENGINES = ("vllm", "sglang", "trtllm", "tensorrt", "dynamo")
NOT_ENGINES = ("sidecar", "proxy", "istio", "envoy")


def role_by_label(label: str) -> RoleOf:
    """The role that a label names. Workers behind a leader take no requests."""
    return lambda labels: ROLES.get(str(labels.get(label, "")).lower()) if labels.get(LWS_INDEX, "0") == "0" else None


def role_by_set(prefill: str, decode: str) -> RoleOf:
    """The role of the leaders of two LeaderWorkerSets."""
    roles: dict[str, Role] = {prefill: "prefill", decode: "decode"}
    return lambda labels: roles.get(str(labels.get(LWS_NAME))) if labels.get(LWS_INDEX) == "0" else None


def engine_pod(pod: Json, role_of: RoleOf, serving: PdServing, *, efa_resource: str) -> EnginePod | None:
    """The pod; None when it has no role, no node, or has ended. One whose address may not be used counts as not ready."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    role = role_of(meta.get("labels") or {})
    if role is None or not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    containers = [one for one in spec.get("containers") or [] if isinstance(one, dict)]
    engine = _engine(containers)
    state: Json = next((one for one in status.get("containerStatuses") or [] if one.get("name") == engine.get("name")), {})
    running = (state.get("state") or {}).get("running") or {}
    address = str(status.get("podIP") or "")
    fine = usable(address)
    port = serving.decode_port if role == "decode" else serving.prefill_port
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or [])
    restarts = int(state.get("restartCount") or 0)
    return EnginePod(
        name=str(meta.get("name")), role=role, url=url(serving.scheme, address, port) if fine else "",
        metrics=url(serving.scheme, address, serving.metrics_port or port, serving.metrics_path) if fine else "",
        life=f"{meta.get('uid')}/{restarts}", node=str(spec["nodeName"]), ready=ready and fine and not meta.get("deletionTimestamp"),
        started=_time(running.get("startedAt")), restarts=restarts, efa=any(_asks_for(one, efa_resource) for one in containers),
        configured=configured([*map(str, engine.get("command") or []), *map(str, engine.get("args") or [])], _env(engine)))


def _engine(containers: list[Json]) -> Json:
    """The container that runs the engine: by what it starts, else by its image, else the first that is no sidecar."""
    def said(one: Json, *fields: str) -> str:
        return " ".join(str(one.get(field) or "") for field in fields).lower()

    for fields in (("command", "args"), ("image",), ("name",)):
        for one in containers:
            if any(word in said(one, *fields) for word in ENGINES) and not any(word in said(one, "name") for word in NOT_ENGINES):
                return one
    plain = [one for one in containers if not any(word in said(one, "name", "image") for word in NOT_ENGINES)]
    return (plain or containers or [{}])[0]


def _env(container: Json) -> dict[str, str]:
    return {str(one.get("name")): str(one["value"]) for one in container.get("env") or [] if isinstance(one, dict) and "value" in one}


def _asks_for(container: Json, resource: str) -> bool:
    asked = container.get("resources") or {}
    return any(str((asked.get(kind) or {}).get(resource, "0")) not in ("0", "") for kind in ("limits", "requests"))


def _time(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None
