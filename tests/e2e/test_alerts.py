"""From a fault to the webhook: real exporters with injected faults, a real Prometheus, a real Alertmanager with the sample routing.

Old and new of both (2.42 with 0.25, 3.16 with 0.35) watch the same exporters. Every installation is a `cluster` of its own, so that they
do not inhibit each other:

    nodes    the service's control loop on a simulated fabric with a slow node and one that fell back, and an endpoint that is not there
    fabric   the same with a closed security group
    serving  an exporter whose canaries are not disaggregated and give a wrong answer
    pair     two replicas of an exporter; the leader is killed while an alert fires

`for` and windows are shortened by the options of `efa-pulse rules`, nothing else of the rules is changed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alertmanager
import prometheus
import pytest
import yaml
from alertmanager import Inbox
from prometheus import VERSIONS, Prometheus
from publishing import canary_verdict, kv_verdict
from thismachine import free_port

from dashboards.rules import options, render
from dashboards.rules.catalogue import ALERTS
from exporter.config.server import Server
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from probes.reasons import Reason
from probes.result import Integrity, Pd

SECONDS = 150.0
FABRIC = {name: {"transport": "efa"} for name in ("mooncake", "nixl", "nccl")} | {"uccl-ep": {"enabled": False}}
GONE = {"name": "chat", "url": "http://127.0.0.1:1", "model": "m", "prompts": {
    "short": {"schedule": {"interval": "10s"}, "params": {"total_timeout": 8}}, "long": {"enabled": False}}}
SLOW, FALLEN = "sim-00003", "sim-00005"


class Exporter:
    """A publisher and its server in this process."""

    def __init__(self, *, leads: bool = True) -> None:
        self.publisher = Publisher("1.2.3", cluster=True)
        self.publisher.leading(leads)
        self.publisher.commit()
        self.server = MetricsServer(Server(listen="127.0.0.1:0"), lambda: self.publisher.snapshot)
        self.server.start()
        self.address = f"127.0.0.1:{self.server.address[1]}"


@dataclass
class Rig:
    """Everything that runs. `watches` are, by version, the Prometheus and what its Alertmanager sent; `simulated` processes of fabrics."""

    watches: dict[str, tuple[Prometheus, Inbox]]
    serving: Exporter
    leader: Exporter
    standby: Exporter
    simulated: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def inboxes(self) -> list[Inbox]:
        """What came."""
        return [inbox for _, inbox in self.watches.values()]

    def until(self, holds: Callable[[Inbox], bool], what: str) -> None:
        """Wait until both have been told."""
        for which, (_, inbox) in self.watches.items():
            inbox.until(holds, SECONDS, f"{what} ({which})")

    def told(self, receiver: str, name: str, **labels: str) -> None:
        """Wait until this receiver has got this alert."""
        self.until(lambda box: name in box.names(receiver, **labels), f"{name} {labels}")

    def counted(self, promql: str, least: float) -> None:
        """Wait until both Prometheus see at least this value."""
        for server, _ in self.watches.values():
            server.until(promql, lambda value: value is not None and value >= least, seconds=90)


def shortened() -> dict[str, Any]:
    """The shipped rules, with the waits of minutes cut to seconds."""
    alerts: dict[str, Any] = {name: {"for": "3s"} for name, alert in ALERTS.items() if alert.wait != "0s"}
    alerts["EfaPulseCanaryDown"]["parameters"] = {"window": "40s", "failures": 2}
    alerts["EfaPulseAbsent"]["for"] = "30s"  # longer than it takes until the first scrape
    return render.rule_groups(options.build({"alerts": alerts, "settings": {"bridge": "30s"}}))


@contextlib.contextmanager
def simulated(folder: Path, name: str, *faults: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    config = folder / f"{name}.yaml"
    config.write_text(yaml.safe_dump({"probes": FABRIC, "canary": {"targets": [GONE]}}))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "exporter", "simulate", "--nodes", "10", "--hours", "1", "-c", str(config), "--serve", address,
               *(word for fault in faults for word in ("--fault", fault))]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield address, process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """The whole session of a process that we started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("alerts")
    rules = folder / "rules.yaml"
    rules.write_text(render.text(shortened()))
    serving, leader, standby = Exporter(), Exporter(), Exporter(leads=False)
    with contextlib.ExitStack() as stack:
        for one in (serving, leader, standby):
            stack.callback(one.server.close)
        nodes, first = stack.enter_context(simulated(folder, "nodes", f"slow_node:{SLOW}", f"tcp_fallback:{FALLEN}"))
        fabric, second = stack.enter_context(simulated(folder, "fabric", "closed_security_group:all"))
        scraped = {"nodes": [nodes], "fabric": [fabric], "serving": [serving.address], "pair": [leader.address, standby.address]}
        jobs = [{"job_name": "efa-pulse", "static_configs": [{"targets": hosts, "labels": {"cluster": name}}
                                                             for name, hosts in scraped.items()]}]
        watches: dict[str, tuple[Prometheus, Inbox]] = {}
        for which in VERSIONS:
            own = folder / which
            own.mkdir()
            inbox = stack.enter_context(alertmanager.inbox())
            routing = alertmanager.sample_routing(inbox.port, group_wait="1s", group_interval="2s")
            address = stack.enter_context(alertmanager.running(alertmanager.binary(which), own, routing))
            server = stack.enter_context(prometheus.running(prometheus.binaries(which), own, jobs, rule_files=[rules],
                alertmanager=address))
            watches[which] = server, inbox
        yield Rig(watches, serving, leader, standby, {"nodes": first, "fabric": second})


