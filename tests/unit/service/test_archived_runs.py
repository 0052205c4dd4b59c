"""The control loop with an archive: a Job goes when journal and archive hold its run, and what one process owed the next one brings."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from remembering import RememberingLauncher

from exporter.archive import segments
from exporter.archive.archive import Archive
from exporter.config import Config
from exporter.config.archive import Archive as Settings
from exporter.control import Control
from exporter.events import Event, Finished, Inventoried, Leading
from exporter.fleet import Fleet
from exporter.inventory.model import Inventory, Node, Room
from exporter.ledger import Ledger
from exporter.plan.journal import Journal, flush
from exporter.plan.store import MemoryStore
from exporter.publish.archived import readings
from exporter.publish.publisher import Publisher
from exporter.runs import Run
from exporter.scheduler import Scheduler
from probes.result import Evidence, Measurement, Result

CONFIG = Config.model_validate({"inventory": {"mode": "kubernetes"}, "schedule": {"start_spread": 0},
                                "probes": {"node": {"enabled": False}, "nixl": {"enabled": False}}})
AT = 1_790_000_000.0


class Process:
    """One life of the service over a journal and an archive folder that outlive it."""

    def __init__(self, folder: Path, store: MemoryStore, now: float = AT, *, nodes: Sequence[Node] | None = None) -> None:
        self.now = now
        self.store, self.launcher = store, RememberingLauncher()
        self.durable: list[str] = []
        self.known: Callable[[str], bool] = lambda _: False
        events: queue.Queue[Event] = queue.Queue()
        self.publisher = Publisher("t", cluster=True)
        self.nodes = Inventory(tuple(nodes or (Node(f"i-{name}", name, instance_type="p5.48xlarge", zone="z", created=0.0, efa=Room(4),
                                                    cpu=Room(96_000), memory=Room(1 << 40), pods=Room(100)) for name in ("a", "b"))),
                               source="kubernetes")
        self.archive = Archive(Settings(cluster="east"), folder=folder / "archive", clock=self._clock)
        self.control = Control(CONFIG, events=events, launcher=self.launcher, scheduler=Scheduler(events, clock=self._clock),
                               publisher=self.publisher, secrets_dir=folder, clock=self._clock, make_fleet=self._fleet,
                               on_fleet=self._adopt, on_durable=self.durable.append, archive=self.archive)
        self.control.report(lambda: readings(self.archive))
        self.control.handle(Inventoried(self.nodes))
        self.control.handle(Leading(True))

    def _clock(self) -> float:
        return self.now

    def _fleet(self, config: Config) -> Fleet:
        return Fleet(config, self.store, self.nodes, clock=self._clock, monotonic=self._clock)

    def _adopt(self, known: Callable[[str], bool]) -> None:
        self.known = known

    def turn(self, seconds: float = 40.0) -> None:
        self.now += seconds
        self.control.handle(None)

    def measure(self) -> Run:
        while not self.launcher.started:
            self.turn()
        spec = self.launcher.started.pop()
        row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[2e9], wrong=[0])
        results = [Result.model_validate({
            "run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank, "world_size": 2, "node": node,
            "started": self.now - 5, "finished": self.now, "reason": "ok", "measure": {"start": self.now - 3, "end": self.now - 1},
            "measurements": [row], "evidence": Evidence(stack="mooncake", payload_bytes=share, tcp_bytes=share)})
            for rank, (node, share) in enumerate(zip(spec.nodes, ((1 << 30, 0), (0, 1 << 30)), strict=True))]
        return Run(spec, tuple(results), self.now - 5, self.now)

    def kill(self) -> None:
        """As SIGKILL does: the locks go, nothing else is done."""
        if self.archive._folder is not None:
            self.archive._folder.close()

    def value(self, name: str, **labels: str) -> float | None:
        page = b"".join(segment.text for segment in self.publisher.snapshot.classic.segments).decode()
        return next((sample.value for family in text_string_to_metric_families(page) for sample in family.samples
                     if sample.name == name and labels.items() <= sample.labels.items()), None)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.archive.archive.TICK_SECONDS", 0.01)


def archived(folder: Path) -> list[str]:
    at = folder / "archive"
    return [record["run_id"] for name in segments.find(at) for _, _, record in segments.lines(at / str(name))]


def test_a_job_goes_only_when_journal_and_archive_hold_its_run(tmp_path: Path) -> None:
    process = Process(tmp_path, MemoryStore())
    run = process.measure()
    process.control.handle(Finished(run))
    process.turn()
    process.turn()
    assert process.durable == []
    assert not process.known(run.spec.run_id), "a leader that took over now would read it from its Job again"
    assert process.value("efapulse_archive_pending_results") == 1
    process.archive.turn()
    process.turn()
    assert process.durable == [run.spec.run_id]
    assert process.known(run.spec.run_id)
    assert archived(tmp_path) == [run.spec.run_id]
    process.turn()
    assert process.value("efapulse_archive_pending_results") == 0
    assert process.value("efapulse_archive_results_total", store="local") == 1
    process.kill()


def test_what_was_counted_and_not_archived_is_archived_by_the_next_process_and_not_counted_again(tmp_path: Path) -> None:
    store = MemoryStore()
    first = Process(tmp_path, store)
    run = first.measure()
    first.control.handle(Finished(run))
    first.turn()
    first.turn()
    first.kill()
    assert archived(tmp_path) == []

    second = Process(tmp_path, store, first.now)
    assert not second.known(run.spec.run_id)
    before = second.value("efapulse_runs_total", probe="mooncake", outcome="ok", reason="ok")
    second.control.handle(Finished(run))  # adopted, and reported again
    second.archive.turn()
    second.turn()
    second.turn()
    assert archived(tmp_path) == [run.spec.run_id]
    assert second.durable == [run.spec.run_id]
    assert second.value("efapulse_runs_total", probe="mooncake", outcome="ok", reason="ok") == before
    second.kill()


def test_what_the_archive_had_although_nobody_heard_of_it_is_not_there_twice(tmp_path: Path) -> None:
    store = MemoryStore()
    first = Process(tmp_path, store)
    run = first.measure()
    first.control.handle(Finished(run))
    first.turn()
    first.archive.turn()
    first.kill()  # on disk, and the loop never knew
    second = Process(tmp_path, store, first.now)
    second.control.handle(Finished(run))
    second.archive.turn()
    second.turn()
    assert archived(tmp_path) == [run.spec.run_id]
    assert second.durable == [run.spec.run_id]
    second.kill()


def test_a_lost_journal_is_made_good_from_the_archive(tmp_path: Path) -> None:
    first = Process(tmp_path, MemoryStore())
    run = first.measure()
    first.control.handle(Finished(run))
    first.archive.turn()
    first.kill()
    second = Process(tmp_path, MemoryStore(), first.now + 3600)
    assert second.value("efapulse_node_last_measured_timestamp_seconds", node="a", probe="mooncake") is None
    second.archive.turn()
    second.turn()
    for node in ("a", "b"):
        assert second.value("efapulse_node_last_measured_timestamp_seconds", node=node, probe="mooncake") == run.finished
        assert second.value("efapulse_node_healthy", node=node, probe="mooncake") == 1
    assert not second.value("efapulse_runs_total", probe="mooncake", outcome="ok", reason="ok")
    second.kill()


def test_a_name_that_another_instance_has_now_starts_clean(tmp_path: Path) -> None:
    first = Process(tmp_path, MemoryStore())
    run = first.measure()
    first.control.handle(Finished(run))
    first.archive.turn()
    first.kill()
    again = [replace(node, instance_id="i-new") if node.name == "a" else node for node in first.nodes]
    second = Process(tmp_path, MemoryStore(), first.now + 3600, nodes=again)
    second.archive.turn()
    second.turn()
    assert second.value("efapulse_node_healthy", node="a", probe="mooncake") is None
    assert second.value("efapulse_node_healthy", node="b", probe="mooncake") == 1
    second.kill()


def test_the_control_loop_never_waits_for_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("in the way")
    process = Process(tmp_path, MemoryStore())
    run = process.measure()
    process.archive.turn()
    before = time.monotonic()
    process.control.handle(Finished(run))
    process.turn()
    assert time.monotonic() - before < 2
    assert process.durable == []
    assert process.value("efapulse_archive_trouble", store="local") == 1
    assert process.value("efapulse_archive_write_failures_total", store="local", trouble="disk") == 1


def test_without_an_archive_a_run_that_an_archiving_leader_left_is_done(tmp_path: Path) -> None:
    store = MemoryStore()
    ledger = Ledger(Journal(), archiving=True)
    ledger.finished("run-1", AT)
    flush(ledger.journal, store, 0.0)
    assert list(ledger.durable(AT)) == []
    assert not ledger.settled("run-1")
    later = Ledger(Journal.loaded(store.load()))
    assert later.settled("run-1")
