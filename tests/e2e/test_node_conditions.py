"""Node conditions on a real control plane: set, cleared after a re-measurement, held back by the breaker, with exactly these rights."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane import eventually
from e2e.installed import Installation
from e2e.rights import ACCOUNT, CONDITIONS, EVENTS, conditions_rights, rights

from exporter.config import Config
from exporter.control import Control
from exporter.events import Event, Finished, Inventoried, Leading
from exporter.flags import Flags, readings
from exporter.fleet import Fleet
from exporter.inventory.kubernetes import KubernetesInventory
from exporter.kube.api import Api, ApiError, configuration
from exporter.plan.store import MemoryStore
from exporter.publish.publisher import Publisher
from exporter.runs import Run, RunSpec
from exporter.scheduler import Scheduler
from probes.result import Evidence, Measurement, Result

Json = dict[str, Any]
Install = Callable[..., Installation]
CONFIG = Config.model_validate({
    "inventory": {"mode": "kubernetes"}, "schedule": {"start_spread": 0}, "archive": {"enabled": False},
    "probes": {"node": {"enabled": False}, "nixl": {"enabled": False}}, "conditions": {"enabled": True, "share": 0.2, "window": "1h"},
    "planning": {"gates": {"min_age": 0}}})


@pytest.fixture
def service(install: Install) -> Iterator[Service]:
    here = install()
    here.cluster.apply(*rights(here.config), *conditions_rights(here.config))
    one = Service(here)
    yield one
    one.close()
    for kind in ("clusterrolebindings", "clusterroles"):
        for name in (here.config.install, f"{here.config.install}-conditions"):
            here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/{name}")
    here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/{here.config.install}")
    here.cluster.delete(f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/{here.config.install}")


class Launcher:
    """Measures at once, on paper: a pair with a bad node fails. What is real here is the cluster."""

    def __init__(self, events: queue.Queue[Event], clock: Callable[[], float]) -> None:
        self.events, self.clock = events, clock
        self.bad: set[str] = set()
        self.held: list[RunSpec] | None = None
        """Runs that do not end yet, where any are to be held."""

    def start(self, spec: RunSpec) -> None:
        if self.held is not None:
            self.held.append(spec)
            return
        now = self.clock()
        reason = "transfer_failed" if self.bad & set(spec.nodes) else "ok"
        row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[2e9], wrong=[0])
        results = [Result.model_validate({
            "run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank, "world_size": len(spec.nodes), "node": node,
            "started": now, "finished": now, "measure": {"start": now, "end": now}, "reason": reason, "measurements": [row],
            "evidence": Evidence(stack="mooncake", payload_bytes=(1 << 30, 0), tcp_bytes=(1 << 30, 0))})
            for rank, node in enumerate(spec.nodes)]
        self.events.put(Finished(Run(spec, tuple(results), now, now)))

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for spec in held:
            self.start(spec)

    def cancel(self, run_id: str) -> None: ...

    def running(self) -> list[str]:
        return []

    def close(self, grace: float) -> None: ...


class Service:
    """Inventory, control loop and conditions of the product, with the ServiceAccount's own token, over time that is driven by the test."""

    def __init__(self, here: Installation) -> None:
        self.here, self.cluster = here, here.cluster
        self.names = here.nodes(10)
        self.api = Api(configuration(here.cluster.service_account(here.config.namespace, ACCOUNT)))
        self.inventory = KubernetesInventory(self.api, here.config)
        self.inventory.start()
        assert self.inventory.wait(20)
        eventually(lambda: len(self.inventory.snapshot()) == 10, what="the nodes are in the inventory")
        self.ahead = 0.0
        self.store = MemoryStore()
        self.begin()

    def begin(self, *, held: bool = False) -> None:
        """A process begins: only the journal and what is on the nodes is known. `held`: its runs do not end yet."""
        self.events: queue.Queue[Event] = queue.Queue()
        self.launcher = Launcher(self.events, self.now)
        self.launcher.held = [] if held else None
        self.publisher = Publisher("t", cluster=True)
        self.flags = Flags(self.api, CONFIG.conditions, who="test", clock=self.now)
        self.control = Control(CONFIG, events=self.events, launcher=self.launcher, scheduler=Scheduler(self.events, clock=self.now),
                               publisher=self.publisher, secrets_dir=Path("/nonexistent"), clock=self.now, flags=self.flags,
                               make_fleet=lambda config: Fleet(config, self.store, self.inventory.snapshot(), clock=self.now,
                                                               monotonic=self.now))
        self.control.report(lambda: readings(self.flags))
        self.control.handle(Inventoried(self.inventory.snapshot()))
        self.control.handle(Leading(True))
        self.flags.start()

    def close(self) -> None:
        self.flags.close()
        self.inventory.close()
        self.api.close()

    def now(self) -> float:
        return time.time() + self.ahead

    def turn(self, seconds: float = 60.0) -> None:
        """Let time pass: everything that is due is measured and judged, and conditions are written."""
        self.ahead += seconds
        self.control.handle(Inventoried(self.inventory.snapshot()))
        for _ in range(3):
            self.control.handle(None)
            self.control.drain()

    def until(self, check: Callable[[], Any], what: str, turns: float = 60.0) -> Any:
        """Let time pass until something holds."""
        def look() -> Any:
            self.turn(turns)
            return check()

        return eventually(look, seconds=60, every=0.3, what=what)

    def node(self, name: str) -> Json:
        return self.cluster.call("GET", f"/api/v1/nodes/{name}")

    def condition(self, name: str) -> Json | None:
        return next((one for one in self.node(name)["status"]["conditions"] if one["type"] == "EfaFabricHealthy"), None)

    def flagged(self) -> list[str]:
        return [name for name, one in self.conditions().items() if one["status"] == "False"]

    def conditions(self) -> dict[str, Json]:
        """The condition of every node that has it, in one request."""
        found = {node["metadata"]["name"]: node["status"].get("conditions") or [] for node in self.cluster.items("/api/v1/nodes")}
        return {name: one for name in self.names for one in found[name] if one["type"] == "EfaFabricHealthy"}

    def events_of(self, name: str) -> list[str]:
        found = self.cluster.items(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={name}")
        return [one["reason"] for one in found if one["source"].get("component") == "efa-pulse"]

    def metric(self, name: str) -> float | None:
        page = b"".join(segment.text for segment in self.publisher.snapshot.classic.segments).decode()
        return next((float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + " ")), None)


