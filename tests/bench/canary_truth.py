"""What the canary benchmarks share: our client and a widely used load generator against one endpoint that stamps its own sends.

Both time the same requests to the simulated endpoint, in turns, plain and with TLS, while the machine is busy: 50,000 series are scraped
once a second from a server that publishes results, and Mooncake probes run one after the other. Every error is taken against the
endpoint: its kernel's arrival time of the request and its clock right before each write. The endpoint has its own process, our client too.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import trustme
from bench import canary_peer, kv_pair, scrape_rig
from bench.report import quantile

from probes.canary.client import CanaryRun, measure
from probes.canary.params import CanaryParams
from probes.canary.scenario import MODEL

GAP = 0.02
TTFT = 0.05
TURNS = 2
START_SECONDS = 60.0
TURN_SECONDS = 240.0


@dataclass
class Errors:
    """Errors of one side, seconds; of TPOT a share of the true value. `events` and `unresolved` count token events."""

    ttft: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tpot: list[float] = field(default_factory=list)
    events: int = 0
    unresolved: int = 0
    untimed: int = 0


@dataclass(frozen=True)
class Comparison:
    """One protocol: our errors, the peer's, and what else ran meanwhile. `why` says why there is no peer."""

    protocol: str
    ours: Errors
    theirs: Errors
    scrapes: int
    probes: int
    why: str = ""


