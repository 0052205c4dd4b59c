"""A prefill and a decode server of real vLLM (CPU build) with a real NIXL connector between them, and the real smg router in front.

Each engine has a network namespace in one cell (see `e2e.cell`): `eth0` leads to the cell's bridge, and `kv0` is a link between the two
engines alone that carries only NIXL's traffic (UCX over TCP), so it can be slowed, cut and counted apart from the requests. The cell ends
with the process that made it, and everything in it with the cell.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from e2e.cell import ADDRESS, Cell, Process

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
VENV = Path(os.environ.get("SERVING_VENV", ROOT / "build" / "serving-venv"))
MODEL = "tiny-llama"
CONTEXT = 2048
BLOCK = 32
KV_BYTES_PER_TOKEN = 2048
INSTALL_SECONDS = 600.0
READY_SECONDS = 600.0
ROUTER_READY_SECONDS = 60.0
ENGINE_PORT, SIDE_PORT, ROUTER_PORT = 8000, 5600, 8080
_CLONE_NEWNET = 0x40000000
Json = dict[str, Any]


class RigError(Exception):
    """The rig cannot be made or does not work; the message says what failed."""


def install() -> None:
    """Make the engines' virtual environment and the model where they are missing. Raises RigError with the output of what failed."""
    _command([str(HERE / "setup.sh"), "install"], "installing the serving engines")
    if not (model_folder() / "tokenizer.json").exists():
        _command([str(VENV / "bin" / "python"), str(HERE / "model.py"), str(model_folder())], "making the model")


def model_folder() -> Path:
    """Where the model lies."""
    return VENV / "model"