@pytest.mark.timeout(400)
def test_a_slow_node_and_one_that_fell_back_are_named_and_nobody_else(rig: Rig) -> None:
    rig.told("tickets", "EfaPulseNodeBad", cluster="nodes", node=SLOW)
    rig.told("tickets", "EfaPulseTransportFallback", cluster="nodes", node=FALLEN)
    for inbox in rig.inboxes:
        assert {labels["node"] for _, labels in inbox.alerts() if labels.get("cluster") == "nodes" and "node" in labels} == {SLOW, FALLEN}
        assert inbox.names(cluster="nodes", node=FALLEN) == {"EfaPulseTransportFallback"}
        assert not inbox.names(cluster="nodes") & {"EfaPulsePairBad", "EfaPulseFabricBroken"}
        grouped = [body for _, body in inbox.messages if body["groupLabels"].get("node") == SLOW]
        assert {alert["labels"]["node"] for body in grouped for alert in body["alerts"]} == {SLOW}


@pytest.mark.timeout(400)
def test_an_endpoint_that_is_gone_pages(rig: Rig) -> None:
    rig.told("pager", "EfaPulseCanaryDown", cluster="nodes", target="chat")
    for inbox in rig.inboxes:
        alert = next(alert for _,
            body in inbox.messages for alert in body["alerts"] if alert["labels"]["alertname"] == "EfaPulseCanaryDown")
        assert alert["annotations"]["runbook_url"].endswith("/EfaPulseCanaryDown.md")
        assert alert["annotations"]["summary"].startswith("chat (router) ")


@pytest.mark.timeout(400)
def test_a_broken_fabric_pages_and_mutes_nodes_pairs_and_the_canary(rig: Rig) -> None:
    rig.told("pager", "EfaPulseFabricBroken", cluster="fabric")
    rig.counted('sum(efapulse_canary_requests_total{cluster="fabric", result="connect_failed"})', 3)
    time.sleep(6)
    for inbox in rig.inboxes:
        muted = {"EfaPulseCanaryDown", "EfaPulseNodeBad", "EfaPulsePairBad", "EfaPulseTransportFallback"}
        assert not inbox.names(cluster="fabric") & muted


@pytest.mark.timeout(400)
def test_disaggregation_that_is_none_is_a_ticket_and_a_wrong_answer_pages(rig: Rig) -> None:
    publisher = rig.serving.publisher
    publisher.declare_canary("chat", "pair", "long", pods=True)
    publisher.commit()
    rig.counted('sum(efapulse_pd_disaggregation_total{cluster="serving"})', 0)

    def answered(run_id: str, pd: Pd) -> None:
        publisher.run_finished(canary_verdict(run_id=run_id, route="pair", prompt="long", pd=pd))

    for number in range(5):
        answered(f"c-{number}", Pd(route="pair", disaggregation="no", evidence="counters", why="no bytes moved"))
    answered("wrong", Pd(route="pair", integrity=Integrity(verdict="mismatch")))
    publisher.commit()
    rig.told("tickets", "EfaPulsePdNotDisaggregated", cluster="serving")
    rig.told("pager", "EfaPulseCanaryIntegrity", cluster="serving")
    for inbox in rig.inboxes:
        assert "EfaPulseCanaryDown" not in inbox.names(cluster="serving")


def about_the_pair(inbox: Inbox, status: str) -> int:
    """How many messages of the bad node of `pair` came."""
    return sum(labels["alertname"] == "EfaPulseNodeBad" and labels.get("cluster") == "pair" for _, labels in inbox.alerts(status))


@pytest.mark.timeout(400)
def test_a_leader_that_dies_while_an_alert_fires_makes_no_second_message_and_no_end(rig: Rig) -> None:
    for one in (rig.leader, rig.standby):
        one.publisher.node_seen("a", time.time(), ["mooncake"])
    slow = kv_verdict(("a", "b"), reason=Reason.BELOW_FLOOR, finished=time.time())
    rig.leader.publisher.run_finished(slow, health={"a": False, "b": True})
    rig.leader.publisher.commit()
    rig.until(lambda inbox: about_the_pair(inbox, "firing") > 0, "the bad node")
    kept = rig.leader.publisher.kept("a", "mooncake")
    assert kept is not None
    rig.leader.server.close()
    time.sleep(8)
    rig.standby.publisher.restore("a", "mooncake", kept)
    rig.standby.publisher.leading(True)
    rig.standby.publisher.commit()
    rig.counted('sum(efapulse_leader{cluster="pair"})', 1)
    time.sleep(28)  # the last word of the dead leader no longer counts after half a minute
    for inbox in rig.inboxes:
        assert about_the_pair(inbox, "firing") == 1
        assert about_the_pair(inbox, "resolved") == 0
    rig.standby.publisher.run_finished(kv_verdict(("a", "b"), finished=time.time()), health={"a": True, "b": True})
    rig.standby.publisher.commit()
    rig.until(lambda inbox: about_the_pair(inbox, "resolved") > 0, "the end")
    for inbox in rig.inboxes:
        assert about_the_pair(inbox, "firing") == 1


@pytest.mark.timeout(400)
def test_the_last_exporter_that_goes_is_told_by_its_absence(rig: Rig) -> None:
    for inbox in rig.inboxes:
        assert "EfaPulseAbsent" not in inbox.names()
    for process in rig.simulated.values():
        end(process)
    for one in (rig.serving, rig.leader, rig.standby):
        one.server.close()
    rig.told("pager", "EfaPulseAbsent")
