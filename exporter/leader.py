"""Leader election on a Lease: one replica plans.

A candidate takes a Lease that it has not seen change for `duration` by its own monotonic clock: clocks of other machines decide nothing. A
leader that could not renew for `renew_deadline` no longer thinks it is one, whatever its thread is doing: `leading` compares times when
asked, so that a process that was stopped and wakes up does not go on. The Lease only says who plans. That no node ever gets two probe pods
is kept by the scheduler's anti-affinity, also between two replicas that both believe they lead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from exporter.config.kubernetes import Leader as Settings
from exporter.kube.api import Api, ApiError
from exporter.kube.owner import OwnObjects

Json = dict[str, Any]
JOIN_SECONDS = 5.0

log = logging.getLogger(__name__)


def awake_clock() -> float:
    """Monotonic seconds that go on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Election:
    """A candidate. `on_change(leading)` is called from its thread when it begins or ends to lead."""

    def __init__(self, api: Api, settings: Settings, *, namespace: str, identity: str, on_change: Callable[[bool], None] = lambda _: None,
                 clock: Callable[[], float] = awake_clock, owner: str | None = None) -> None:
        """`owner`: the ConfigMap with which the Lease is to go."""
        self._owner = OwnObjects(api, namespace, owner)
        self._api, self._settings, self._on_change, self._clock = api, settings, on_change, clock
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.identity = identity
        self._renewed: float | None = None
        self._seen: tuple[str, str] | None = None
        self._seen_at = 0.0
        self._holder = ""
        self._told = False
        self._stop = threading.Event()
        self.trouble = ""
        self.transitions = 0
        self._thread = threading.Thread(target=self._run, name="leader", daemon=True)

    def start(self) -> None:
        """Begin to stand."""
        self._thread.start()

    @property
    def leading(self) -> bool:
        """Whether this replica leads at this very moment."""
        renewed = self._renewed
        return renewed is not None and self._clock() - renewed < self._settings.renew_deadline

    @property
    def holder(self) -> str:
        """Who holds the Lease, as last seen; empty when nobody does."""
        return self._holder

    def close(self) -> None:
        """Stop standing. A leader gives the Lease back, so that the next one need not wait."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)
        if self.leading:
            self._give_back()
        self._renewed = None
        self._tell()

    def turn(self) -> None:
        """One look at the Lease: renew it, take it, or wait."""
        try:
            self._look()
            self.trouble = ""
        except ApiError as error:
            if str(error) != self.trouble:
                log.warning("leader election: %s", error)
            self.trouble = str(error)
        self._tell()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn()
            except Exception:
                log.exception("leader election failed unexpectedly")
            self._stop.wait(self._settings.retry)

    def _look(self) -> None:
        asked = self._clock()
        # Shorter than the time between two looks: an answer that comes late must not make a leader of somebody who no longer is.
        timeout = max(1.0, self._settings.renew_deadline / 2)
        try:
            lease = self._api.get(f"{self._path}/{self._settings.lease}", timeout=timeout)
        except ApiError as error:
            if not error.not_found:
                raise
            self._write(None, asked, timeout)
            return
        spec, version = lease.get("spec") or {}, str((lease.get("metadata") or {}).get("resourceVersion"))
        self._holder = str(spec.get("holderIdentity") or "")
        state = (self._holder, version)
        if state != self._seen:
            self._seen, self._seen_at = state, self._clock()
        if self._holder == self.identity or not self._holder or self._clock() - self._seen_at >= self._patience(spec):
            self._write(lease, asked, timeout)
        else:
            self._renewed = None

    def _patience(self, spec: Json) -> float:
        said = spec.get("leaseDurationSeconds")
        return float(said) if isinstance(said, int) and said > 0 else self._settings.duration

    def _write(self, lease: Json | None, asked: float, timeout: float) -> None:
        """Make the Lease ours, unless somebody else was faster. `asked` is when this look began: that counts as the renewal."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old: Json = (lease or {}).get("spec") or {}
        mine = old.get("holderIdentity") == self.identity
        spec = {"holderIdentity": self.identity, "leaseDurationSeconds": round(self._settings.duration), "renewTime": now,
                "acquireTime": old.get("acquireTime") if mine and old.get("acquireTime") else now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if mine or lease is None else 1)}
        try:
            if lease is None:
                owned = {"ownerReferences": found} if (found := self._owner.references()) else {}
                made = self._api.create(self._path, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                                                     "metadata": {"name": self._settings.lease, **owned}, "spec": spec}, timeout=timeout)
            else:
                made = self._api.replace(f"{self._path}/{self._settings.lease}", {**lease, "spec": spec}, timeout=timeout)
        except ApiError as error:
            if error.exists or error.conflict:
                self._renewed = None if not mine else self._renewed
                return
            raise
        self._renewed, self._holder = asked, self.identity
        self._seen, self._seen_at = (self.identity, str((made.get("metadata") or {}).get("resourceVersion"))), self._clock()

    def _give_back(self) -> None:
        try:
            lease = self._api.get(f"{self._path}/{self._settings.lease}", timeout=2.0)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                freed = {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
                self._api.replace(f"{self._path}/{self._settings.lease}", freed, timeout=2.0)
        except ApiError as error:
            log.info("the Lease was not given back, the next leader waits for its end: %s", error)

    def _tell(self) -> None:
        now = self.leading
        if now != self._told:
            self._told = now
            self.transitions += 1
            log.info("this replica %s", "leads" if now else "no longer leads")
            self._on_change(now)
