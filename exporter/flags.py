"""Writes node conditions and Events, in a thread of its own; see `exporter.conditions` for what is written.

A condition is one strategic merge patch of `nodes/status` with the node's uid in it: conditions of others (kubelet, node monitoring agent,
NVSentinel) are untouched, and an instance that took the name over is not mistaken for the one that was meant.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from exporter import log
from exporter.conditions import Change, Decider, Decision, Standing
from exporter.config.conditions import Conditions as Settings
from exporter.inventory.reduce import FABRIC, instance_id
from exporter.kube.api import Api, ApiError
from exporter.publish import families_archive as f
from exporter.publish.family import Family
from exporter.publish.surveyed import Samples

Json = dict[str, Any]
STRATEGIC = "application/strategic-merge-patch+json"
PAUSE_SECONDS = 0.2
"""Between two writes: five nodes a second, however many change."""
FIRST_RETRY, LONGEST_RETRY = 2.0, 120.0
EVENTS = "/api/v1/namespaces/default/events"
"""Events of nodes live there, whatever namespace the installation has."""
EVENT_REASON = {"False": ("Warning", "EfaFabricUnhealthy"), "True": ("Normal", "EfaFabricRecovered")}


class Flags:
    """See the module. `tell` may be called from one other thread at a time; the counters may be read from any."""

    def __init__(self, api: Api, settings: Settings, *, who: str, clock: Callable[[], float] = time.time) -> None:
        self._api, self._settings, self._who, self._clock = api, settings, who, clock
        self._decider = Decider(settings)
        self._latest: Sequence[Standing] | None = None
        self._wake, self._stop = threading.Event(), threading.Event()
        self._heartbeats: dict[str, float] = {}
        self._retry_at, self._wait = 0.0, FIRST_RETRY
        self.decision = Decision((), (), False, ())
        self.writes = {"condition": 0, "event": 0}
        self.failures: dict[tuple[str, str], int] = {}
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="conditions", daemon=True)

    def start(self) -> Flags:
        """Begin to write."""
        self._thread.start()
        return self

    def close(self) -> None:
        """End after the write on its way. Conditions stay as they are."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    @property
    def on(self) -> Sequence[str]:
        """What makes a node unhealthy."""
        return self._settings.on

    def tell(self, nodes: Sequence[Standing]) -> None:
        """This is how the nodes stand now. Never waits."""
        self._latest = nodes
        self._wake.set()

    def stand_down(self) -> None:
        """Another replica leads: write nothing more until told again."""
        self._latest = None

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self.turn()
            except Exception as error:  # noqa: BLE001 - the next look is to be written all the same
                self._failed("condition", "other", str(error))

    def turn(self) -> None:
        """Decide on what was told last, and write it. Belongs to the thread."""
        nodes = self._latest
        if nodes is None or time.monotonic() < self._retry_at:
            return
        was_open = self.decision.open
        decision = self.decision = self._decider.turn(self._clock(), nodes)
        if decision.open and not was_open:
            log.get().error("the breaker of node conditions is open: too many nodes would be flagged", held_back=list(decision.held[:20]),
                            flagged=list(decision.flagged[:20]), share=self._settings.share)
        elif was_open and not decision.open:
            log.get().info("the breaker of node conditions is closed again")
        for change in decision.changes:
            if self._stop.is_set() or self._latest is None or not self._write(change):
                return
            self._stop.wait(PAUSE_SECONDS)
        self._renew(nodes, decision)

    def _write(self, change: Change) -> bool:
        """Write one condition and its Event. False when writing is to pause."""
        now = self._clock()
        try:
            node = self._node(change)
            if node is None:
                return True
            self._patch(node, {"type": FABRIC, "status": change.status, "reason": change.reason, "message": change.message,
                               "lastHeartbeatTime": stamp(now), "lastTransitionTime": stamp(now)})
        except ApiError as error:
            return self._refused("condition", error)
        self._decider.wrote(change, now)
        self._heartbeats[change.name] = now
        self._worked("condition")
        log.get().info("node condition written", node=change.name, status=change.status, reason=change.reason, message=change.message)
        if change.flags and self._settings.events:
            try:
                self._api.create(EVENTS, self._event(change, node, now))
                self.writes["event"] += 1
            except ApiError as error:
                return self._refused("event", error)
        return True

    def _renew(self, nodes: Sequence[Standing], decision: Decision) -> None:
        """Renew the heartbeat of conditions that are False: others see that somebody still stands behind them."""
        flagged = set(decision.flagged)
        for one in nodes:
            now = self._clock()
            if one.name not in flagged or one.fabric is None or now - self._heartbeats.get(one.name, 0.0) < self._settings.heartbeat:
                continue
            with contextlib.suppress(ApiError):
                node = self._node(one)
                if node is not None:
                    self._patch(node, {"type": FABRIC, "status": one.fabric.status, "lastHeartbeatTime": stamp(now)})
            self._heartbeats[one.name] = now

    def _node(self, one: Change | Standing) -> Json | None:
        """The node of this name, None when it is gone or another instance has its name."""
        try:
            node = self._api.get(f"/api/v1/nodes/{one.name}")
        except ApiError as error:
            if error.not_found:
                return None
            raise
        found = instance_id(str((node.get("spec") or {}).get("providerID") or ""), one.name)
        return node if found == one.instance_id else None

    def _patch(self, node: Json, condition: Json) -> None:
        body = {"metadata": {"uid": node["metadata"]["uid"]}, "status": {"conditions": [condition]}}
        self._api.request("PATCH", f"/api/v1/nodes/{node['metadata']['name']}/status", body=body, content_type=STRATEGIC)

    def _event(self, change: Change, node: Json, now: float) -> Json:
        kind, reason = EVENT_REASON[change.status]
        name = f"{change.name}.{int(now * 1e6):x}"[:250]
        return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
                "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": change.name, "uid": node["metadata"]["uid"]},
                "type": kind, "reason": reason, "message": f"{change.reason}: {change.message}", "count": 1,
                "firstTimestamp": stamp(now), "lastTimestamp": stamp(now), "source": {"component": "efa-pulse"},
                "reportingComponent": "efa-pulse", "reportingInstance": self._who}

    def _worked(self, kind: str) -> None:
        self.writes[kind] += 1
        self._wait, self._retry_at = FIRST_RETRY, 0.0
        if self.trouble:
            self.trouble = ""
            log.get().info("node conditions can be written again")

    def _refused(self, kind: str, error: ApiError) -> bool:
        trouble = "denied" if error.status == 403 else "conflict" if error.status == 409 else "unreachable" if error.passing else "other"
        hint = ("; the ServiceAccount needs patch on nodes/status" if kind == "condition" else
                "; the ServiceAccount needs create on events in namespace default") if error.status == 403 else ""
        self._failed(kind, trouble, f"{error}{hint}")
        return kind == "event" or trouble == "conflict"

    def _failed(self, kind: str, trouble: str, says: str) -> None:
        self.failures[kind, trouble] = self.failures.get((kind, trouble), 0) + 1
        if says != self.trouble:
            log.get().error("a node condition or Event could not be written", kind=kind, trouble=trouble, error=says)
        self.trouble = says
        if kind == "condition" and trouble != "conflict":
            self._retry_at = time.monotonic() + self._wait
            self._wait = min(LONGEST_RETRY, 2 * self._wait)


def readings(flags: Flags) -> list[tuple[Family, Samples]]:
    """The present state, as samples of its families."""
    decision = flags.decision
    return [
        (f.CONDITION_FLAGGED, {(): float(len(decision.flagged))}),
        (f.CONDITION_BREAKER, {(): float(decision.open)}),
        (f.CONDITION_HELD, {(): float(len(decision.held))}),
        (f.CONDITION_WRITES, {(kind,): float(count) for kind, count in flags.writes.items()}),
        (f.CONDITION_FAILURES, {key: float(count) for key, count in list(flags.failures.items())}),
    ]


def stamp(at: float) -> str:
    """`2026-12-01T18:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