def compare(requests: int, tokens: int) -> list[Comparison]:
    """Plain and TLS, `requests` of `tokens` tokens a side and protocol. The peer is installed on first use."""
    peer = canary_peer.install()
    out = []
    with tempfile.TemporaryDirectory(prefix="efa-pulse-canary-") as name, busy_machine(Path(name)) as load:
        folder = Path(name)
        for protocol in ("plain", "TLS"):
            ours, theirs = Errors(), Errors()
            before = load.counts()
            with endpoint(folder if protocol == "TLS" else None) as (url, ca_file):
                truth = Truth(url, ca_file)
                for _ in range(TURNS):
                    add_ours(ours, truth, requests // TURNS, tokens)
                    if isinstance(peer, canary_peer.Peer):
                        add_theirs(theirs, truth, peer, requests // TURNS, tokens)
            scrapes, probes = (after - earlier for after, earlier in zip(load.counts(), before, strict=True))
            out.append(Comparison(protocol, ours, theirs, scrapes, probes, "" if isinstance(peer, canary_peer.Peer) else peer))
    return out


def row(name: str, what: str, unit: str, goal: str, limit: float, comparison: Comparison, ours: list[float],
        theirs: list[float]) -> dict[str, Any]:
    """One line: p99 of our errors against the goal, beside the peer's. The ratio tells how many times larger the peer's is."""
    value = quantile(ours, 0.99)
    peer_value = quantile(theirs, 0.99) if theirs else None
    busy = f"{len(ours)} of them while {comparison.scrapes} scrapes and {comparison.probes} probes ran"
    return {"name": name, "what": f"p99 error of {what}, {comparison.protocol}, {busy}", "value": value, "unit": unit,
            "peer": canary_peer.NAME if theirs else f"{canary_peer.NAME} skipped: {comparison.why}", "peer_value": peer_value,
            "ratio": peer_value / value if peer_value is not None and value > 0 else None, "goal": goal, "holds": value <= limit,
            "versions": {canary_peer.PACKAGE: canary_peer.VERSION, "openssl": ssl.OPENSSL_VERSION}}


@dataclass(frozen=True)
class Truth:
    """The endpoint's own account of the last requests."""

    url: str
    ca_file: Path | None

    def served(self) -> list[dict[str, Any]]:
        """The last requests, oldest first."""
        context = ssl.create_default_context(cafile=str(self.ca_file)) if self.ca_file else None
        with urllib.request.urlopen(f"{self.url}/simulated/requests", timeout=30, context=context) as response:
            found: list[dict[str, Any]] = json.load(response)
        return found


def sends(served: dict[str, Any]) -> list[int]:
    """When each token event was sent, nanoseconds."""
    return [sent["before"] for sent in served["sends"] for _ in sent["tokens"]]


def add_ours(errors: Errors, truth: Truth, requests: int, tokens: int) -> None:
    """Requests of our client in a process of its own, compared with the endpoint's account."""
    params = CanaryParams(url=truth.url, model=MODEL, max_tokens=tokens, ca_file=truth.ca_file)
    for run in _in_process(_measure, params, requests):
        served = next(one for one in truth.served() if one["id"] == run.stream.request_id)
        stamps = sends(served)
        stream = run.stream
        errors.events += stream.token_events
        errors.unresolved += stream.unresolved_events
        if stream.status != "ok" or stream.clock != "kernel" or stream.ttft is None or stream.tpot is None:
            errors.untimed += 1
            continue
        errors.ttft.append(abs(stream.ttft - (stamps[0] - served["received"]) / 1e9))
        errors.tpot.append(abs(stream.tpot / ((stamps[-1] - stamps[0]) / 1e9 / (tokens - 1)) - 1))
        pairs = [(i, j) for i, j in itertools.pairwise(range(tokens)) if _resolved(run.arrivals, i) and _resolved(run.arrivals, j)]
        errors.gaps += [abs(gap - (stamps[j] - stamps[i]) / 1e9) for gap, (i, j) in zip(stream.itl, pairs, strict=False)]


def add_theirs(errors: Errors, truth: Truth, peer: canary_peer.Peer, requests: int, tokens: int) -> None:
    """The same of the peer. Its requests are the last ones the endpoint served, in order: it sends one at a time."""
    records = peer.measure(truth.url, truth.ca_file, requests, tokens, TURN_SECONDS)
    for record, served in zip(records, truth.served()[-len(records):], strict=True):
        stamps = sends(served)
        errors.events += len(stamps)
        errors.ttft.append(abs(record.ttft - (stamps[0] - served["received"]) / 1e9))
        errors.tpot.append(abs(record.tpot / ((stamps[-1] - stamps[0]) / 1e9 / (tokens - 1)) - 1))
        errors.gaps += [abs(gap - (b - a) / 1e9) for gap, (a, b) in zip(record.gaps, itertools.pairwise(stamps), strict=True)]


@contextlib.contextmanager
def endpoint(tls_folder: Path | None) -> Iterator[tuple[str, Path | None]]:
    """The simulated endpoint as a process: its address, and the authority to trust when `tls_folder` has room for its files."""
    command = [sys.executable, "-m", "probes.canary.simulated", "--listen", "127.0.0.1:0", "--ttft", str(TTFT), "--gap", str(GAP)]
    ca_file = None
    if tls_folder is not None:
        authority = trustme.CA()
        ca_file, certificate = tls_folder / "canary-ca.pem", tls_folder / "canary-server.pem"
        authority.cert_pem.write_to_path(str(ca_file))
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        command += ["--tls-cert", str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1], ca_file
        finally:
            process.kill()


class Load:
    """What keeps the machine busy."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.scrapes, self.probes = spawn.Value("i", 0), spawn.Value("i", 0)

    def counts(self) -> tuple[int, int]:
        """Scrapes and probe runs so far."""
        return self.scrapes.value, self.probes.value


@contextlib.contextmanager
def busy_machine(folder: Path) -> Iterator[Load]:
    """50,000 series scraped once a second, gzip and all, and Mooncake probes one after the other, until the block ends."""
    spawn = multiprocessing.get_context("spawn")
    load = Load()
    scrape_rig.protect(folder)
    link, far = spawn.Pipe()
    processes = [spawn.Process(target=scrape_rig.serve_ours, args=(far, str(folder), True), daemon=True)]
    processes[0].start()
    try:
        if not link.poll(START_SECONDS):
            raise RuntimeError("the server of the 50,000 series did not start")
        address, _, series, _ = link.recv()
        if series < 0.9 * scrape_rig.SERIES:
            raise RuntimeError(f"the server has only {series} series")
        processes += [spawn.Process(target=_scrape, args=(address, load.scrapes), daemon=True),
                      spawn.Process(target=_probe, args=(load.probes,))]
        for process in processes[1:]:
            process.start()
        until = time.monotonic() + START_SECONDS
        while not all(load.counts()):
            if time.monotonic() > until:
                raise RuntimeError(f"the load did not start: scrapes and probes so far {load.counts()}")
            time.sleep(0.2)
        yield load
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(20)
            process.kill()


def _scrape(address: tuple[str, int], count: Any) -> None:
    while True:
        began = time.monotonic()
        scrape_rig.scrape(address, accept="text/plain", encoding="gzip")
        count.value += 1
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _probe(count: Any) -> None:
    while True:
        kv_pair.probe_result("mooncake", {})
        count.value += 1


def _measure(link: Connection, params: CanaryParams, requests: int) -> None:
    link.send([measure(params) for _ in range(requests)])


def _in_process(target: Any, params: CanaryParams, requests: int) -> list[CanaryRun]:
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    process: SpawnProcess = spawn.Process(target=target, args=(far, params, requests), daemon=True)
    process.start()
    try:
        if not near.poll(TURN_SECONDS):
            raise RuntimeError(f"the canary did not end its requests in {TURN_SECONDS:g} s")
        runs: list[CanaryRun] = near.recv()
    finally:
        process.kill()
        process.join(10)
    return runs


def _resolved(arrivals: list[int | None], index: int) -> bool:
    """Whether a token event was the last of its read: those of one read have the same arrival time."""
    return index + 1 == len(arrivals) or arrivals[index] != arrivals[index + 1]
