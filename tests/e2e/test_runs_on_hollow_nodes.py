"""Runs whose pods really run: engines between network namespaces, workers that crash, hang, run out of memory, are pulled slowly or
evicted. Results come from pod status alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane import ControlPlane, eventually
from e2e.hollow.settings import Image
from e2e.hollowcluster import PROBE_IMAGE, HollowNodes, this_checkout
from e2e.installed import Installation, spec
from e2e.recording import record

from exporter.launch import flight, manifest
from exporter.runs import Run, RunSpec
from probes.reasons import Outcome, Reason
from probes.result import Phase

Install = Callable[..., Installation]
Json = dict[str, Any]

RATE, SLOW_RATE = 800e6 / 8, 200e6 / 8
SLOW_IMAGE, SERVING_IMAGE = "test/slow-pull:1", "test/serving:1"
LIGHT: Json = {"sizes": [1 << 20, 4 << 20], "operations": ["write", "read"], "seconds": 0.5, "batch": 1}
FAULTY = "faulty_probe:FaultyProbe"


@pytest.fixture(scope="module")
def hollow(cluster: ControlPlane) -> Iterator[HollowNodes]:
    plain = Image(SERVING_IMAGE, path=(str(Path(sys.base_prefix) / "bin"),))
    images = (this_checkout(), this_checkout(SLOW_IMAGE, pull_seconds=5.0), plain)
    with HollowNodes(cluster, "hollow", 4, default_rate="800mbit", rates={"hollow-3": "200mbit"}, images=images) as nodes:
        yield nodes


@pytest.fixture
def here(install: Install, hollow: HollowNodes) -> Installation:
    return install(pods={"image": PROBE_IMAGE})


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the faulty probe run in pods."""
    monkeypatch.setattr(manifest, "pod_of", lambda spec, config: config.pods.nixl if spec.probe == FAULTY else config.pods.of(spec.probe))


def pair(one: int, other: int, probe: str = FAULTY, *, deadline: float = 20.0, round_: str = "r", **params: Any) -> RunSpec:
    return spec((f"hollow-{one}", f"hollow-{other}"), round_, probe, deadline=deadline, params=params)


def by_rank(run: Run) -> tuple[Reason, Reason]:
    return run.results[0].reason, run.results[1].reason


@pytest.mark.parametrize("probe", ["mooncake", "nixl"])
def test_real_transfers_between_two_nodes(here: Installation, probe: str) -> None:
    run = here.launcher().run(pair(0, 1, probe, deadline=60.0, **LIGHT), 90)
    assert by_rank(run) == (Reason.OK, Reason.OK), [result.message for result in run.results]
    assert {result.node for result in run.results} == {"hollow-0", "hollow-1"}
    for result in run.results:
        assert result.evidence is not None
        assert result.evidence.payload_bytes is not None
        assert result.evidence.tcp_bytes is not None
        for payload, tcp in zip(result.evidence.payload_bytes, result.evidence.tcp_bytes, strict=True):
            assert tcp == pytest.approx(payload, rel=0.02, abs=1 << 20), "the kernel's own count of the worker's sockets is the witness"
        assert result.shape["ranks_per_node"] == 1
        assert {Phase.PULL, Phase.RENDEZVOUS, Phase.MEASURE} <= set(result.phases)
    write = next(row for row in run.results[0].measurements if row.operation == "write")
    assert write.wrong == [0, 0], "every byte was compared"
    assert 0.5 * RATE < (write.bandwidth[-1] or 0) < 1.05 * RATE, "as fast as the link, and no faster"


def test_a_slow_link_shows(here: Installation) -> None:
    run = here.launcher().run(pair(2, 3, "mooncake", deadline=60.0, **LIGHT), 90)
    assert by_rank(run) == (Reason.OK, Reason.OK)
    write = next(row for row in run.results[0].measurements if row.operation == "write")
    assert (write.bandwidth[-1] or 0) < 1.05 * SLOW_RATE