def _command(command: Sequence[str], what: str) -> None:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)
    try:
        said, _ = process.communicate(timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise RigError(f"{what} did not end in {INSTALL_SECONDS:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started, too
        process.wait()
    if process.returncode != 0:
        raise RigError(f"{what} failed ({process.returncode}): {said[-2000:]}")


@dataclass
class Engine:
    """One vLLM server. `address` is where requests go, `kv_address` where its KV comes from."""

    name: str
    role: str
    core: int
    address: str
    kv_address: str
    process: Process | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Base address of its API."""
        return f"http://{self.address}:{ENGINE_PORT}"

    def command(self) -> list[str]:
        """What starts it."""
        transfer = {"kv_connector": "NixlConnector", "kv_role": self.role, "kv_buffer_device": "cpu",
                    "kv_connector_extra_config": {"backends": ["UCX"]}}
        return [str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_folder()),
                "--served-model-name", MODEL, "--host", self.address, "--port", str(ENGINE_PORT), "--max-model-len", str(CONTEXT),
                "--block-size", str(BLOCK), "--max-num-seqs", "8", "--enforce-eager", "--no-enable-log-requests",
                "--kv-transfer-config", json.dumps(transfer)]

    def environment(self) -> dict[str, str]:
        """What it runs with. One core each: two engines that spin on the same cores take seconds a request."""
        return {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": str(self.core), "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
                "VLLM_NIXL_SIDE_CHANNEL_HOST": self.kv_address, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE_PORT),
                "VLLM_HOST_IP": self.kv_address, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "kv0", "PYTHONPATH": "",
                "PATH": f"{VENV / 'bin'}:{os.environ.get('PATH', '')}"}


@dataclass(frozen=True)
class Router:
    """A router in front of both: its address and its own metrics page."""

    url: str
    metrics: str


class Rig:
    """A context manager: both engines and, by `router()`, routers. Use it within `inside()`, whose thread sees the cell's network."""

    def __init__(self, work: Path) -> None:
        self.cell = Cell(work)
        self.prefill = Engine("prefill", "kv_producer", 0, "10.77.0.11", "10.78.0.1")
        self.decode = Engine("decode", "kv_consumer", 1, "10.77.0.12", "10.78.0.2")
        self._ports = iter(range(ROUTER_PORT, ROUTER_PORT + 100))

    def __enter__(self) -> Rig:
        self.cell.__enter__()
        try:
            for engine in (self.prefill, self.decode):
                self._namespace(engine)
            self.cell.run("ip", "link", "add", "kv0", "netns", "prefill", "type", "veth", "peer", "name", "kv0", "netns", "decode")
            for engine in (self.prefill, self.decode):
                self.cell.run("ip", "-n", engine.name, "address", "add", f"{engine.kv_address}/24", "dev", "kv0")
                self.cell.run("ip", "-n", engine.name, "link", "set", "kv0", "up")
            with self.inside():
                self.start(self.prefill)
                self.start(self.decode)
                self.wait_ready(self.prefill, self.decode)
        except BaseException:
            self.cell.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cell.__exit__(kind, error, trace)

    def _namespace(self, engine: Engine) -> None:
        name, link = engine.name, f"v-{engine.name}"
        self.cell.run("ip", "netns", "add", name)
        self.cell.run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        self.cell.run("ip", "link", "set", link, "master", "br0", "up")
        self.cell.run("ip", "-n", name, "address", "add", f"{engine.address}/16", "dev", "eth0")
        for device in ("lo", "eth0"):
            self.cell.run("ip", "-n", name, "link", "set", device, "up")
        self.cell.run("ip", "-n", name, "route", "add", "default", "via", ADDRESS)

    @contextlib.contextmanager
    def router(self, *, labelled: bool) -> Iterator[Router]:
        """The real smg in front of both engines. Without the label of the KV connector its mode is `passthrough`: the prefill server works
        for nothing and the decode server computes the prompt itself, and no client sees a difference."""
        port = next(self._ports)
        router = Router(f"http://{ADDRESS}:{port}", f"http://{ADDRESS}:{port + 1000}/metrics")
        process = self.cell.start(f"smg-{port}", [
            str(VENV / "bin" / "smg"), "launch", "--pd-disaggregation", "--host", ADDRESS, "--port", str(port),
            "--prometheus-host", ADDRESS, "--prometheus-port", str(port + 1000), "--backend", "vllm", "--disable-tokenizer-autoload",
            "--policy", "round_robin"])
        try:
            until = time.monotonic() + ROUTER_READY_SECONDS
            self._until(lambda: healthy(router.url, path="/liveness"), until, process)
            for engine, kind in ((self.prefill, "prefill"), (self.decode, "decode")):
                labels = {"kv_connector": "NixlConnector"} if labelled else {}
                post(f"{router.url}/workers", {"url": engine.url, "worker_type": kind, "model_id": MODEL, "runtime_type": "vllm",
                                               "labels": labels})
            self._until(lambda: _workers_ready(router.url), until, process)
            yield router
        finally:
            process.stop()

    def _until(self, done: Callable[[], bool], until: float, process: Process) -> None:
        while not done():
            if not process.alive() or time.monotonic() > until:
                raise RigError(f"{process.name} {'is not ready in time' if process.alive() else 'ended'}:\n{process.tail(30)}")
            time.sleep(0.1)

    def slow_link(self, rate: str) -> None:
        """Let the prefill server send KV at no more than `rate` (as tc writes it)."""
        self.cell.run("ip", "netns", "exec", "prefill", "tc", "qdisc", "replace", "dev", "kv0", "root",
                      "tbf", "rate", rate, "burst", "16kb", "latency", "400ms")

    def free_link(self) -> None:
        """Undo `slow_link`."""
        self.cell.run("ip", "netns", "exec", "prefill", "tc", "qdisc", "delete", "dev", "kv0", "root")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """In this block the calling thread, and what it starts, is in the cell's network."""
        with Path("/proc/thread-self/ns/net").open() as outside, Path(f"/proc/{self.cell.pid}/ns/net").open() as inner:
            _enter(inner.fileno())
            try:
                yield
            finally:
                _enter(outside.fileno())

    def start(self, engine: Engine) -> None:
        """Start an engine unless it runs. It is not ready when this returns."""
        if engine.process is not None and engine.process.alive():
            return
        engine.process = self.cell.start(engine.name, ["ip", "netns", "exec", engine.name, *engine.command()], env=engine.environment())

    def kill(self, engine: Engine) -> None:
        """End an engine at once, with all its processes."""
        assert engine.process is not None
        engine.process.stop(9)
        left = self.cell.run("ip", "netns", "pids", engine.name).split()
        if left:
            self.cell.run("kill", "-9", *left, check=False)

    def wait_ready(self, *engines: Engine, seconds: float = READY_SECONDS) -> None:
        """Until each has answered its health request. Raises RigError with the end of the log of one that ended or is late."""
        until = time.monotonic() + seconds
        for engine in engines:
            while not healthy(engine.url):
                assert engine.process is not None
                if not engine.process.alive():
                    raise RigError(f"the {engine.name} engine ended:\n{engine.process.tail(40)}")
                if time.monotonic() > until:
                    raise RigError(f"the {engine.name} engine was not ready in {seconds:g} s:\n{engine.process.tail(40)}")
                time.sleep(0.2)


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET) != 0:
        raise RigError(f"setns: {os.strerror(ctypes.get_errno())}")


def _workers_ready(url: str) -> bool:
    workers = json.loads(get(f"{url}/workers")).get("workers", [])
    return len(workers) == 2 and all(worker.get("is_healthy") for worker in workers)


def healthy(url: str, path: str = "/health") -> bool:
    """Whether the server says that it is healthy."""
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def get(url: str, seconds: float = 10.0) -> str:
    """The text at `url`."""
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        return str(answer.read().decode())


def post(url: str, body: Mapping[str, Any], seconds: float = 60.0, headers: Mapping[str, str] | None = None) -> tuple[int, Json]:
    """Post JSON; the status and the JSON answer, also of an error."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
