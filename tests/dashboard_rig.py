"""Everything that the dashboards show, from real parts: a served simulation, a publisher that tells one of everything, a witness over a
made sysfs tree, and a real Prometheus that scrapes the three.

`python tests/dashboard_rig.py FOLDER [SECONDS]` keeps it up for pictures and prints the address of Prometheus.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus import Binaries, Prometheus, binaries, running
from publishing import canary_verdict, kv_verdict, measurement, preflight_verdict, tell_of_a_fleet
from sysfs_tree import SysfsTree
from thismachine import end, free_port

from exporter.config.server import Server
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from probes.reasons import Reason
from probes.result import Pd

ROOT = Path(__file__).parent.parent
FAULTS = ("slow_node:5", "dead_nic:3,device=2", "tcp_fallback:9", "flapping:12", "unknown:all,severity=0.05")
START_SECONDS = 120.0
WITNESSED = "sim-00003"
TURNS_BAD = 45
"""The turn of the publisher in which the pair of `told-c` and `told-d` becomes slow."""
_OFTEN = {"interval": "60s", "jitter": 0}


def configuration(canary: str) -> dict[str, Any]:
    """A fleet that is measured often enough for a test to see it move."""
    efa = {"transport": "efa", "deadline": "40s"}
    quick = {"schedule": {"interval": "1s", "jitter": 0, "stagger": False}, "params": {"total_timeout": 1}}
    return {
        "probes": {"mooncake": {**efa, "schedule": _OFTEN}, "nixl": {**efa, "schedule": _OFTEN}, "nccl": {**efa, "schedule": _OFTEN},
                   "node": {"schedule": _OFTEN, "deadline": "20s"}},
        "planning": {"spread": 0},
        "canary": {"targets": [{"name": "chat", "url": canary, "model": "simulated-pd", "prompts": {
            "short": quick, "long": {"schedule": {"interval": "5s", "jitter": 0}, "params": {"total_timeout": 5}}}}]},
        "metrics": {"node_interval": "1h"},
    }


@dataclass
class Rig:
    """Where the parts are. `targets` are scrape jobs with host:port."""

    targets: dict[str, str]
    status: str


@contextlib.contextmanager
def exporters(folder: Path, nodes: int = 16, hours: float = 0.2, *, simulated_only: bool = False) -> Iterator[Rig]:
    """The exporters, up until the block ends."""
    with contextlib.ExitStack() as stack:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        simulated_pd = [sys.executable, "-m", "probes.canary.simulated", "--listen", "127.0.0.1:0", "--ttft", "0.05", "--gap", "0.005"]
        endpoint = stack.enter_context(_process(simulated_pd, env, folder / "endpoint.log"))
        config = folder / "simulated.yaml"
        config.write_text(yaml.safe_dump(configuration(_address(endpoint, folder / "endpoint.log"))))
        arguments = [argument for fault in FAULTS for argument in ("--fault", fault)]
        command = [sys.executable, "-m", "exporter", "simulate", "--nodes", str(nodes), "--hours", str(hours), "--config", str(config),
                   "--serve", "127.0.0.1:0", *arguments]
        service = stack.enter_context(_process(command, env, folder / "simulate.log"))
        simulated = _address(service, folder / "simulate.log")
        targets = {"efa-pulse": simulated.removeprefix("http://")}
        if not simulated_only:
            targets["told"] = stack.enter_context(_told())
            port = free_port()
            SysfsTree.p5en(folder / "sys")
            stack.enter_context(_process([sys.executable, "-m", "probes.witness", "--sysfs", str(folder / "sys"), "--listen",
                                          f"127.0.0.1:{port}", "--node", WITNESSED], env, folder / "witness.log"))
            targets["witness"] = f"127.0.0.1:{port}"
        yield Rig(targets, simulated)


@contextlib.contextmanager
def scraped(rig: Rig, found: Binaries, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the exporters every three seconds, with our own rules."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in rig.targets.items()]
    with running(found, folder, jobs, interval="3s", rule_files=[ROOT / "dashboards" / "rules" / "efa-pulse.rules.yaml"]) as prometheus:
        yield prometheus


@contextlib.contextmanager
def _told() -> Iterator[str]:
    """A publisher that is told one of everything, again and again, and its server's host:port."""
    publisher = Publisher("0.1.0", cluster=True)
    server = MetricsServer(Server(listen="127.0.0.1:0"), lambda: publisher.snapshot)
    over = threading.Event()

    def tell() -> None:
        for probe in ("node", "mooncake", "nixl", "nccl", "canary"):
            publisher.declare_probe(probe)
        for route in ("router", "baseline"):
            publisher.declare_canary("assistant", route, "short")
        number = 0
        while not over.wait(1.0):
            number += 1
            now = time.time()
            tell_of_a_fleet(publisher, "told-a", now)
            publisher.run_finished(kv_verdict(("told-a", "told-b"), transport="tcp", reason=Reason.BELOW_FLOOR, finished=now,
                                              measurements=[measurement(cold=0.01)]))
            turned = Reason.OK if number < TURNS_BAD else Reason.BELOW_FLOOR
            publisher.run_finished(kv_verdict(("told-c", "told-d"), reason=turned, finished=now))
            publisher.run_finished(preflight_verdict("told-a", 14, reason=Reason.DEVICES_MISSING, expected_devices=16))
            for route, ttft in (("router", 0.3), ("baseline", 0.2)):
                publisher.run_finished(canary_verdict("assistant", route=route, ttft=ttft, run_id=f"c-{number}", finished=now))
            publisher.run_finished(canary_verdict("assistant", reason=Reason.TIMEOUT_FIRST_TOKEN, finished=now))
            for verdict in ("ok", "crosstalk"):
                publisher.run_finished(canary_verdict("pd", route="pair", prompt="long", transport="efa_rdma", finished=now,
                                                      pd=_served_apart(verdict)))
            publisher.scheduler_tick(now)
            publisher.run_started(0.01)
            publisher.runs_left_out("busy")
            publisher.config_loaded(True, now)
            publisher.leading(True)
            if number in (5, 10):  # what cannot be published is counted, and is a long text in the log
                publisher.run_finished(object())  # type: ignore[arg-type]
            publisher.commit()

    thread = threading.Thread(target=tell, name="tell", daemon=True)
    server.start()
    server.ready(True)
    thread.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        over.set()
        thread.join(5)
        server.close(1.0)