@pytest.mark.usefixtures("faulty")
class TestAWorkerThatFails:
    def test_its_partner_keeps_its_own_result(self, here: Installation) -> None:
        launched = here.launcher()
        run = launched.run(pair(0, 1, fault="abort", rank=1, text="I was well"))
        assert by_rank(run)[1] is Reason.ENGINE_CRASHED
        assert "SIGABRT in phase measure" in run.results[1].message
        assert run.results[0].outcome is Outcome.UNKNOWN, "the innocent one is not blamed"
        assert run.results[0].reason is not Reason.POD_LOST, "its pod and its message outlived the other's failure"
        launched.idle()

    def test_both_ranks_past_their_deadline(self, here: Installation) -> None:
        run = here.launcher().run(pair(0, 1, deadline=8.0, fault="hang"))
        assert run.results[0].reason is Reason.DEADLINE
        assert "hung in phase measure" in run.results[0].message
        assert run.results[1].reason in {Reason.DEADLINE, Reason.PEER_LOST}

    def test_a_worker_that_is_killed_leaves_its_mark(self, here: Installation) -> None:
        launched = here.launcher()
        wanted = pair(0, 1, fault="hang", deadline=30.0)
        launched.launcher.start(wanted)
        hanging = eventually(lambda: _measuring(wanted.run_id, rank=0))
        os.kill(hanging, signal.SIGKILL)
        run = launched.finished.get(timeout=30)
        assert run.results[0].reason is Reason.DIED_IN_MEASURE
        assert "killed" in run.results[0].message
        assert run.results[1].reason is Reason.PEER_LOST
        record("killed", _pod(here, 0))

    def test_a_worker_that_cannot_even_end_is_ended_by_the_kubelet(self, here: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(manifest, "POD_MARGIN", 1.0)
        monkeypatch.setattr(here, "config", here.config.model_copy(update={"pull_limit": 4.0}))
        launched = here.launcher()
        wanted = pair(0, 1, deadline=8.0, fault="hang")
        launched.launcher.start(wanted)
        for rank in (0, 1):
            os.kill(eventually(lambda rank=rank: _measuring(wanted.run_id, rank=rank)), signal.SIGSTOP)  # type: ignore[misc]
        run = launched.finished.get(timeout=60)
        assert by_rank(run) == (Reason.DEADLINE, Reason.DEADLINE)
        assert "nor by the pod's" in run.results[0].message
        assert "died in phase measure" in run.results[0].message, "its mark still says where it stood"
        record("pod-deadline", _pod(here, 0))

    def test_out_of_memory(self, install: Install, hollow: HollowNodes) -> None:
        here = install(pods={"image": PROBE_IMAGE, "nixl": {"memory": 32 << 20, "shm": 1 << 20}})
        launched = here.launcher()
        launched.launcher.start(pair(0, 1))
        run = launched.finished.get(timeout=60)
        assert Reason.OOM_KILLED in by_rank(run)
        rank = by_rank(run).index(Reason.OOM_KILLED)
        assert "memory limit" in run.results[rank].message
        record("oom-killed", _pod(here, rank))

    def test_an_evicted_worker(self, here: Installation) -> None:
        launched = here.launcher()
        wanted = pair(0, 1, fault="hang", deadline=60.0)
        launched.launcher.start(wanted)
        eventually(lambda: _measuring(wanted.run_id, rank=0))
        victim = _pod(here, 0)["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim}}
        here.cluster.call("POST", f"{here.probes}/pods/{victim}/eviction", eviction)
        run = launched.next(40)
        assert by_rank(run) == (Reason.EVICTED, Reason.PEER_LOST)
        assert "Eviction" in run.results[0].message

    def test_a_cancelled_run_says_so_and_leaves_nothing(self, here: Installation) -> None:
        launched = here.launcher()
        wanted = pair(0, 1, fault="hang", deadline=60.0)
        launched.launcher.start(wanted)
        eventually(lambda: _measuring(wanted.run_id, rank=0) and _measuring(wanted.run_id, rank=1))
        launched.launcher.cancel(wanted.run_id)
        run = launched.next(20)
        assert by_rank(run) == (Reason.CANCELLED, Reason.CANCELLED)
        launched.idle()
        eventually(lambda: here.pods() == [] and not _supervisors(wanted.run_id), what="no pod and no process is left")


class TestImages:
    def test_ranks_wait_for_the_slowest_pull_outside_their_deadline(self, install: Install, hollow: HollowNodes) -> None:
        here = install(pods={"image": SLOW_IMAGE})
        launched = here.launcher()
        assert launched.run(spec(("hollow-0",), "pull", "node", deadline=15.0)).results[0].reason is Reason.OK
        wanted = pair(0, 1, "mooncake", deadline=15.0, round_="pull", **LIGHT)
        run = launched.run(wanted)
        assert by_rank(run) == (Reason.OK, Reason.OK), [result.message for result in run.results]
        said = [words for one in launched.progress[wanted.run_id] for words in one.values()]
        assert "waiting for the other ranks on hollow-0" in said
        assert all(result.phases[Phase.PULL] >= 4.0 for result in run.results)
        assert all(result.phases[Phase.LAUNCH] < 4.0 for result in run.results)

    def test_an_image_that_is_not_there(self, install: Install, hollow: HollowNodes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flight, "IMAGE_PATIENCE", 2.0)
        here = install(pods={"image": "test/absent:1"})
        launched = here.launcher()
        wanted = pair(0, 1, "mooncake")
        launched.launcher.start(wanted)
        eventually(lambda: len([pod for pod in here.pods() if "ImagePullBackOff" in str(pod["status"])]) == 2)
        record("image-pull", here.pods()[0])
        run = launched.next()
        assert by_rank(run) == (Reason.IMAGE_PULL, Reason.IMAGE_PULL)
        assert "test/absent:1" in run.results[0].message
        eventually(lambda: here.pods() == [], what="pods that cannot be pulled do not pile up")

    def test_a_secret_that_is_not_there(self, install: Install, hollow: HollowNodes) -> None:
        here = install(pods={"image": PROBE_IMAGE}, pull_limit=5)
        here.cluster.delete(f"{here.probes}/secrets/{here.config.secret}")
        run = here.launcher().run(pair(0, 1, "mooncake"))
        assert by_rank(run) == (Reason.LAUNCH_FAILED, Reason.LAUNCH_FAILED)

    def test_the_serving_image_runs_the_probes_that_an_init_container_brings(self, install: Install, hollow: HollowNodes) -> None:
        here = install(pods={"image": PROBE_IMAGE, "node": {"serving_image": SERVING_IMAGE}})
        base = spec(("hollow-2",), "serving", "node")
        run = here.launcher().run(replace(base, labels={**base.labels, "image": "serving"}))
        assert run.results[0].reason is Reason.OK, run.results[0].message
        assert run.results[0].versions["python"]


def test_a_node_that_dies_loses_its_run_and_blames_nobody(install: Install, cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch,
                                                            faulty: None) -> None:
    monkeypatch.setattr(flight, "LATE_SECONDS", 3.0)
    here = install(pods={"image": PROBE_IMAGE})
    with HollowNodes(cluster, "dying", 2) as nodes:
        launched = here.launcher()
        wanted = spec(("dying-0", "dying-1"), "r", FAULTY, deadline=4.0, params={"fault": "hang"})
        launched.launcher.start(wanted)
        eventually(lambda: all("running" in words for words in (launched.progress[wanted.run_id] or [{0: ""}])[-1].values()))
        nodes.kill()
        run = launched.next()
        assert by_rank(run) == (Reason.POD_LOST, Reason.POD_LOST)
        assert "node or kubelet is gone" in run.results[0].message
    launched.idle()


def _pod(here: Installation, rank: int) -> Json:
    return next((pod for pod in here.pods() if pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == str(rank)), {})


def _supervisors(run_id: str) -> dict[int, int]:
    """The workers' first processes in their pods, by rank: those that the containers' starts became."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                environ = dict(one.partition(b"=")[::2] for one in (entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if environ.get(b"EFA_PULSE_RUN_ID") == run_id.encode() and words[1:4] == [b"-m", b"probes", b"run"]:
                found[int(environ[b"EFA_PULSE_RANK"])] = int(entry.name)
    return found


def _measuring(run_id: str, *, rank: int) -> int | None:
    """The rank's first process, once its mark says that it measures."""
    pid = _supervisors(run_id).get(rank)
    try:
        mark = (Path(f"/proc/{pid}/root/dev/termination-log")).read_text()
    except OSError:
        return None
    return pid if '"died_in_measure"' in mark else None
