"""One of several replicas: it waits, takes over with what the journal knows, and gives up without losing a result."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from remembering import RememberingLauncher

from exporter.config import Config
from exporter.control import Control
from exporter.events import Conditions, Event, Finished, Inventoried, Leading
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory, Node, Room
from exporter.plan.store import MemoryStore
from exporter.publish.publisher import Publisher
from exporter.runs import Run, RunSpec
from exporter.scheduler import Scheduler
from probes.result import Evidence, Measurement, Result

MIB = 1 << 20
PAYLOAD = 1 << 30
CONFIG = Config.model_validate({"inventory": {"mode": "kubernetes"}, "schedule": {"start_spread": 0},
                                "probes": {"node": {"enabled": False}, "nixl": {"enabled": False}}})


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


def inventory(*names: str) -> Inventory:
    roomy = {"efa": Room(4), "cpu": Room(96_000), "memory": Room(1 << 40), "pods": Room(100)}
    return Inventory(tuple(Node(f"i-{name}", name, instance_type="p5.48xlarge", zone="z", created=0.0, **roomy)  # type: ignore[arg-type]
                           for name in names), source="kubernetes")


class Replica:
    """A control loop of one replica over a store that all share."""

    def __init__(self, folder: Path, store: MemoryStore, clock: Clock) -> None:
        self.clock = clock
        self.launcher = RememberingLauncher()
        self.events: queue.Queue[Event] = queue.Queue()
        self.publisher = Publisher("t", cluster=True)
        self.durable: list[str] = []
        self.adopted = 0
        self.nodes = inventory("a", "b")
        self.broken = self.other_leads = False
        self.store = store
        self.control = Control(CONFIG, events=self.events, launcher=self.launcher, scheduler=Scheduler(self.events, clock=clock),
                               publisher=self.publisher, secrets_dir=folder, clock=clock, make_fleet=self._fleet,
                               on_fleet=self._adopt, on_durable=self.durable.append,
                               conditions=lambda: Conditions(other_leads=self.other_leads))
        self.control.handle(Inventoried(self.nodes))

    def _fleet(self, config: Config) -> Fleet:
        if self.broken:
            raise OSError("the API server is away")
        return Fleet(config, self.store, self.nodes, clock=self.clock, monotonic=self.clock)

    def _adopt(self, known: object) -> None:
        self.adopted += 1

    def turn(self, seconds: float = 1.0) -> None:
        self.clock.now += seconds
        self.control.handle(None)

    def value(self, name: str, **labels: str) -> float | None:
        page = b"".join(segment.text for segment in self.publisher.snapshot.classic.segments).decode()
        return next((sample.value for family in text_string_to_metric_families(page) for sample in family.samples
                     if sample.name == name and labels.items() <= sample.labels.items()), None)


def good_run(spec: RunSpec, now: float) -> Run:
    results = []
    for rank, node in enumerate(spec.nodes):
        share = (PAYLOAD, 0) if rank == 0 else (0, PAYLOAD)
        row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[MIB], bandwidth=[2e9], wrong=[0])
        results.append(Result.model_validate({
            "run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank, "world_size": spec.world_size, "node": node,
            "started": now - 5, "finished": now, "reason": "ok", "measure": {"start": now - 3, "end": now - 1}, "measurements": [row],
            "evidence": Evidence(stack="mooncake", payload_bytes=share, tcp_bytes=share)}))
    return Run(spec, tuple(results), now - 5, now)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_standby_launches_nothing_and_says_that_it_does_not_lead(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    for _ in range(5):
        replica.turn(60)
    assert replica.launcher.started == []
    assert replica.value("efapulse_leader") == 0


def lead_and_measure(replica: Replica) -> RunSpec:
    replica.control.handle(Leading(True))
    for _ in range(200):
        if replica.launcher.started:
            break
        replica.turn(10)
    (spec,) = replica.launcher.started
    replica.control.handle(Finished(good_run(spec, replica.clock.now)))
    return spec


def test_a_leader_plans_and_a_run_is_durable_only_after_the_journal_is_stored(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    spec = lead_and_measure(replica)
    assert replica.value("efapulse_leader") == 1
    assert replica.value("efapulse_node_healthy", node="a", probe="mooncake") == 1
    for _ in range(10):
        replica.turn(10)
    assert replica.durable == [spec.run_id]


def test_the_next_leader_publishes_what_the_one_before_knew_with_its_own_times(tmp_path: Path, clock: Clock) -> None:
    store = MemoryStore()
    first = Replica(tmp_path, store, clock)
    lead_and_measure(first)
    verdict_at = first.value("efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake")
    for _ in range(10):
        first.turn(10)
    second = Replica(tmp_path, store, clock)
    assert second.value("efapulse_node_healthy", node="a", probe="mooncake") is None
    second.control.handle(Leading(True))
    assert second.value("efapulse_node_healthy", node="a", probe="mooncake") == 1
    assert second.value("efapulse_node_verdict_timestamp_seconds", node="a", probe="mooncake") == verdict_at
    assert second.value("efapulse_node_bandwidth_bytes_per_second", node="b", probe="mooncake", operation="write") == 2e9
    assert second.value("efapulse_node_transport", node="a", probe="mooncake", transport="tcp") == 1
    assert second.adopted == 1
    second.turn(1)
    assert second.launcher.started == [], "a take-over is no new wave"


def test_a_result_that_was_taken_in_is_not_counted_again(tmp_path: Path, clock: Clock) -> None:
    store = MemoryStore()
    first = Replica(tmp_path, store, clock)
    spec = lead_and_measure(first)
    for _ in range(10):
        first.turn(10)
    second = Replica(tmp_path, store, clock)
    second.control.handle(Leading(True))
    second.control.handle(Finished(good_run(spec, clock.now)))
    assert second.value("efapulse_runs_total", probe="mooncake", outcome="ok") == 0
    assert second.durable == [spec.run_id], "its Job may go"


def test_who_no_longer_leads_leaves_results_to_the_leader(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    replica.control.handle(Leading(True))
    for _ in range(200):
        if replica.launcher.started:
            break
        replica.turn(10)
    replica.control.handle(Leading(False))
    replica.control.handle(Finished(good_run(replica.launcher.started[0], clock.now)))
    assert replica.value("efapulse_runs_total", probe="mooncake", outcome="ok") == 0
    assert replica.durable == []
    assert replica.value("efapulse_leader") == 0


def test_who_no_longer_leads_keeps_its_nodes_until_another_one_leads(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    lead_and_measure(replica)
    for _ in range(10):
        replica.turn(10)  # the journal is written
    replica.control.handle(Leading(False))
    replica.turn(10)
    assert replica.value("efapulse_node_healthy", node="a", probe="mooncake") == 1, "nobody else tells it"
    replica.other_leads = True
    replica.turn(10)
    assert replica.value("efapulse_node_healthy", node="a", probe="mooncake") is None, "what grows old must not contradict the leader"
    replica.other_leads = False
    replica.control.handle(Leading(True))
    assert replica.value("efapulse_node_healthy", node="a", probe="mooncake") == 1


def test_a_node_that_left_while_nobody_led_is_gone_afterwards(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    lead_and_measure(replica)
    replica.control.handle(Leading(False))
    replica.nodes = inventory("b")
    replica.control.handle(Inventoried(replica.nodes))
    replica.control.handle(Leading(True))
    assert replica.value("efapulse_node_healthy", node="a", probe="mooncake") is None
    assert replica.value("efapulse_node_healthy", node="b", probe="mooncake") == 1


def test_a_journal_that_cannot_be_read_is_tried_again_and_nothing_starts_before(tmp_path: Path, clock: Clock) -> None:
    replica = Replica(tmp_path, MemoryStore(), clock)
    replica.broken = True
    replica.control.handle(Leading(True))
    for _ in range(20):
        replica.turn(30)
    assert replica.launcher.started == []
    replica.broken = False
    for _ in range(200):
        if replica.launcher.started:
            break
        replica.turn(10)
    assert replica.launcher.started