def _served_apart(integrity: str) -> Pd:
    """What a canary of known KV size shows of a healthy pair, and of an answer that is checked so."""
    return Pd.model_validate({
        "route": "pair", "disaggregation": "yes", "evidence": "counters", "why": "as many KV bytes moved as expected", "kv_bytes": 1 << 27,
        "kv_transfer": 0.05, "kv_bytes_per_second": 2.6e9, "failed_transfers": 1, "expired": 1, "queue": 0.01, "prefill_seconds": 0.1,
        "transfer": 0.05, "handover": 0.01, "impure_tokens": (1, 2), "integrity": {"verdict": integrity}})


@contextlib.contextmanager
def _process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        yield process
    finally:
        end(process)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that a process says it listens at."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = re.search(r"http://[0-9.]+:\d+", log.read_text(errors="replace"))
        if found:
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"{log.stem} did not say where it is:\n{log.read_text(errors='replace')[-3000:]}")


def main(arguments: list[str]) -> int:
    """Keep everything up for pictures."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    seconds = float(arguments[1]) if len(arguments) > 1 else 600.0

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    with contextlib.suppress(KeyboardInterrupt), exporters(folder, nodes=32) as rig, scraped(
            rig, binaries("system"), folder) as prometheus:
        sys.stdout.write(f"prometheus {prometheus.url}\nexporter {rig.status}\n")
        sys.stdout.flush()
        time.sleep(seconds)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
