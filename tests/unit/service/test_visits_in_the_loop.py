"""Visits of engine pods in the control loop: they share lanes with other canaries, are published, and stop with a pause."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
from publishing import value_of
from remembering import RememberingLauncher

from exporter.config import Config
from exporter.control import Control
from exporter.events import Conditions, Event, Finished, Loaded
from exporter.judge.verdict import Verdict
from exporter.pairing import Pairing
from exporter.publish.publisher import Publisher
from exporter.runs import Run, RunSpec, missing_result
from exporter.scheduler import Scheduler, Tick
from probes.canary.params import CanaryParams
from probes.reasons import Reason

NOW = 1_790_000_000.0
STATIC = [{"name": "p-0", "role": "prefill", "url": "http://10.0.0.1:8000"}, {"name": "d-0", "role": "decode", "url": "http://10.0.0.2:8000"}]


def config(**pd: Any) -> Config:
    return Config.model_validate({"canary": {"targets": [{"name": "chat", "url": "http://h", "model": "m", "stack": "vllm",
                                                          "pd": {"source": {"static": STATIC}, **pd}}]}})


class Visiting:
    """A control loop with a pairing, turned by hand."""

    def __init__(self, tmp_path: Path, config: Config, conditions: Conditions | None = None) -> None:
        events: queue.Queue[Event] = queue.Queue()
        self.launcher, self.publisher, self.verdicts = RememberingLauncher(), Publisher("test"), list[Verdict]()
        pairing = Pairing(clock=lambda: NOW)
        self.control = Control(config, events=events, launcher=self.launcher, scheduler=Scheduler(events, clock=lambda: NOW),
                               publisher=self.publisher, secrets_dir=tmp_path, clock=lambda: NOW, pairing=pairing,
                               conditions=lambda: conditions or Conditions())
        self.control.listen(self.verdicts.append)
        pairing.look()

    def turn(self) -> None:
        self.control.handle(None)

    def tick(self, job_id: str) -> None:
        self.control.handle(Tick(job_id, NOW, NOW))

    def load(self, config: Config) -> None:
        self.control.handle(Loaded(config, None, NOW))

    def finish(self, spec: RunSpec, reason: Reason = Reason.ENGINE_MISSING) -> None:
        results = tuple(missing_result(spec, rank, reason, "said so", NOW, NOW + 1) for rank in range(spec.world_size))
        self.control.handle(Finished(Run(spec, results, NOW, NOW + 1)))

    def value(self, name: str, **labels: str) -> float | None:
        return value_of(self.publisher.snapshot, name, **labels)


@pytest.fixture
def loop(tmp_path: Path) -> Visiting:
    return Visiting(tmp_path, config())


def test_a_pair_is_visited_as_soon_as_it_is_found(loop: Visiting) -> None:
    loop.turn()
    (spec,) = loop.launcher.started
    assert spec.labels == {"job": "canary/chat/pair/p-0/d-0", "prompt": "long", "route": "pair", "prefill": "p-0", "decode": "d-0",
                           "first_contact": "true"}
    params = CanaryParams.model_validate(spec.spec)
    assert (params.url, params.prefill) == ("http://10.0.0.2:8000", "http://10.0.0.1:8000")
    assert loop.value("efapulse_canary_requests_total", target="chat", route="pair", prompt="long", result="ok") == 0


def test_what_came_of_it_is_published_under_its_route(loop: Visiting) -> None:
    loop.turn()
    loop.finish(loop.launcher.started[0], Reason.CONNECT_FAILED)
    assert loop.value("efapulse_canary_requests_total", target="chat", route="pair", prompt="long", result="connect_failed") == 1
    loop.turn()
    assert len(loop.launcher.started) == 1, "not again before its time"


def test_one_request_at_a_time_goes_to_a_target(loop: Visiting) -> None:
    loop.turn()
    loop.tick("canary/chat/short")
    assert len(loop.launcher.started) == 1
    loop.finish(loop.launcher.started[0])
    assert [spec.labels["route"] for spec in loop.launcher.started] == ["pair", "router"]


def test_a_request_through_the_router_is_told_of_the_pods(loop: Visiting) -> None:
    loop.turn()
    loop.finish(loop.launcher.started[0])
    loop.tick("canary/chat/short")
    pages = loop.launcher.started[-1].spec["pd"]["pages"]
    assert [page["pod"] for page in pages] == ["p-0", "d-0"]


def test_nobody_is_visited_during_a_pause(tmp_path: Path) -> None:
    loop = Visiting(tmp_path, config(), Conditions(paused="maintenance"))
    loop.turn()
    assert loop.launcher.started == []


def test_a_target_that_left_the_configuration_is_visited_no_more(loop: Visiting) -> None:
    loop.turn()
    spec = loop.launcher.started[0]
    loop.load(Config())
    loop.finish(spec, Reason.CONNECT_FAILED)
    loop.turn()
    assert len(loop.launcher.started) == 1
    assert loop.value("efapulse_canary_requests_total", target="chat", route="pair", prompt="long", result="connect_failed") is None


def test_a_visit_that_waits_outlives_a_reload(loop: Visiting) -> None:
    loop.tick("canary/chat/short")
    first = loop.launcher.started[0]
    loop.turn()
    loop.load(config())
    loop.finish(first)
    loop.turn()
    assert sorted(spec.labels["route"] for spec in loop.launcher.started) == ["pair", "router"]


def test_a_baseline_without_a_ready_decode_pod_could_not_be_sent(tmp_path: Path) -> None:
    loop = Visiting(tmp_path, Config.model_validate({"canary": {"targets": [{
        "name": "chat", "url": "http://h", "model": "m", "stack": "vllm",
        "pd": {"source": {"static": STATIC[:1]}, "baseline": {"decode": True}}}]}}))
    loop.tick("canary/chat/short/baseline")
    assert loop.verdicts[-1].reason is Reason.LAUNCH_FAILED
    assert "no decode pod of chat is ready" in loop.verdicts[-1].message
