"""Our server and prometheus_client with the same 50,000 series, each in a process of its own, and a client that asks them in turn."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import multiprocessing
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import bcrypt
import prometheus_client
import trustme
from bench.report import quantile
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.parser import text_string_to_metric_families
from publishing import canary_verdict, kv_verdict, samples, text_of

from exporter.config.server import Server
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer

SERIES = 50_000
NODES = 1400
RESULTS_PER_SECOND = 5.0
ANSWER_SECONDS = 60.0
GOAL_SECONDS = 0.025
GOAL_RATIO = 10.0
PEER = "prometheus_client.generate_latest"
AUTHORIZATION = "Basic cHJvbWV0aGV1czpwYXNz"


def fill(publisher: Publisher) -> None:
    """A little more than 50,000 series: 1,400 nodes and five canary targets."""
    for probe in ("node", "mooncake", "nixl", "canary"):
        publisher.declare_probe(probe)
    for i in range(0, NODES, 2):
        for node in pair(i):
            publisher.node_seen(node, 1.7e9 + i, ["mooncake", "nixl"])
            publisher.run_finished(kv_verdict((node,), "node", measurements=[], transport=None, finished=1.7e9 + i))
        for probe in ("mooncake", "nixl"):
            publisher.run_finished(kv_verdict(pair(i), probe, finished=1.7e9 + i))
    for target in range(5):
        publisher.declare_canary(f"chat-{target}", "router", "short")
        for i in range(20):
            publisher.run_finished(canary_verdict(f"chat-{target}", ttft=0.05 * (i + 1), run_id=f"canary-{i}"))
    publisher.commit()


def pair(i: int) -> tuple[str, str]:
    """Names of two nodes as EKS gives them."""
    return f"ip-10-{i // 62500}-{i // 250 % 250}-{i % 250}.ec2.internal", f"ip-10-{i // 62500}-{i // 250 % 250}-{i % 250 + 1}.ec2.internal"


def serve_ours(link: Connection, folder: str, busy: bool) -> None:
    """In a process: a plain and a protected server over one publisher; with `busy`, results arrive and are published all the time."""
    publisher = Publisher("bench", max_series=2 * SERIES)
    fill(publisher)
    plain = MetricsServer(Server(listen="127.0.0.1:0"), lambda: publisher.snapshot)
    protected = MetricsServer(Server(listen="127.0.0.1:0", web_config=Path(folder, "web-config.yml")), lambda: publisher.snapshot)
    plain.start()
    protected.start()
    commits: list[float] = []
    stop = threading.Event()

    def publish() -> None:
        for turn in itertools.count():
            if stop.wait(1 / RESULTS_PER_SECOND):
                return
            began = time.perf_counter()
            publisher.run_finished(kv_verdict(pair(turn * 2 % NODES), "mooncake", finished=1.8e9 + turn))
            publisher.commit()
            commits.append(time.perf_counter() - began)

    control = threading.Thread(target=publish)
    if busy:
        control.start()
    link.send((plain.address, protected.address, publisher.snapshot.series, text_of(publisher.snapshot.classic)))
    link.recv()
    stop.set()
    if busy:
        control.join()
    link.send((commits, resident()))
    plain.close()
    protected.close()


def serve_theirs(link: Connection, page: str) -> None:
    """In a process: the same families as real metric objects of prometheus_client, rendered on request."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = prometheus_client.CollectorRegistry()
    load(registry, page)
    if samples(prometheus_client.generate_latest(registry).decode()) != samples(page):
        raise RuntimeError("the two pages differ")
    app = make_wsgi_app(registry)
    link.send(True)
    while (wish := link.recv()) is not None:
        began = time.perf_counter()
        if wish == "text":
            prometheus_client.generate_latest(registry)
        else:
            environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "HTTP_ACCEPT_ENCODING": "gzip"}
            b"".join(app(environ, lambda *_: None))
        link.send(time.perf_counter() - began)
    link.send(resident())


def load(registry: prometheus_client.CollectorRegistry, page: str) -> None:
    """Make the metric objects that give this page."""
    for family in text_string_to_metric_families(page):
        names = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        if family.type == "histogram":
            _load_histogram(registry, family, names)
            continue
        kind = prometheus_client.Counter if family.type == "counter" else prometheus_client.Gauge
        metric = kind(family.name, family.documentation, names, registry=registry)
        for sample in family.samples:
            child: Any = metric.labels(**sample.labels) if names else metric
            child.inc(sample.value)


