"""The `mooncake` probe: blocks moved with Mooncake's TransferEngine, metadata by P2P handshake.

`initialize` returns 0 and TCP is used for every protocol but `efa` on an EFA build, so its return code says nothing about the transport:
the build and the log are asked as well. Every return code is looked at before a time is used, because a failed transfer is a fast one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from probes.kv import loading, logs
from probes.kv.engine import Step, TransferFailedError
from probes.kv.memory import Region
from probes.kv.params import MooncakeParams
from probes.kv.run import PairRun
from probes.kv.timing import Budget, Samples
from probes.reasons import Reason
from probes.result import Evidence, Finding
from probes.worker import Context, ProbeFailure, Report

METADATA = "P2PHANDSHAKE"
INSTALL = "install mooncake-transfer-engine-efa (or another build of it), or run the probe in an image that has it"
DISTRIBUTIONS = ("mooncake-transfer-engine-efa", "mooncake-transfer-engine-efa-cuda13", "mooncake-transfer-engine-efa-non-cuda",
                 "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13", "mooncake-transfer-engine-non-cuda")
STEERING = ("MC_FORCE_TCP", "MC_FORCE_HCA", "MC_FORCE_MNNVL", "MC_INTRA_NVLINK", "MC_USE_TENT", "MC_TE_FILTERS", "MC_MS_FILTERS",
            "MC_CUSTOM_TOPO_JSON", "MC_TCP_PROTO", "FI_PROVIDER")
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 5.0, 30.0

Operation = Callable[[], int]


class MooncakeProbe:
    """Entry of the registry."""

    def run(self, ctx: Context) -> Report:
        """See `probes.kv.run`. The protocol is `efa` and nothing else in EFA mode."""
        params = ctx.parse(MooncakeParams)
        efa = ctx.env.transport == "efa"
        protocol = params.protocol or ("efa" if efa else "tcp")
        if efa and protocol != "efa":
            raise ProbeFailure(Reason.BAD_SPEC, f"protocol: EFA mode accepts only efa, not {protocol}")
        findings: list[Finding] = []

        def load(address: str) -> Callable[[], MooncakeEngine]:
            # The engine's own limit on one transfer must end before ours, or a dead path shows as a hang instead of a failed transfer.
            timeout = min(LONGEST_TIMEOUT, max(SHORTEST_TIMEOUT, ctx.remaining() / 3))
            chosen = {"MC_TRANSFER_TIMEOUT": f"{timeout:.0f}"} | ({"FI_PROVIDER": "efa"} if efa else {})
            defaults = {"MC_LOG_LEVEL": "INFO"} | ({"MC_USE_IPV6": "1"} if _is_v6(address) else {})
            findings.extend(loading.steer(chosen, defaults, STEERING, params.env, pinned=efa))
            module = loading.load_engine(["mooncake.engine"], INSTALL)
            return lambda: MooncakeEngine(module, protocol, params.device, ctx.log_path, gpu=params.memory == "gpu")

        return PairRun(ctx, params, load, versions, findings, {"engine": "mooncake", "protocol": protocol}).run()


def versions() -> dict[str, str]:
    """Mooncake's version and libfabric's, as far as they are here."""
    return {**loading.distribution_versions("mooncake", DISTRIBUTIONS), **loading.library_versions()}


class MooncakeEngine:
    """One TransferEngine. Raises ProbeFailure (`engine_incompatible`, `transport_unavailable`) for a build that cannot do what is asked."""

    def __init__(self, module: ModuleType, protocol: str, device: str, log: Path, *, gpu: bool = False) -> None:
        self._module = module
        self._protocol = protocol
        self._device = device
        self._log = log
        self._region: Region | None = None
        self._name = ""
        self._peer = ""
        self._peer_address = 0
        if gpu and not self._built_with("SUPPORT_CUDA", b"libcudart"):
            raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, "this Mooncake is built without CUDA: it cannot move GPU memory")
        if protocol == "efa" and not self._built_with("SUPPORT_EFA", b"EfaTransport"):
            raise ProbeFailure(Reason.TRANSPORT_UNAVAILABLE, "this Mooncake is built without EFA: it would move everything over TCP")
        self._engine = module.TransferEngine()

    def open(self, region: Region, address: str) -> dict[str, Any]:
        """Initialise and register. The peer needs the segment's name and the region's address."""
        host = f"[{address}]" if _is_v6(address) else address
        code = self._engine.initialize(host, METADATA, self._protocol, self._device)
        if code != 0:
            reason = Reason.TRANSPORT_UNAVAILABLE if self._protocol == "efa" else Reason.ENGINE_ERROR
            raise ProbeFailure(reason, f"Mooncake does not start with protocol {self._protocol}: initialize returned {code}"
                                       f"{logs.words_of(self._log)}")
        tcp = logs.mooncake_tcp(logs.read_tail(self._log)) if self._protocol == "efa" else None
        if tcp is not None:
            raise ProbeFailure(Reason.TRANSPORT_UNAVAILABLE, f"Mooncake runs on TCP though protocol efa was given: {tcp}")
        code = self._engine.register_memory(region.address, region.size)
        if code != 0:
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            locked = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
            raise ProbeFailure(Reason.ENGINE_ERROR, f"register_memory of {region.size} bytes returned {code}, the limit of locked memory "
                                                    f"is {locked}{logs.words_of(self._log)}")
        self._region = region
        self._name = f"{host}:{self._engine.get_rpc_port()}"
        return {"segment": self._name, "address": region.address}

    def connect(self, peer: Any) -> None:
        """Reach the peer's engine, and connect all NICs where the build can do it ahead of the first transfer."""
        self._peer, self._peer_address = str(peer["segment"]), int(peer["address"])
        if self._peer == self._name:
            raise ProbeFailure(Reason.BAD_SPEC, f"both ranks are {self._name}: a transfer to oneself is a copy and measures no network")
        if hasattr(self._engine, "send_probe"):
            self._check(self._engine.send_probe(self._peer), f"the peer's engine at {self._peer} does not answer")
        if self._protocol == "efa" and hasattr(self._engine, "warmup_efa_segment"):
            self._check(self._engine.warmup_efa_segment(self._peer), f"no EFA connection to {self._peer}")

    def lanes(self, step: Step) -> Sequence[Operation]:
        """One prepared call per thread."""
        return [self._operation(step, thread) for thread in range(step.threads)]

    def once(self, lanes: Sequence[Operation]) -> None:
        """One call on every lane, one after the other."""
        for lane in lanes:
            self._check(lane(), "transfer")

    def measure(self, lanes: Sequence[Operation], budget: Budget) -> Samples:
        """Every lane in a thread of its own; the engine releases the interpreter while it works."""
        if len(lanes) == 1:
            return self._repeat(lanes[0], budget, threading.Event())
        return self._in_threads(lanes, budget)

    def confirm(self) -> None:
        """Nothing to wait for: a completed write is acknowledged by the peer (TCP framing v2) or by its NIC. `fresh` rounds check it."""

    def serving(self) -> contextlib.AbstractContextManager[None]:
        """The target's engine serves by itself."""
        return contextlib.nullcontext()

    def release(self, lanes: Sequence[Operation]) -> None:
        """Lanes hold nothing."""

    def evidence(self, log: Path) -> Evidence:
        """Devices and provider as the log names them."""
        route = logs.mooncake_path(logs.read_tail(log))
        return Evidence(stack="mooncake", provider=route.provider, fabric=route.fabric, rdma=route.rdma, nics_seen=route.nics,
                        devices=list(route.devices))

    def _operation(self, step: Step, thread: int) -> Operation:
        if self._region is None:
            raise RuntimeError("lanes are prepared after open")
        pairs = step.pairs(thread)
        # An offset belongs to the side the block comes from or goes to: for a read the source is the peer.
        mine = [self._region.address + (source if step.writes else target) for source, target in pairs]
        theirs = [self._peer_address + (target if step.writes else source) for source, target in pairs]
        name = f"transfer_sync_{'write' if step.writes else 'read'}"
        if step.operation.startswith("batch_"):
            return partial(getattr(self._engine, f"batch_{name}"), self._peer, mine, theirs, [step.size] * step.blocks)
        return partial(getattr(self._engine, name), self._peer, mine[0], theirs[0], step.size)

    def _repeat(self, operation: Operation, budget: Budget, stop: threading.Event) -> Samples:
        samples = Samples()
        clock = time.perf_counter
        started = clock()
        while not stop.is_set() and budget.more(samples.operations, started):
            before = clock()
            code = operation()
            after = clock()
            if code != 0:
                self._check(code, f"transfer after {samples.operations} good ones")
            samples.latencies.append(after - before)
        samples.seconds = clock() - started
        return samples

    def _in_threads(self, lanes: Sequence[Operation], budget: Budget) -> Samples:
        parts: list[Samples] = []
        errors: list[BaseException] = []
        stop = threading.Event()
        ready = threading.Barrier(len(lanes) + 1)

        def work(lane: Operation) -> None:
            try:
                if self._region is not None:
                    self._region.bind_thread()
                ready.wait(SHORTEST_TIMEOUT)
                parts.append(self._repeat(lane, budget, stop))
            except BaseException as error:  # noqa: BLE001 - told to the main thread, which raises it
                errors.append(error)
                stop.set()

        threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait(SHORTEST_TIMEOUT)
        started = time.perf_counter()
        for thread in threads:
            thread.join(max(0.0, budget.ends_at - time.monotonic()) + 0.5)
        seconds = time.perf_counter() - started
        if errors:
            raise errors[0]
        if any(thread.is_alive() for thread in threads):
            raise ProbeFailure(Reason.DEADLINE, "a transfer did not end in the time of the run")
        return Samples([latency for part in parts for latency in part.latencies], [], seconds)

    def _check(self, code: int, what: str) -> None:
        if code != 0:
            raise TransferFailedError(f"{what}: Mooncake returned {code}{logs.words_of(self._log)}")

    def _built_with(self, attribute: str, trace: bytes) -> bool:
        """Whether the build has a feature: by the module's own flag, in older versions by what its binary mentions."""
        flag = getattr(self._module, attribute, None)
        if flag is not None:
            return bool(flag)
        return loading.mentions(getattr(self._module, "__file__", None), trace) is not False


def _is_v6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        return False
