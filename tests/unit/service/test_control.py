"""The control loop: ticks become runs, runs become verdicts, and what is published follows. The launcher here only remembers."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from remembering import RememberingLauncher

from exporter.config import Config
from exporter.config.restart import needs_restart
from exporter.control import Control
from exporter.events import Event, Finished, Loaded, Stop
from exporter.judge.verdict import Verdict
from exporter.publish.publisher import Publisher
from exporter.runs import Run, RunSpec, missing_result
from exporter.scheduler import Scheduler, Tick
from probes.reasons import Outcome, Reason

NOW = 1_790_000_000.0


class Loop:
    """A control loop that is turned by hand."""

    def __init__(self, tmp_path: Path, config: Config) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.launcher = RememberingLauncher()
        self.publisher = Publisher("test")
        self.scheduler = Scheduler(self.events, clock=lambda: NOW)
        self.verdicts: list[Verdict] = []
        self.control = Control(config, events=self.events, launcher=self.launcher, scheduler=self.scheduler, publisher=self.publisher,
                               secrets_dir=tmp_path, clock=lambda: NOW)
        self.control.listen(self.verdicts.append)

    def tick(self, job_id: str, lag: float = 0.25) -> None:
        self.control.handle(Tick(job_id, NOW - lag, NOW))

    def finish(self, spec: RunSpec, reason: Reason = Reason.ENGINE_MISSING) -> None:
        results = tuple(missing_result(spec, rank, reason, "said so", NOW, NOW + 1) for rank in range(spec.world_size))
        self.control.handle(Finished(Run(spec, results, NOW, NOW + 1)))

    @property
    def page(self) -> str:
        return b"".join(segment.text for segment in self.publisher.snapshot.classic.segments).decode()

    def value(self, name: str, **labels: str) -> float | None:
        """One sample of the page, as a scraper reads it."""
        return next((sample.value for family in text_string_to_metric_families(self.page) for sample in family.samples
                     if sample.name == name and sample.labels == labels), None)


def config(**more: Any) -> Config:
    return Config.model_validate({
        "inventory": {"mode": "static", "nodes": [{"name": "a"}, {"name": "b"}]},
        "canary": {"targets": [{"name": "chat", "url": "http://h", "model": "m", **more}]},
    })


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path, config())


def test_a_tick_starts_the_run_that_the_configuration_asks_for(loop: Loop) -> None:
    loop.tick("nixl/a--b")
    (spec,) = loop.launcher.started
    assert (spec.probe, spec.target, spec.nodes, spec.transport, spec.labels["job"]) == ("nixl", "a--b", ("a", "b"), "any", "nixl/a--b")
    assert spec.run_id.startswith("nixl-")
    assert loop.value("efapulse_scheduler_lag_seconds_count") == 1


def test_a_second_run_of_a_node_waits_for_the_first(loop: Loop) -> None:
    loop.tick("nixl/a--b")
    loop.tick("mooncake/a--b")
    assert [spec.probe for spec in loop.launcher.started] == ["nixl"]
    loop.finish(loop.launcher.started[0])
    assert [spec.probe for spec in loop.launcher.started] == ["nixl", "mooncake"]


def test_a_finished_run_is_judged_published_and_told(loop: Loop) -> None:
    loop.tick("nixl/a--b")
    loop.finish(loop.launcher.started[0])
    assert [(verdict.outcome, verdict.reason) for verdict in loop.verdicts] == [(Outcome.UNKNOWN, Reason.ENGINE_MISSING)]
    assert loop.value("efapulse_runs_total", probe="nixl", outcome="unknown", reason="engine_missing") == 1


def test_counters_stand_at_zero_before_anything_ran(loop: Loop) -> None:
    assert loop.value("efapulse_runs_total", probe="nixl", outcome="ok", reason="ok") == 0
    assert loop.value("efapulse_canary_requests_total", target="chat", route="router", prompt="long", result="ok") == 0


def test_a_canary_carries_its_prompt_and_route(loop: Loop) -> None:
    loop.tick("canary/chat/long")
    assert loop.launcher.started[0].labels == {"job": "canary/chat/long", "prompt": "long", "route": "router"}


def test_a_key_that_cannot_be_read_is_a_run_that_could_not_start_and_never_in_the_spec(tmp_path: Path) -> None:
    loop = Loop(tmp_path, config(key={"env": "EFA_PULSE_TEST_NO_SUCH_KEY"}))
    loop.tick("canary/chat/short")
    assert loop.launcher.started == []
    assert loop.verdicts[0].reason is Reason.LAUNCH_FAILED
    assert "EFA_PULSE_TEST_NO_SUCH_KEY" in loop.verdicts[0].message
    loop.tick("canary/chat/short")
    assert len(loop.verdicts) == 2, "the lane is free again"


def test_a_key_from_the_environment_reaches_the_worker_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EFA_PULSE_TEST_KEY", "sk-very-secret")
    loop = Loop(tmp_path, config(key={"env": "EFA_PULSE_TEST_KEY"}))
    loop.tick("canary/chat/short")
    path = Path(loop.launcher.started[0].spec["key_file"])
    assert path.read_text() == "sk-very-secret"
    assert path.stat().st_mode & 0o077 == 0
    assert "sk-very-secret" not in str(loop.launcher.started[0])


def test_a_reload_changes_the_jobs_and_removes_what_left(loop: Loop) -> None:
    loop.tick("nixl/a--b")
    loop.finish(loop.launcher.started[0])
    assert 'node="b"' in loop.page
    smaller = Config.model_validate({"inventory": {"mode": "static", "nodes": [{"name": "a"}]}})
    loop.control.handle(Loaded(smaller, None, NOW))
    assert 'node="b"' not in loop.page
    assert 'target="chat"' not in loop.page
    assert loop.value("efapulse_config_last_reload_successful") == 1
    loop.tick("nixl/a--b")
    assert len(loop.launcher.started) == 1, "a tick of a job that is gone starts nothing"


def test_a_refused_configuration_leaves_the_last_good_one(loop: Loop) -> None:
    loop.control.handle(Loaded(None, "line 3: no", NOW))
    assert loop.value("efapulse_config_last_reload_successful") == 0
    loop.tick("nixl/a--b")
    assert len(loop.launcher.started) == 1


@pytest.mark.parametrize(("change", "path"), [
    ({"server": {"listen": ":1"}}, "server"), ({"metrics": {"max_series": 2000}}, "metrics"), ({"launch": {"grace": "1s"}}, "launch.grace"),
    ({"launch": {"local": {"network_namespaces": True}}}, "launch.local"), ({"logging": {"level": "debug"}}, "logging"),
    ({"kubernetes": {"max_jobs": 3}}, "kubernetes"),
    ({"planning": {"gates": {"tolerations": []}}}, "planning.gates.tolerations"),
])
def test_settings_that_a_reload_cannot_change_are_named(change: dict[str, Any], path: str) -> None:
    assert needs_restart(Config(), Config.model_validate(change)) == [path]
    assert needs_restart(Config(), Config.model_validate({"launch": {"concurrency": 3}})) == []


def test_a_run_of_a_target_that_left_meanwhile_brings_its_series_not_back(loop: Loop) -> None:
    loop.tick("canary/chat/short")
    without = Config.model_validate({"inventory": {"mode": "static", "nodes": [{"name": "a"}, {"name": "b"}]}})
    loop.control.handle(Loaded(without, None, NOW))
    loop.finish(loop.launcher.started[0])
    assert 'target="chat"' not in loop.page


def test_a_listener_that_fails_does_not_end_the_loop(loop: Loop) -> None:
    def broken(verdict: Verdict) -> None:
        raise RuntimeError("listener")

    loop.control.listen(broken)
    loop.tick("nixl/a--b")
    loop.finish(loop.launcher.started[0])
    loop.tick("mooncake/a--b")
    assert len(loop.launcher.started) == 2


def test_nothing_starts_after_stop(loop: Loop) -> None:
    loop.tick("nixl/a--b")
    loop.tick("mooncake/a--b")
    loop.control.handle(Stop())
    loop.finish(loop.launcher.started[0])
    assert len(loop.launcher.started) == 1
    assert len(loop.verdicts) == 1, "what ends during the stop is still judged"
