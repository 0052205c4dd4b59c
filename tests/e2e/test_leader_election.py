"""One planner at a time, on the real API server with the default times: hand-over after a kill, after a clean end, and after a pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane import eventually
from e2e.installed import Installation

from exporter.config.kubernetes import Leader
from exporter.kube.api import ApiError
from exporter.leader import Election

Install = Callable[..., Installation]
HAND_OVER = 20.0


def leads(one: Election) -> bool:
    return one.leading


class Candidate:
    """A replica in its own process."""

    def __init__(self, here: Installation, name: str, folder: Path) -> None:
        self.name, self._out = name, folder / name
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen([sys.executable, "-m", "e2e.standing", str(here.cluster.kubeconfig), here.config.namespace, name,
                                         str(self._out)], env=environ)

    def looks(self) -> list[tuple[float, bool]]:
        """Every look at `leading`, with its time."""
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        return [(float(when), flag == "1") for when, flag in (line.split() for line in lines if len(line.split()) == 2)]

    def leads(self) -> bool:
        looks = self.looks()
        return bool(looks) and looks[-1][1]


@pytest.fixture
def here(install: Install) -> Installation:
    return install()


@pytest.fixture
def candidates(here: Installation, tmp_path: Path) -> Iterator[Callable[[str], Candidate]]:
    made: list[Candidate] = []

    def make(name: str) -> Candidate:
        made.append(Candidate(here, name, tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.process.send_signal(signal.SIGCONT)
        one.process.kill()
        one.process.wait()


@pytest.mark.timeout(120)
def test_hand_over_after_a_kill_and_no_leader_wakes_up_from_a_pause(here: Installation, candidates: Callable[[str], Candidate]) -> None:
    a = candidates("a")
    eventually(a.leads, what="the only one leads")
    b = candidates("b")
    time.sleep(3.0)
    assert not b.leads()

    stopped_at = time.monotonic()
    a.process.send_signal(signal.SIGSTOP)
    eventually(b.leads, seconds=HAND_OVER + 5, what="the other one takes over from one that is stopped")
    assert time.monotonic() - stopped_at < HAND_OVER
    woken_at = time.monotonic()
    a.process.send_signal(signal.SIGCONT)
    time.sleep(3.0)
    assert not [when for when, leads in a.looks() if leads and when > woken_at], "not for one moment does it think that it still leads"
    assert b.leads()

    killed_at = time.monotonic()
    b.process.kill()
    eventually(a.leads, seconds=HAND_OVER + 5, what="the first one leads again")
    assert time.monotonic() - killed_at < HAND_OVER
    together = [when for when, leads in a.looks() if leads and when < b.looks()[-1][0] and when > woken_at]
    assert together == []


def test_a_clean_end_hands_over_at_once(here: Installation) -> None:
    changes: list[tuple[str, bool]] = []
    one, other = (Election(here.api, Leader(), namespace=here.config.namespace, identity=name,
                           on_change=lambda leads, name=name: changes.append((name, leads)))  # type: ignore[misc]
                  for name in ("one", "other"))
    one.turn()
    other.turn()
    assert (one.leading, other.leading, other.holder) == (True, False, "one")
    one.close()
    other.turn()
    assert (one.leading, other.leading) == (False, True)
    assert changes == [("one", True), ("one", False), ("other", True)]
    lease = here.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{here.config.namespace}/leases/efa-pulse")
    assert lease["spec"]["leaseTransitions"] == 1


def test_a_leader_that_cannot_renew_stops_leading_by_itself(here: Installation) -> None:
    clock = [1000.0]
    one = Election(here.api, Leader(), namespace=here.config.namespace, identity="one", clock=lambda: clock[0])
    one.turn()
    assert one.leading
    here.cluster.kill("kube-apiserver")
    try:
        clock[0] += 9.9
        one.turn()
        assert leads(one)
        assert one.trouble
        clock[0] += 0.2
        assert not leads(one), "without a turn: by the clock alone"
    finally:
        here.cluster.restart("kube-apiserver")
        here.cluster.await_api()
    one.turn()
    assert one.leading


def test_a_renewal_counts_from_when_it_was_asked_for(here: Installation) -> None:
    clock = [1000.0]
    slow = Election(here.api, Leader(), namespace=here.config.namespace, identity="slow", clock=lambda: clock[0])
    slow.turn()
    real = here.api.get

    def late(path: str, *args: object, **more: object) -> dict[str, object]:
        found = real(path)
        clock[0] += 8.0
        return found

    here.api.get = late  # type: ignore[method-assign]
    try:
        slow.turn()
    finally:
        del here.api.get
    clock[0] += 2.5
    assert not slow.leading, "10.5 s after it asked"


def test_one_that_lost_the_race_does_not_lead(here: Installation) -> None:
    one, other = (Election(here.api, Leader(), namespace=here.config.namespace, identity=name) for name in ("one", "other"))
    real = here.api.create

    def first_the_other(path: str, body: dict[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        here.api.create = real  # type: ignore[method-assign]
        other.turn()
        return real(path, body, timeout=timeout)

    here.api.create = first_the_other  # type: ignore[method-assign]
    one.turn()
    assert (one.leading, other.leading) == (False, True)


def test_clocks_of_others_decide_nothing(here: Installation) -> None:
    clock = [1000.0]
    waiting = Election(here.api, Leader(), namespace=here.config.namespace, identity="waiting", clock=lambda: clock[0])
    path = f"/apis/coordination.k8s.io/v1/namespaces/{here.config.namespace}/leases"
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "efa-pulse"},
            "spec": {"holderIdentity": "far-away", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"}}
    try:
        here.api.create(path, body)
    except ApiError as error:
        pytest.fail(str(error))
    waiting.turn()
    clock[0] += 14.0
    waiting.turn()
    assert not waiting.leading, "the time in the Lease is long past, but it was seen only 14 s ago"
    clock[0] += 1.5
    waiting.turn()
    assert waiting.leading
