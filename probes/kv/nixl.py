"""The `nixl` probe: blocks moved with NIXL over its backends LIBFABRIC or UCX.

The backend is named at the agent, at registration and at every transfer, and checked afterwards: an agent skips a backend it cannot load
with no more than a warning, and picks another where it may. A WRITE that is `DONE` may have left this side only: every write carries a
notification, the target counts them, and a measurement ends when the target says that it has them all.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from probes.kv import loading, logs
from probes.kv.engine import Step, TransferFailedError
from probes.kv.memory import Region
from probes.kv.params import NixlParams
from probes.kv.run import PairRun
from probes.kv.timing import Budget, Samples
from probes.kv.waiting import Patience, usable_cpus
from probes.reasons import Reason
from probes.result import Evidence, Finding
from probes.worker import Context, ProbeFailure, Report

INSTALL = "install nixl with nixl-cu12 or nixl-cu13, or run the probe in an image that has it"
MODULES = ("nixl._api", "nixl_cu13._api", "nixl_cu12._api")
"""`nixl` is a meta package that picks the build for the CUDA it finds; an image may have a build without it."""
DISTRIBUTIONS = ("nixl", "nixl-cu13", "nixl-cu12")
STEERING = ("FI_PROVIDER", "UCX_TLS")
LOG_LEVELS = {"NIXL_LOG_LEVEL": "INFO", "UCX_LOG_LEVEL": "info"}
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 5.0, 30.0
DATA, ASK, ANSWER = b"efa-pulse:data", b"efa-pulse:have:", b"efa-pulse:has:"


@dataclass(frozen=True)
class Pins:
    """Backend and variables that decide over the transport."""

    backend: str
    variables: dict[str, str]


class NixlProbe:
    """Entry of the registry."""

    def run(self, ctx: Context) -> Report:
        """See `probes.kv.run`."""
        params = ctx.parse(NixlParams)
        efa = ctx.env.transport == "efa"
        pins = choose(params, efa=efa, device=loading.efa_here())
        findings: list[Finding] = []

        def load(_address: str) -> Callable[[], NixlEngine]:
            findings.extend(loading.steer(pins.variables, LOG_LEVELS, STEERING, params.env, pinned=efa))
            module = loading.load_engine(MODULES, INSTALL)
            name = f"efa-pulse-{ctx.env.run_id}-{ctx.env.rank}"
            timeout = min(LONGEST_TIMEOUT, max(SHORTEST_TIMEOUT, ctx.remaining() / 3))
            return lambda: NixlEngine(module, name, pins.backend, "VRAM" if params.memory == "gpu" else "DRAM", ctx.log_path,
                                      timeout=timeout, pinned=efa)

        return PairRun(ctx, params, load, versions, findings, {"engine": "nixl", "backend": pins.backend}).run()


def versions() -> dict[str, str]:
    """The versions of NIXL, libfabric and UCX, as far as they are here."""
    return {**loading.distribution_versions("nixl", DISTRIBUTIONS), **loading.library_versions()}


def choose(params: NixlParams, *, efa: bool, device: bool) -> Pins:
    """Backend and variables for the mode. Raises ProbeFailure (`bad_spec`) for what would leave EFA in EFA mode.

    Without EFA mode and EFA device the default is UCX over TCP: UCX's own choice on one machine is shared memory, which no witness sees.
    `cuda_copy` moves nothing between ranks; where there is a GPU, NIXL refuses a UCX_TLS without it even for host memory.
    """
    backend = params.backend or ("LIBFABRIC" if efa or device else "UCX")
    if backend == "UCX":
        tls = params.tls or (None if efa else params.env.get("UCX_TLS")) or ("srd,self,cuda_copy" if efa else "tcp,self,cuda_copy")
        if efa and (tls.startswith("^") or {"tcp", "all"} & {name.partition(":")[0] for name in tls.split(",")}):
            raise ProbeFailure(Reason.BAD_SPEC, f"tls: {tls} may choose TCP, which EFA mode does not accept")
        return Pins(backend, {"UCX_TLS": tls})
    provider = params.provider or ("efa" if efa else None)
    if efa and provider != "efa":
        raise ProbeFailure(Reason.BAD_SPEC, f"provider: EFA mode accepts only efa, not {provider}")
    return Pins(backend, {"FI_PROVIDER": provider} if provider else {})


@dataclass
class Transfer:
    """One prepared transfer and its state."""

    handle: Any
    message: bytes
    state: str = "PROC"
    posted: float = 0.0
    returned: float = 0.0
    done: int = 0


class NixlEngine:
    """One agent with one backend. Raises ProbeFailure (`engine_incompatible`, `transport_unavailable`, `engine_error`)."""

    def __init__(self, api: ModuleType, name: str, backend: str, memory: str, log: Path, *, timeout: float, pinned: bool) -> None:
        self._backend = backend
        self._memory = memory
        self._log = log
        self._timeout = timeout
        self._peer: Any = None
        self._region: Region | None = None
        self._registered: Any = None
        self._peer_address = 0
        self._peer_device = 0
        self._writes = 0
        self._asked = 0
        self._patience = Patience(usable_cpus())
        bindings = getattr(api, "nixlBind", api)
        own = [value for value in vars(bindings).values() if isinstance(value, type) and issubclass(value, Exception)]
        self._errors: tuple[type[Exception], ...] = (*own, RuntimeError)
        self._directory = Path(getattr(bindings, "__file__", None) or __file__).parent.parent
        self._agent = self._start(api, name, pinned=pinned)

    def open(self, region: Region, address: str) -> dict[str, Any]:  # noqa: ARG002 - NIXL's metadata carry its own addresses
        """Register. The peer needs the agent's metadata and the region's place."""
        try:
            self._registered = self._agent.register_memory([(region.address, region.size, region.device, "")], self._memory,
                                                           backends=[self._backend])
            metadata = self._agent.get_agent_metadata()
        except self._errors as error:
            reason = Reason.ENGINE_INCOMPATIBLE if self._memory == "VRAM" else Reason.ENGINE_ERROR
            what = f"{self._backend} does not register {region.size} bytes of {self._memory}"
            raise ProbeFailure(reason, f"{what}: {self._say(error)}") from None
        self._region = region
        return {"metadata": base64.b64encode(metadata).decode(), "address": region.address, "device": region.device}

    def connect(self, peer: Any) -> None:
        """Take the peer's metadata. The connection itself comes with the first transfer, as it does in serving."""
        self._peer_address, self._peer_device = int(peer["address"]), int(peer["device"])
        with self._failing("the peer's metadata"):
            self._peer = self._agent.add_remote_agent(base64.b64decode(peer["metadata"]))

    def lanes(self, step: Step) -> Sequence[Transfer]:
        """One prepared transfer per thread, over the named backend and no other. Its preparation is not part of any time."""
        return [self._prepare(step, thread) for thread in range(step.threads)]

    def once(self, lanes: Sequence[Transfer]) -> None:
        """One operation on every lane, all at once."""
        self._drive(lanes, lambda _: False)

    def measure(self, lanes: Sequence[Transfer], budget: Budget) -> Samples:
        """Keep every lane busy from this one thread: a post returns at once, and NIXL holds the interpreter while it is asked."""
        started = time.perf_counter()
        for lane in lanes:
            lane.done = 0
        return self._drive(lanes, lambda lane: budget.more(lane.done, started))

    def confirm(self) -> None:
        """Ask the target whether it has the notifications of all writes, and wait for its answer."""
        self._asked += 1
        answer = ANSWER + b"%d" % self._asked
        with self._failing("notification"):
            self._agent.send_notif(self._peer, ASK + b"%d:%d" % (self._asked, self._writes))
            asked = time.perf_counter()
            while answer not in self._notifications():
                self._pause(asked, f"the target did not confirm {self._writes} writes")

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count the notifications of writes and answer the initiator's questions, in a thread, until the block ends."""
        answerer = _Answerer(self._agent, self._peer, self._errors)
        answerer.start()
        try:
            yield
        finally:
            answerer.stop()

    def release(self, lanes: Sequence[Transfer]) -> None:
        """Free the handles."""
        for lane in lanes:
            with self._failing("release"):
                self._agent.release_xfer_handle(lane.handle)

    def evidence(self, log: Path) -> Evidence:
        """Rails and lanes as the log names them."""
        route = logs.nixl_path(logs.read_tail(log), self._backend)
        return Evidence(stack="nixl", provider=route.provider, rdma=route.rdma, nics_seen=route.nics,
                        devices=list(route.devices))

    def _start(self, api: ModuleType, name: str, *, pinned: bool) -> Any:
        try:
            agent = api.nixl_agent(name, api.nixl_agent_config(backends=[]))
            plugins = agent.get_plugin_list()
            if self._backend not in plugins:
                missing = self._missing_library() or f"it is not among {', '.join(sorted(plugins))}"
                raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"this NIXL has no backend {self._backend}: {missing}")
            agent.create_backend(self._backend, {})
        except self._errors as error:
            raise self._not_started(error, pinned=pinned) from None
        if list(agent.backends) != [self._backend]:
            running = ", ".join(agent.backends) or "none"
            raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"NIXL was asked for {self._backend} and runs {running}")
        return agent

    def _not_started(self, error: Exception, *, pinned: bool) -> ProbeFailure:
        """A plugin that the linker refuses is an incompatible build; one that starts and finds no device is a missing transport."""
        missing = self._missing_library()
        if missing is not None:
            return ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"NIXL's backend {self._backend} does not load: {missing}")
        reason = Reason.TRANSPORT_UNAVAILABLE if pinned else Reason.ENGINE_ERROR
        return ProbeFailure(reason, f"NIXL's backend {self._backend} does not start: {self._say(error)}")

    def _missing_library(self) -> str | None:
        """What the linker says about the backend's plugin: NIXL itself says at most that there is none."""
        plugins = sorted(self._directory.glob(f".nixl*.libs/plugins/libplugin_{self._backend}.so"))
        return next(filter(None, map(loading.missing_library, plugins)), None)

    def _prepare(self, step: Step, thread: int) -> Transfer:
        if self._region is None:
            raise RuntimeError("lanes are prepared after open")
        near = [(self._region.address + (source if step.writes else target), step.size, self._region.device)
                for source, target in step.pairs(thread)]
        far = [(self._peer_address + (target if step.writes else source), step.size, self._peer_device)
               for source, target in step.pairs(thread)]
        with self._failing("preparation"):
            handle = self._agent.initialize_xfer("WRITE" if step.writes else "READ", self._agent.get_xfer_descs(near, self._memory),
                                                 self._agent.get_xfer_descs(far, self._memory), self._peer,
                                                 DATA if step.writes else b"", backends=[self._backend])
            used = self._agent.query_xfer_backend(handle)
        if used != self._backend:
            raise ProbeFailure(Reason.ENGINE_ERROR, f"NIXL moves the blocks over {used} though {self._backend} was asked for")
        return Transfer(handle, DATA if step.writes else b"")

    def _drive(self, lanes: Sequence[Transfer], more: Callable[[Transfer], bool]) -> Samples:
        """Post every lane once, and again after each completion for which `more` says so; return when all are done."""
        samples = Samples()
        clock = time.perf_counter
        started = clock()
        with self._failing("transfer"):
            busy = list(lanes)
            for lane in busy:
                self._post(lane)
            while busy:
                for lane in list(busy):
                    ended = lane.returned
                    if lane.state == "PROC":
                        lane.state = self._agent.check_xfer_state(lane.handle)
                        ended = clock()
                    if lane.state == "PROC":
                        continue
                    if lane.state != "DONE":
                        raise TransferFailedError(f"NIXL reports {lane.state}{logs.words_of(self._log)}")
                    self._finish(lane, ended, samples)
                    if more(lane):
                        self._post(lane)
                    else:
                        busy.remove(lane)
                if busy:
                    self._pause(min(lane.posted for lane in busy), "a transfer did not complete")
        samples.seconds = clock() - started
        return samples

    def _post(self, lane: Transfer) -> None:
        lane.posted = time.perf_counter()
        lane.state = self._agent.transfer(lane.handle, lane.message)
        lane.returned = time.perf_counter()

    def _finish(self, lane: Transfer, ended: float, samples: Samples) -> None:
        lane.done += 1
        samples.latencies.append(ended - lane.posted)
        samples.posts.append(lane.returned - lane.posted)
        if lane.message:
            self._writes += 1

    def _notifications(self) -> list[bytes]:
        return [message for messages in self._agent.get_new_notifs().values() for message in messages]

    def _pause(self, since: float, what: str) -> None:
        """Between two looks at something that began at `since`. Raises TransferFailedError past the time limit."""
        age = time.perf_counter() - since
        if age > self._timeout:
            raise TransferFailedError(f"{what} within {self._timeout:.0f} s{logs.words_of(self._log)}")
        self._patience.pause(age)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise TransferFailedError(f"{what}: {self._say(error)}") from None

    def _say(self, error: Exception) -> str:
        return f"{type(error).__name__}: {error}{logs.words_of(self._log)}"


