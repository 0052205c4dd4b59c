"""Which due jobs start: lanes, caps and order."""

from __future__ import annotations

from exporter.config import Config, Job
from exporter.dispatch import Caps, Dispatcher

CONFIG = Config.model_validate({
    "inventory": {"mode": "static", "nodes": [{"name": name} for name in "abcd"]},
    "canary": {"targets": [{"name": name, "url": "http://h", "model": "m"} for name in ("x", "y")]},
})
JOBS = {job.id: job for job in CONFIG.jobs()}


def ids(jobs: list[Job]) -> list[str]:
    return [job.id for job in jobs]


def dispatcher(*due: str, probes: int = 8, canaries: int = 8) -> Dispatcher:
    one = Dispatcher(Caps(probes, canaries))
    for job_id in due:
        assert one.due(JOBS[job_id])
    return one


def test_disjoint_pairs_run_together_and_the_longest_waiting_goes_first() -> None:
    one = dispatcher("nixl/c--d", "nixl/a--b", "mooncake/b--c")
    assert ids(one.ready()) == ["nixl/c--d", "nixl/a--b"]


def test_a_node_is_never_in_two_runs_of_any_probe() -> None:
    one = dispatcher("nixl/a--b")
    one.started(JOBS["nixl/a--b"], "r1")
    one.due(JOBS["mooncake/b--c"])
    one.due(JOBS["node/a"])
    one.due(JOBS["mooncake/c--d"])
    assert ids(one.ready()) == ["mooncake/c--d"]
    one.finished("r1")
    assert ids(one.ready()) == ["mooncake/b--c", "node/a"]


def test_one_request_at_a_time_for_a_canary_target() -> None:
    one = dispatcher("canary/x/short", "canary/x/long", "canary/y/short")
    assert ids(one.ready()) == ["canary/x/short", "canary/y/short"]


def test_probes_and_canaries_have_caps_of_their_own() -> None:
    one = dispatcher("nixl/a--b", "nixl/c--d", "canary/x/short", "canary/y/short", probes=1, canaries=1)
    assert ids(one.ready()) == ["nixl/a--b", "canary/x/short"]


def test_a_job_that_waits_or_runs_is_not_queued_again() -> None:
    one = dispatcher("nixl/a--b")
    assert not one.due(JOBS["nixl/a--b"])
    one.started(JOBS["nixl/a--b"], "r1")
    assert not one.due(JOBS["nixl/a--b"])
    one.finished("r1")
    assert one.due(JOBS["nixl/a--b"])


def test_a_reload_forgets_what_waits_and_keeps_what_runs() -> None:
    one = dispatcher("nixl/a--b", "nixl/c--d")
    one.started(JOBS["nixl/a--b"], "r1")
    one.keep(["mooncake/a--b"])
    assert one.waiting == []
    assert list(one.running) == ["r1"]
    assert one.finished("r1") == JOBS["nixl/a--b"]
    assert one.finished("r1") is None
