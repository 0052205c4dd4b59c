"""Two replicas of the whole service over 200 fake nodes: the leader is killed in mid-round, its heir is stopped, and nothing is lost,
measured twice or left over, whoever leads.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.controlplane import eventually
from e2e.hollowcluster import REPO
from e2e.installed import Installation

from exporter.kube.pause import Pause, write
from exporter.kube.watch import Change, Watch

Install = Callable[..., Installation]
Json = dict[str, Any]
NODES = 200
PAIRS = NODES // 2
INTERVAL = 60
JOURNAL_SECONDS = 30
"""The journal writes a shard at most once in this time: what ended in it is not yet durable."""


class Replica:
    """`efa-pulse run` as a process of its own, with the log that it writes."""

    def __init__(self, folder: Path, name: str, config: Json) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**config, "server": {"listen": f"127.0.0.1:{self.port}"}}))
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "exporter", "run", "-c", str(path)], stdout=log, stderr=log, cwd=REPO,
                                             env={**os.environ, "HOSTNAME": name})

    def said(self, event: str) -> list[Json]:
        """The lines of the log about this event."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [one for one in lines if one.get("event") == event]

    def finished(self) -> list[str]:
        """Ids of the runs whose end it has judged and published, in order."""
        return [str(one["run_id"]) for one in self.said("run finished")]

    def leads(self) -> bool:
        return self.values("leader").get("") == 1.0

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def values(self, name: str, label: str = "node") -> dict[str, float]:
        """A family's values by one label."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found: dict[str, float] = {}
        for labels, value in re.findall(rf"^efapulse_{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE):
            match = re.search(rf'{label}="([^"]*)"', labels)
            found[match[1] if match else ""] = float(value)
        return found

    def end(self, number: int) -> None:
        self._process.send_signal(number)
        self._process.wait(60)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def tail(self) -> str:
        return self._log.read_text()[-3000:]


class Made:
    """Every Job that was ever made, by name, with how many objects bore it."""

    def __init__(self, here: Installation) -> None:
        self.uids: dict[str, set[str]] = {}
        self._watch: Watch[tuple[str, str]] = Watch(here.api, here.jobs_path, lambda one: (one["metadata"]["name"], one["metadata"]["uid"]),
                                                    on_change=self._look)
        self._watch.start()
        assert self._watch.wait(20)

    def _look(self, changes: list[Change[tuple[str, str]]]) -> None:
        for change in changes:
            name, uid = change.value
            self.uids.setdefault(name, set()).add(uid)

    def close(self) -> None:
        self._watch.close()


@pytest.fixture
def replicas(install: Install, tmp_path: Path) -> Iterator[tuple[Installation, Callable[[str], Replica]]]:
    here = install(pods={"annotations": {"efa-pulse.test/outcome": "ok"}})
    config = {
        "inventory": {"mode": "kubernetes"},
        "kubernetes": {**here.config.model_dump(mode="json", by_alias=True, exclude_unset=True), "kubeconfig": str(here.cluster.kubeconfig),
                       "leader": {"duration": "8s", "renew_deadline": "5s", "retry": "1s"}, "witness": {"enabled": False}},
        "planning": {"spread": 0.5, "gates": {"min_age": "0s"}, "budget": {"fabric_time": 1, "gpu_time": 1, "concurrency": 20}},
        "schedule": {"start_spread": "1s"}, "logging": {"level": "info"},
        "probes": {"node": {"enabled": False}, "nixl": {"enabled": False},
                   "mooncake": {"deadline": "30s", "schedule": {"interval": f"{INTERVAL}s", "jitter": "0s"}}}}
    started: list[Replica] = []

    def start(name: str) -> Replica:
        started.append(Replica(tmp_path, name, config))
        return started[-1]

    try:
        yield here, start
    except BaseException:
        for one in started:
            print(one.tail())
        raise
    finally:
        for one in started:
            one.close()


@pytest.mark.timeout(400)
def test_two_replicas_and_a_killed_leader(replicas: tuple[Installation, Callable[[str], Replica]]) -> None:
    here, start = replicas
    nodes = here.nodes(NODES)
    fence, made = here.fence(), Made(here)
    first, second = start("first"), start("second")
    eventually(lambda: first.ready() and second.ready(), seconds=60, what="both are ready")
    eventually(lambda: first.leads() or second.leads(), seconds=30, what="one leads")
    leader, heir = (first, second) if first.leads() else (second, first)

    # The leader dies in the middle of the first round, when some of its results are durable and some are not.
    eventually(lambda: len(leader.finished()) >= PAIRS // 2, seconds=120, what="half a round is done")
    before = leader.values("node_last_measured_timestamp_seconds")
    assert not heir.leads()
    assert heir.finished() == [], "only the leader takes results in"
    leader.end(signal.SIGKILL)
    eventually(heir.leads, seconds=20, every=0.2, what="the other one leads within 20 s")

    # Nothing that the dead one had published is missing, and no value goes back in time.
    def no_gap() -> bool:
        after = heir.values("node_last_measured_timestamp_seconds")
        return all(after.get(node, 0.0) >= at for node, at in before.items())

    eventually(no_gap, seconds=60, every=1.0, what="every value of the dead leader is published again")
    eventually(lambda: len(set(leader.finished()) | set(heir.finished())) >= PAIRS + PAIRS // 4, seconds=150, every=1.0,
               what="the round is finished and the next one under way")

    # A clean stop in mid-round, with a fresh replica beside it.
    third = start("third")
    eventually(third.ready, seconds=60, what="the third is ready")
    heir.end(signal.SIGTERM)
    eventually(third.leads, seconds=20, every=0.2, what="a clean end hands over at once")
    eventually(lambda: len(third.finished()) >= 20, seconds=120, every=1.0, what="it goes on")

    # Paused, everything that runs comes to its end and no Job stays.
    write(here.api, here.config.namespace, Pause("the test ends"), by="test")
    eventually(lambda: not here.jobs(), seconds=120, every=1.0, what="no orphan after two minutes")
    finished = [*leader.finished(), *heir.finished(), *third.finished()]
    assert fence.broken == [], "no node ever had two probe pods"
    assert {len(uids) for uids in made.uids.values()} == {1}, "no run was launched twice"
    assert len(set(finished)) == len(made.uids), "every Job's result was taken in, and nothing else was"
    twice = [run for run, count in Counter(finished).items() if count > 1]
    lost_with_the_leader = set(leader.finished()[-PAIRS:])
    assert set(twice) <= lost_with_the_leader, "taken in again only where the dead leader's own taking in was not durable"
    measured = third.values("node_last_measured_timestamp_seconds")
    assert set(measured) == set(nodes), "every node was measured"
    made.close()