def _load_histogram(registry: prometheus_client.CollectorRegistry, family: Any, names: list[str]) -> None:
    bounds = sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})
    metric = prometheus_client.Histogram(family.name, family.documentation, names, buckets=bounds, registry=registry)
    before: dict[int, float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        child: Any = metric.labels(**labels) if names else metric
        if sample.name.endswith("_bucket"):
            child._buckets[bounds.index(float(sample.labels["le"]))].set(sample.value - before.get(id(child), 0.0))
            before[id(child)] = sample.value
        elif sample.name.endswith("_sum"):
            child._sum.set(sample.value)


class Rig:
    """Both processes. `series` is what our page holds."""

    def __init__(self, ours: Connection, theirs: Connection, plain: tuple[str, int], protected: tuple[str, int], series: int,
                 context: ssl.SSLContext) -> None:
        self._ours, self._theirs = ours, theirs
        self.plain, self.protected, self.series, self.context = plain, protected, series, context

    def theirs(self, wish: str) -> float:
        """Seconds that prometheus_client takes for the page: `text`, or `gzip` with its own compression."""
        self._theirs.send(wish)
        return float(_receive(self._theirs))

    def end(self) -> tuple[list[float], int, int]:
        """Stop both. Seconds of each of our publications, resident bytes of our process and of theirs."""
        self._ours.send(None)
        commits, ours = _receive(self._ours)
        self._theirs.send(None)
        return commits, ours, int(_receive(self._theirs))


@contextlib.contextmanager
def rig(folder: Path, *, busy: bool = True) -> Iterator[Rig]:
    """Start both processes; they are gone when the block ends."""
    context = protect(folder)
    spawn = multiprocessing.get_context("spawn")
    ours, ours_far = spawn.Pipe()
    theirs, theirs_far = spawn.Pipe()
    processes = [spawn.Process(target=serve_ours, args=(ours_far, str(folder), busy), daemon=True)]
    processes[0].start()
    ours_far.close()  # so that the death of the process is an end of file, not a wait
    try:
        plain, protected, series, page = _receive(ours)
        processes.append(spawn.Process(target=serve_theirs, args=(theirs_far, page), daemon=True))
        processes[1].start()
        theirs_far.close()
        _receive(theirs)
        yield Rig(ours, theirs, plain, protected, series, context)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
            process.join(5)


def protect(folder: Path) -> ssl.SSLContext:
    """A web configuration with TLS and basic authentication, and a client context that trusts it."""
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
    issued.private_key_pem.write_to_path(folder / "server.key")
    hashed = bcrypt.hashpw(b"pass", bcrypt.gensalt(10)).decode()
    (folder / "web-config.yml").write_text(
        f"tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{prometheus: '{hashed}'}}\n")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return context


def scrape(address: tuple[str, int], *, accept: str, encoding: str, context: ssl.SSLContext | None = None,
           expect: int = 0) -> tuple[float, bytes]:
    """One scrape on a fresh connection, as the bytes come: seconds from before the connection to after the last byte, and the body."""
    request = (f"GET /metrics HTTP/1.1\r\nHost: bench\r\nAccept: {accept}\r\nAccept-Encoding: {encoding}\r\n"
               f"Authorization: {AUTHORIZATION}\r\nConnection: close\r\n\r\n").encode()
    parts: list[bytes] = []
    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        sock: socket.socket = stack.enter_context(socket.create_connection(address, timeout=ANSWER_SECONDS))
        if context is not None:
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1"))
        sock.sendall(request)
        while data := sock.recv(1 << 20):
            parts.append(data)
    seconds = time.perf_counter() - began
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the scrape failed: {head[:80]!r}")
    text = gzip.decompress(body) if encoding == "gzip" else body
    lines = sum(not line.startswith(b"#") for line in text.splitlines())
    if lines < expect:
        raise RuntimeError(f"{lines} series on the page, {expect} are needed")
    return seconds, body


def row(name: str, what: str, ours: list[float], theirs: list[float], peer: str, series: int) -> dict[str, Any]:
    """A row: our p99 against the goal, and the ratio of the medians."""
    value, ratio = quantile(ours, 0.99), quantile(theirs, 0.5) / quantile(ours, 0.5)
    goal = f"p99 <= {GOAL_SECONDS * 1e3:.0f} ms, ratio >= {GOAL_RATIO:.0f}"
    return {"name": name, "what": f"{what}, {series} series, p99 of {len(ours)} (ratio of medians)", "value": value, "unit": "s",
            "peer": peer, "peer_value": quantile(theirs, 0.99), "ratio": ratio, "goal": goal,
            "holds": value <= GOAL_SECONDS and ratio >= GOAL_RATIO, "versions": versions()}


def versions() -> dict[str, str]:
    """What was compared."""
    return {"prometheus-client": version("prometheus-client")}


def resident() -> int:
    """Resident bytes of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def _receive(link: Connection) -> Any:
    if not link.poll(ANSWER_SECONDS * 2):
        raise RuntimeError("a process of the benchmark does not answer")
    try:
        return link.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark died") from None
