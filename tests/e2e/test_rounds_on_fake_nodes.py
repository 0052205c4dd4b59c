"""Rounds on the real control plane, with fake nodes whose pods end with result documents: what holds whatever goes wrong around them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.cell import Door
from e2e.controlplane import eventually
from e2e.installed import Installation, JobCount, pairs, spec

from exporter.kube.api import Api, ApiError, configuration
from exporter.launch import names
from exporter.launch.kubernetes import CLI
from probes.reasons import Reason
from probes.result import Phase

Install = Callable[..., Installation]
OK_PODS = {"annotations": {"efa-pulse.test/outcome": "ok"}}


@pytest.mark.timeout(180)
def test_full_rounds_over_200_nodes(install: Install) -> None:
    here = install(pods=OK_PODS, max_jobs=100)
    nodes = here.nodes(200)
    fence, launched = here.fence(), here.launcher()
    assert launched.launcher.wait(20)
    before = here.api.requests_by_method()
    for number in range(2):
        order = nodes if number == 0 else [*nodes[1:], nodes[0]]
        wanted = pairs(order, f"round-{number}")
        for one in wanted:
            launched.launcher.start(one)
        runs = [launched.next(120) for _ in wanted]
        assert {run.spec.run_id for run in runs} == {one.run_id for one in wanted}, "no run is lost, none is reported twice"
        for run in runs:
            assert [result.reason for result in run.results] == [Reason.OK, Reason.OK]
            assert {result.node for result in run.results} == set(run.spec.nodes), "the result names the node, whichever rank went there"
            assert all(Phase.PULL in result.phases for result in run.results)
        launched.idle()
    assert fence.broken == []
    assert fence.seen == set(nodes)
    assert here.jobs() == []
    after = here.api.requests_by_method()
    per_run = {method: (after[method] - before.get(method, 0)) / 200 for method in ("POST", "DELETE")}
    assert per_run == {"POST": 1.0, "DELETE": 1.0}, "a run costs two requests"
    assert (after["GET"] - before["GET"]) / 200 <= 0.1, "everything else comes from watches, but for a look before a slow run is given up"


@pytest.mark.timeout(180)
def test_a_round_outlives_the_api_server_and_cut_watches(install: Install) -> None:
    here = install(pods=OK_PODS)
    nodes = here.nodes(40)
    fence, launched = here.fence(), here.launcher()
    wanted = pairs(nodes, "storm")
    for one in wanted[:10]:
        launched.launcher.start(one)
    launched.until(wanted[0].run_id, "pulling")
    here.cluster.kill("kube-apiserver")
    for one in wanted[10:]:
        launched.launcher.start(one)
    time.sleep(1.0)
    here.cluster.restart("kube-apiserver")
    for _ in range(5):
        time.sleep(0.7)
        here.cluster.door.cut()
    here.cluster.await_api()
    runs = [launched.next(90) for _ in wanted]
    assert Counter(run.spec.run_id for run in runs) == Counter(one.run_id for one in wanted)
    # Fake pods do not wait for each other as real ones do: with the scheduler away, one may end before the other has a node.
    assert {result.reason for run in runs for result in run.results} <= {Reason.OK, Reason.UNSCHEDULED}
    launched.idle()
    assert fence.broken == []
    assert here.jobs() == []


@pytest.mark.timeout(180)
def test_a_round_outlives_a_slow_etcd(install: Install) -> None:
    here = install(pods=OK_PODS)
    nodes = here.nodes(40)
    fence, launched = here.fence(), here.launcher()
    wanted = pairs(nodes, "slow")
    for one in wanted:
        launched.launcher.start(one)
    for _ in range(4):
        with here.cluster.parts["etcd"].frozen():
            time.sleep(3.0)
        time.sleep(0.5)
    runs = [launched.next(90) for _ in wanted]
    assert Counter(run.spec.run_id for run in runs) == Counter(one.run_id for one in wanted)
    # Fake pods do not wait for each other as real ones do: with the scheduler held up, one may end before the other has a node.
    assert {result.reason for run in runs for result in run.results} <= {Reason.OK, Reason.UNSCHEDULED}
    launched.idle()
    assert fence.broken == []
    assert here.jobs() == []


@pytest.mark.timeout(120)
def test_nothing_is_concluded_from_what_a_dead_connection_did_not_show(install: Install) -> None:
    here = install(pods=OK_PODS, bind_limit=5)
    (wanted,) = pairs(here.nodes(2), "silence")
    launched = here.launcher()
    assert launched.launcher.wait(20)
    launched.launcher.start(wanted)
    launched.until(wanted.run_id, "pending")
    with here.cluster.door.stalled():
        time.sleep(8.0)
        assert launched.finished.empty(), "the bind limit has passed as far as the launcher can see"
    assert {result.reason for result in launched.next().results} <= {Reason.OK, Reason.UNSCHEDULED}
    launched.idle()
    assert here.jobs() == []


@pytest.mark.timeout(120)
def test_there_are_never_more_jobs_than_the_cap_even_when_requests_fail_in_between(install: Install) -> None:
    here = install(pods=OK_PODS, max_jobs=5)
    nodes = here.nodes(40)
    count, launched = JobCount(here.api, here.jobs_path), here.launcher()
    stop = threading.Event()
    cutter = threading.Thread(target=_cut_until, args=(stop, here.cluster.door))
    wanted = pairs(nodes, "cap")
    try:
        cutter.start()
        for one in wanted:
            launched.launcher.start(one)
        runs = [launched.next(90) for _ in wanted]
    finally:
        stop.set()
        cutter.join()
    launched.idle()
    assert {run.spec.run_id for run in runs} == {one.run_id for one in wanted}
    eventually(lambda: len(count.names) == len(wanted), what="every Job was seen")
    count.close()
    assert 1 <= count.most <= 5


def test_two_launchers_that_plan_the_same_round_make_one_job_per_pair(install: Install) -> None:
    here = install(pods=OK_PODS)
    nodes = here.nodes(12)
    fence, count = here.fence(), JobCount(here.api, here.jobs_path)
    one, other = here.launcher(), here.launcher()
    wanted = pairs(nodes, "twins")
    for each in wanted:
        one.launcher.start(each)
        other.launcher.start(each)
    for launched in (one, other):
        runs = [launched.finished.get(timeout=60) for _ in wanted]
        assert {run.spec.run_id for run in runs} == {each.run_id for each in wanted}
        assert {result.reason for run in runs for result in run.results} == {Reason.OK}
    for each in wanted:
        one.launcher.release(each.run_id)
    one.idle()
    count.close()
    assert len(count.names) == len(wanted)
    assert fence.broken == []


def test_the_same_run_started_twice_is_one_job(install: Install) -> None:
    here = install()
    (wanted,) = pairs(here.nodes(2), "same")
    one, other = here.launcher(), here.launcher(adopt=None)
    one.launcher.start(wanted)
    one.until(wanted.run_id, "running")
    other.launcher.start(wanted)
    other.until(wanted.run_id, "running")
    assert len(here.jobs()) == 1
    assert other.launcher.running() == [wanted.run_id], "what is there already is followed"
    other.launcher.start(wanted)
    other.launcher.cancel(wanted.run_id)
    assert {result.reason for result in other.next().results} == {Reason.CANCELLED}
    other.idle()
    assert other.finished.empty(), "its end is reported once"


def test_overlapping_pairs_never_share_a_node(install: Install) -> None:
    here = install(pods=OK_PODS)
    a, b, c = here.nodes(3)
    fence, launched = here.fence(), here.launcher()
    wanted = [spec(pair, f"overlap-{number}") for number, pair in enumerate([(a, b), (b, c), (c, a)] * 2)]
    for one in wanted:
        launched.launcher.start(one)
    runs = [launched.next(90) for _ in wanted]
    launched.idle()
    assert fence.broken == []
    for run in runs:
        reasons = {result.reason for result in run.results}
        assert reasons == {Reason.OK} or Reason.OK not in reasons, "half a run is no run"


class TestAfterARestart:
    """The exporter is killed at some point of a run; the next one goes on from what the cluster holds."""

    def test_a_run_that_goes_on_is_adopted(self, install: Install) -> None:
        here = install(pods=OK_PODS)
        nodes = here.nodes(4)
        first = here.launcher()
        for one in pairs(nodes, "adopted"):
            first.launcher.start(one)
        first.until(pairs(nodes, "adopted")[0].run_id, "pulling")
        first.close()
        second = here.launcher()
        runs = [second.next() for _ in range(2)]
        assert sorted((run.spec for run in runs), key=lambda one: one.run_id) == pairs(nodes, "adopted"), "it is the run that was started"
        assert {result.reason for run in runs for result in run.results} == {Reason.OK}
        second.idle()
        assert here.jobs() == []

    def test_a_result_that_was_not_yet_durable_is_reported_again(self, install: Install) -> None:
        here = install(pods=OK_PODS)
        (wanted,) = pairs(here.nodes(2), "again")
        first = here.launcher()
        first.launcher.start(wanted)
        assert first.finished.get(timeout=60).spec.run_id == wanted.run_id
        first.close()
        assert len(here.jobs()) == 1, "the Job stays until its result is durable"
        assert here.launcher().next().spec.run_id == wanted.run_id

    def test_a_result_that_is_durable_is_not_reported_again(self, install: Install) -> None:
        here = install(pods=OK_PODS)
        (wanted,) = pairs(here.nodes(2), "once")
        first = here.launcher()
        first.launcher.start(wanted)
        first.finished.get(timeout=60)
        first.close()
        second = here.launcher(adopt=lambda run_id: run_id == wanted.run_id)
        eventually(lambda: here.jobs() == [], what="the left-over Job is deleted")
        assert second.finished.empty()

    def test_one_that_stands_down_does_nothing_until_it_leads_again(self, install: Install) -> None:
        here = install(pods=OK_PODS)
        (wanted,) = pairs(here.nodes(2), "down")
        one = here.launcher()
        one.launcher.start(wanted)
        assert one.finished.get(timeout=60).spec.run_id == wanted.run_id
        one.launcher.stand_down()
        one.launcher.release(wanted.run_id)
        time.sleep(1.0)
        assert len(here.jobs()) == 1, "only who leads deletes"
        assert one.launcher.running() == []
        one.launcher.adopt(lambda _: False)
        assert one.next().spec.run_id == wanted.run_id, "nobody took its result in: it is reported again"
        one.idle()

    def test_what_cannot_be_read_is_deleted_and_what_others_launched_is_not(self, install: Install) -> None:
        here = install()
        nodes = here.nodes(6)
        first = here.launcher()
        for one in pairs(nodes[:4], "odd"):
            first.launcher.start(one)
        cli = here.launcher(launched_by=CLI)
        by_hand = spec((nodes[4], nodes[5]), "", run_id="by-hand")
        cli.launcher.start(by_hand)
        eventually(lambda: len(here.jobs()) == 3)
        first.close()
        broken = names.job_name(pairs(nodes[:4], "odd")[0])
        here.cluster.call("PATCH", f"{here.jobs_path}/{broken}", {"metadata": {"annotations": {names.RECORD: "{}"}}})
        second = here.launcher()
        left = {names.job_name(pairs(nodes[:4], "odd")[1]), names.job_name(by_hand)}
        eventually(lambda: {job["metadata"]["name"] for job in here.jobs()} == left, what="only the unreadable Job is deleted")
        assert second.launcher.running() == [pairs(nodes[:4], "odd")[1].run_id]

    def test_killed_for_real(self, install: Install, tmp_path: Path) -> None:
        here = install(pods=OK_PODS)
        nodes = here.nodes(20)
        fence, wanted = here.fence(), pairs(nodes, "killed")
        settings = tmp_path / "settings.json"
        config = here.config.model_dump(mode="json", by_alias=True)
        settings.write_text(json.dumps({"kubeconfig": str(here.cluster.kubeconfig), "config": config, "nodes": nodes, "round": "killed",
                                        "out": str(tmp_path / "out")}))
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for moment in (0.4, 0.8, 1.2):
            child = subprocess.Popen([sys.executable, "-m", "e2e.launching", str(settings)], env=environ)
            time.sleep(1.2 + moment)
            child.send_signal(signal.SIGKILL)
            child.wait()
        child = subprocess.Popen([sys.executable, "-m", "e2e.launching", str(settings)], env=environ)
        try:
            eventually(lambda: len(_durable(tmp_path / "out")) == len(wanted), what="every run has a durable result")
            eventually(lambda: here.jobs() == [], what="no orphan is left")
        finally:
            child.terminate()
            child.wait(20)
        assert Counter(_durable(tmp_path / "out")) == Counter(one.run_id for one in wanted), "none twice"
        assert fence.broken == []


def test_removing_the_anchor_removes_every_job(install: Install) -> None:
    here = install()
    nodes = here.nodes(4)
    launched = here.launcher()
    for one in pairs(nodes, "anchored"):
        launched.launcher.start(one)
        launched.until(one.run_id, "running")
    here.cluster.delete(f"{here.probes}/configmaps/{here.config.anchor}")
    runs = [launched.next(60) for _ in range(2)]
    assert {result.reason for run in runs for result in run.results} == {Reason.POD_LOST}
    assert here.jobs() == []
    launched.launcher.start(spec((nodes[0], nodes[1]), "anew"))
    eventually(lambda: len(here.jobs()) == 1, what="the next Job has a new owner")


def test_a_launcher_without_rights_says_so(install: Install) -> None:
    here = install()
    nodes = here.nodes(2)
    powerless = Api(configuration(here.cluster.service_account(here.config.probe_namespace, here.config.pods.service_account)))
    with pytest.raises(ApiError, match="forbidden"):
        powerless.get(here.jobs_path)
    launched = here.launcher(api=powerless)
    eventually(lambda: "forbidden" in launched.launcher.trouble, what="the launcher says what is wrong")
    launched.launcher.start(spec((nodes[0], nodes[1]), "powerless"))
    time.sleep(1.0)
    assert launched.finished.empty(), "a launcher that cannot see the Jobs that are there makes none"


def _cut_until(stop: threading.Event, door: Door) -> None:
    rng = random.Random(5)
    for _ in range(20):
        if stop.wait(rng.uniform(0.2, 1.0)):
            return
        door.cut()


def _durable(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