@pytest.mark.timeout(400)
def test_a_named_node_is_flagged_cleared_after_it_was_measured_again_and_the_breaker_holds_back_a_wave(service: Service) -> None:
    kubelet = {one["type"]: one["status"] for one in service.node(service.names[0])["status"]["conditions"]}
    service.until(lambda: len(service.conditions()) == len(service.names), "every node is measured and said to be healthy")
    assert service.flagged() == []
    bad = service.names[3]
    assert service.events_of(bad) == [], "no Event tells that nothing happened"

    service.launcher.bad = {bad}
    service.until(lambda: service.flagged() == [bad], "the bad node is flagged")
    condition = service.condition(bad)
    assert condition is not None
    assert condition["reason"] == "NamedByMooncake"
    assert "transfer_failed" in condition["message"]
    assert "partners that agree" in condition["message"]
    eventually(lambda: service.events_of(bad) == ["EfaFabricUnhealthy"], what="an Event tells it")
    node = service.node(bad)
    assert not node["spec"].get("unschedulable")
    assert not [taint for taint in node["spec"].get("taints", []) if "efa" in taint["key"]]
    assert {one["type"]: one["status"] for one in node["status"]["conditions"] if one["type"] in kubelet} == kubelet, "others' stay"
    service.until(lambda: service.metric("efapulse_node_conditions_flagged") == 1, "the metric tells it")

    service.flags.close()
    service.launcher.bad = set()
    service.store = MemoryStore()  # the process ends, and its journal is lost: nothing stands against the node any more
    service.begin(held=True)
    for _ in range(3):
        service.turn()
        time.sleep(0.3)
    assert service.launcher.held, "runs are on their way"
    assert service.flagged() == [bad], "nothing was measured that passed"
    service.launcher.let_go()
    service.until(lambda: service.flagged() == [], "a run passed, and the flag is taken away")
    eventually(lambda: service.events_of(bad) == ["EfaFabricUnhealthy", "EfaFabricRecovered"], what="an Event tells it")

    wave = set(service.names[5:9])
    service.launcher.bad = wave
    service.until(lambda: service.metric("efapulse_node_conditions_breaker_open") == 1, "too many nodes are named: the breaker opens")
    assert len(service.flagged()) <= 2
    assert (service.metric("efapulse_node_conditions_held_back") or 0) >= 1


@pytest.mark.timeout(300)
def test_a_foreign_word_is_respected_and_rights_are_exactly_these(service: Service) -> None:
    bad = service.names[2]
    service.until(lambda: len(service.conditions()) == len(service.names), "every node is measured")
    service.launcher.bad = {bad}
    service.until(lambda: service.flagged() == [bad], "the bad node is flagged")
    acknowledged = {"type": "EfaFabricHealthy", "status": "Unknown", "reason": "Acknowledged", "message": "alice looks at it"}
    service.cluster.call("PATCH", f"/api/v1/nodes/{bad}/status", {"status": {"conditions": [acknowledged]}}, patch="strategic-merge")
    eventually(lambda: (found := service.inventory.snapshot().named(bad)) is not None and found.fabric is not None
               and found.fabric.reason == "Acknowledged", what="the inventory sees it")
    for _ in range(4):
        service.turn(600)
        time.sleep(0.3)
    assert (service.condition(bad) or {})["reason"] == "Acknowledged"

    for method, path in (("PATCH", f"/api/v1/nodes/{bad}"), ("PUT", f"/api/v1/nodes/{bad}/status"), ("DELETE", f"/api/v1/nodes/{bad}"),
                         ("GET", "/api/v1/namespaces/default/events"), ("POST", "/api/v1/namespaces/kube-system/events")):
        with pytest.raises(ApiError) as refused:
            service.api.request(method, path, body={} if method in {"PATCH", "PUT", "POST"} else None,
                                content_type="application/merge-patch+json" if method == "PATCH" else "application/json")
        assert refused.value.status == 403, (method, path)


@pytest.mark.timeout(300)
def test_without_a_right_the_service_says_which_and_goes_on(service: Service) -> None:
    install = service.here.config.install
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{install}-conditions"
    assert service.cluster.call("GET", role)["rules"] == CONDITIONS
    assert EVENTS == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]
    service.cluster.call("PATCH", role, {"rules": []})
    service.until(lambda: service.flags.failures.get(("condition", "denied")), "the API server refuses")
    assert "patch on nodes/status" in service.flags.trouble
    assert service.metric("efapulse_archive_trouble") is None
    service.cluster.call("PATCH", role, {"rules": CONDITIONS})
    service.until(lambda: service.flags.writes["condition"], "conditions are written once the right is there")
    assert service.flags.trouble == ""