class _Answerer:
    """The target's part in confirming writes. Only its thread touches the agent while it runs."""

    def __init__(self, agent: Any, peer: Any, errors: Iterable[type[Exception]]) -> None:
        self._agent = agent
        self._peer = peer
        self._errors = tuple(errors)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="nixl-notifications")
        self._seen = 0
        self._questions: list[tuple[bytes, int]] = []

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which never waits for long."""
        self._stop.set()
        self._thread.join(SHORTEST_TIMEOUT)

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop.is_set():
            try:
                news = [message for messages in self._agent.get_new_notifs().values() for message in messages]
                self._take(news)
            except self._errors:
                return  # the initiator sees the same through its own transfers, and the peer's silence ends its wait
            now = time.perf_counter()
            if news:
                last = now
            else:
                time.sleep(min(1e-3, max(100e-6, (now - last) / 20)))

    def _take(self, news: list[bytes]) -> None:
        for message in news:
            if message == DATA:
                self._seen += 1
            elif message.startswith(ASK):
                number, _, wanted = message.removeprefix(ASK).partition(b":")
                self._questions.append((number, int(wanted)))
        for question in [question for question in self._questions if question[1] <= self._seen]:
            self._questions.remove(question)
            self._agent.send_notif(self._peer, ANSWER + question[0])
