"""The `uccl-ep` probe: MoE dispatch and combine between all GPUs of all its nodes, by our own short driver or by the upstream bench.

UCCL-EP speaks verbs itself and has no TCP path: without RDMA its low-latency mode hangs for ever, so everything here ends by deadline,
with the last thing every rank did.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from probes.efa.devices import discover
from probes.gpu.driver import CudaError, Driver
from probes.gpu.gate import driver_version, judge, look
from probes.lanes.fleet import Fleet
from probes.lanes.together import Together
from probes.reasons import SEVERITY, Reason, outcome_of
from probes.rendezvous import Rendezvous
from probes.result import Evidence, Measurement, Phase
from probes.uccl_ep.engine import EngineError, find_bench, version
from probes.uccl_ep.interface import interface_of
from probes.uccl_ep.job import Job, Kernel, Record
from probes.uccl_ep.merge import RankFigures, least_moved, measurements, of_bench, of_tuning
from probes.uccl_ep.params import UcclEpParams
from probes.uccl_ep.parse import parse_text
from probes.uccl_ep.program import SCRIPTS, Program, command
from probes.worker import Context, ProbeFailure, Report

LANE_COMMAND = (sys.executable, "-m", "probes.uccl_ep")
# uccl asserts that it sees every EFA device of its node (ep/src/rdma.cpp): p5 has 32, p5en and p6-b300 16, p6-b200 8.
WHOLE_NODES = frozenset({8, 16, 32})
THROUGHPUT_TOKENS, LATENCY_TOKENS = 4096, 128
THROUGHPUT_EXPERTS, LATENCY_EXPERTS = 256, 288
# One thread of the layout kernel per expert of a rank (ep/src/intranode.cu, kNumThreads).
MAX_LOCAL_EXPERTS = 128
BF16_BYTES = 2


class UcclEpProbe:
    """See the module. Registered as `uccl-ep`."""

    def run(self, ctx: Context) -> Report:
        """Measure and report, or raise ProbeFailure."""
        params = ctx.parse(UcclEpParams)
        folder = Path(tempfile.mkdtemp(prefix="efa-pulse-uccl-"))
        run = _Run(ctx, params, folder)
        try:
            return run.run()
        finally:
            run.end()
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Place:
    """This worker among all: its GPUs, their names, the devices it sees, and where rank 0's store listens."""

    gpus: int
    names: tuple[str, ...]
    nics: tuple[str, ...]
    nodes: int
    address: str
    port: int
    seed: int


class _Run:
    def __init__(self, ctx: Context, params: UcclEpParams, folder: Path) -> None:
        self._ctx, self._params, self._folder = ctx, params, folder
        self._fleet: Fleet | None = None
        self._program: Program | None = None

    def run(self) -> Report:
        try:
            installed = version()
        except EngineError as error:
            raise ProbeFailure(error.reason, str(error)) from None
        met = self._ctx.meet()
        self._ctx.phase(Phase.SETUP)
        place = self._look_around(met)
        versions = {"uccl": installed}
        if kernel_driver := driver_version():
            versions["driver"] = kernel_driver
        report = self._drive(met, place) if self._params.mode == "driver" else self._bench(met, place)
        report.versions = {**versions, **report.versions}
        return report

    def end(self) -> None:
        """End everything that was started. Never raises."""
        if self._fleet is not None:
            self._fleet.end()
        if self._program is not None:
            self._program.end()
            self._program.gather()

    def _look_around(self, met: Rendezvous) -> Place:
        """Gate the GPUs, assert the devices, and agree with the other nodes. Raises ProbeFailure."""
        params, env = self._params, self._ctx.env
        names = self._gate()
        nics = discover().names
        wanted = params.nics
        if env.transport == "efa" and not nics:
            raise ProbeFailure(Reason.TRANSPORT_UNAVAILABLE, "no EFA device is visible, and UCCL-EP has no other path between nodes")
        if (wanted is not None and len(nics) != wanted) or (wanted is None and env.transport == "efa" and len(nics) not in WHOLE_NODES):
            meant = wanted if wanted is not None else "8, 16 or 32"
            raise ProbeFailure(Reason.DEVICES_MISSING, f"{len(nics)} EFA devices are visible, UCCL-EP needs all {meant} of the node")
        cards = met.exchange({"gpus": len(names), "port": _free_port() if env.rank == 0 else 0, "seed": secrets.randbits(20)})
        if len({int(card["gpus"]) for card in cards}) != 1:
            counts = ", ".join(str(card["gpus"]) for card in cards)
            raise ProbeFailure(Reason.GPU_MISSING, f"the nodes see different numbers of GPUs: {counts}")
        ranks = len(names) * met.world_size
        if ranks < 2:
            raise ProbeFailure(Reason.BAD_SPEC, "uccl-ep: one GPU alone has nobody to talk to")
        if params.experts is not None and params.experts % ranks:
            raise ProbeFailure(Reason.BAD_SPEC, f"uccl-ep: {params.experts} experts cannot be spread evenly over {ranks} ranks")
        if env.transport == "efa" and met.world_size == 1:
            raise ProbeFailure(Reason.NOT_EFA, "uccl-ep on one node: NVLink would carry everything")
        return Place(len(names), names, nics, met.world_size, met.addresses[0], int(cards[0]["port"]), int(cards[0]["seed"]))

    def _gate(self) -> tuple[str, ...]:
        params = self._params
        try:
            driver = Driver()
            visible = driver.count()
            gpus = visible if params.gpus == "all" else int(params.gpus)
            names = []
            for index in range(gpus):
                bus_id = driver.bus_id(index)
                usage = look(driver, index)
                if usage is not None:
                    refusal = judge(usage, index=index, need=params.min_free_bytes, allow_busy=params.allow_busy)
                    if refusal is not None:
                        raise ProbeFailure(refusal.reason, refusal.message)
                names.append(f"{usage.name} {bus_id}" if usage is not None else bus_id)
        except CudaError as error:
            raise ProbeFailure(error.reason, str(error)) from None
        return tuple(names)

    def _kernel(self, place: Place) -> Kernel:
        if self._params.kernel == "auto":
            return "normal" if place.nodes == 1 else "low-latency"
        if self._params.kernel == "normal" and place.nodes > 1:
            raise ProbeFailure(Reason.BAD_SPEC, "uccl-ep: the driver runs normal kernels on one node only; between nodes use low-latency")
        return self._params.kernel

    def _drive(self, met: Rendezvous, place: Place) -> Report:
        params, env = self._params, self._ctx.env
        kernel = self._kernel(place)
        if params.fp8 and kernel == "normal":
            raise ProbeFailure(Reason.BAD_SPEC, "uccl-ep: the driver dispatches FP8 with low-latency kernels only")
        tokens, experts = self._amounts(kernel == "normal", place.gpus * place.nodes)
        ranks = place.gpus * place.nodes
        jobs = [Job(device=lane, rank=env.rank * place.gpus + lane, ranks=ranks, local_ranks=place.gpus, node=env.rank,
                    store=(place.address, place.port), kernel=kernel, tokens=tokens, hidden=params.hidden, topk=params.topk,
                    experts=experts, fp8=params.fp8, iterations=params.iterations, warmup=params.warmup,
                    disable_nvlink=params.disable_nvlink, bench_folder=params.bench_folder, seed=place.seed,
                    seconds=max(5.0, self._ctx.remaining())).model_dump_json() for lane in range(place.gpus)]
        self._fleet = fleet = Fleet(jobs, LANE_COMMAND, [self._environ(met)] * place.gpus)
        together = Together(self._ctx, met, _nothing)
        together.wait(f"setting up the {kernel} kernels", fleet, lambda: fleet.at(1))
        self._ctx.phase(Phase.MEASURE)
        met.barrier()
        fleet.tell("measure")
        together.wait(f"measuring the {kernel} kernels", fleet, fleet.done)
        self._ctx.phase(Phase.FINISH)
        own = [(lane.number, Record.model_validate(record)) for lane in fleet.lanes for record in lane.records]
        moved = (sum(record.sent for _, record in own), sum(record.received for _, record in own))
        figures = self._exchange(met, [_figures(env.rank * place.gpus + lane, record) for lane, record in own])
        card = fleet.lanes[0].card or {}
        fleet.end()
        wrong = sorted({figure.rank for figure in figures if figure.wrong})
        reason, message = Reason.OK, ""
        if wrong:
            reason, message = Reason.WRONG_CONTENT, f"wrong elements on rank {', '.join(map(str, wrong))}"
        rows = measurements(figures, tokens * params.hidden * BF16_BYTES)
        return self._report(place, reason, message, rows, moved, (kernel, tokens, experts), card.get("versions") or {})

    def _bench(self, met: Rendezvous, place: Place) -> Report:
        params, env = self._params, self._ctx.env
        if params.mode == "intranode" and place.nodes > 1:
            raise ProbeFailure(Reason.BAD_SPEC, "uccl-ep: mode intranode runs on one node; between nodes use low-latency or internode")
        script = find_bench(SCRIPTS[params.mode], params.bench_folder)
        if script is None:
            raise ProbeFailure(Reason.ENGINE_MISSING, f"{SCRIPTS[params.mode]} of uccl is not here: set bench_folder")
        tokens, experts = self._amounts(params.mode != "low-latency", place.gpus * place.nodes)
        arguments = [f"--num-tokens={tokens}", f"--hidden={params.hidden}", f"--num-topk={params.topk}", f"--num-experts={experts}"]
        if params.mode == "low-latency":
            arguments += ["--disable-nvlink"] if params.disable_nvlink else []
            arguments += [] if params.fp8 else ["--no-dispatch-use-fp8"]
        port = place.port
        line = command(script, arguments, nodes=place.nodes, node=env.rank, gpus=place.gpus, address=place.address, port=port)
        together = Together(self._ctx, met, self._gather)
        self._ctx.phase(Phase.MEASURE)
        self._program = program = Program(line, self._environ(met), self._folder / "bench.out")
        together.wait(f"running {script.name}", program, program.ended)
        self._ctx.phase(Phase.FINISH)
        program.gather()
        first = env.rank * place.gpus
        # Throughput benches print on the first rank of each node only.
        parsed = parse_text(program.text(), range(first, first + place.gpus) if params.mode == "low-latency" else None)
        reason, message = parsed.reason, parsed.message
        if reason is Reason.OK and program.status != 0:
            reason, message = Reason.ENGINE_ERROR, f"{script.name} ended with status {program.status}"
        figures = self._exchange(met, of_bench(parsed))
        reasons = [(Reason(card["reason"]), str(card["message"])) for card in met.exchange({"reason": reason.value, "message": message})]
        reason, message = min(reasons, key=lambda pair: SEVERITY.index(outcome_of(pair[0])))
        batch = tokens * params.hidden * BF16_BYTES
        rows = measurements(figures, batch) if figures else of_tuning(parsed, batch)
        moved = least_moved(parsed, gpus=place.gpus, nodes=place.nodes)
        return self._report(place, reason, message, rows, (moved, moved) if moved else None, (params.mode, tokens, experts), {})

    def _amounts(self, throughput: bool, ranks: int) -> tuple[int, int]:
        """(tokens of a rank, experts of all ranks). Raises ProbeFailure for what the kernels cannot do."""
        params = self._params
        tokens = params.tokens or (THROUGHPUT_TOKENS if throughput else LATENCY_TOKENS)
        wanted = THROUGHPUT_EXPERTS if throughput else LATENCY_EXPERTS
        experts = params.experts or ranks * max(1, min(wanted // ranks, MAX_LOCAL_EXPERTS))
        if experts // ranks > MAX_LOCAL_EXPERTS:
            raise ProbeFailure(Reason.BAD_SPEC, f"uccl-ep: {experts} experts are more than {MAX_LOCAL_EXPERTS} a rank, the kernels' limit")
        if experts < params.topk:
            raise ProbeFailure(Reason.BAD_SPEC, f"uccl-ep: topk {params.topk} is more than the {experts} experts")
        return tokens, experts

    def _gather(self) -> None:
        if self._program is not None:
            self._program.gather()

    def _exchange(self, met: Rendezvous, own: list[RankFigures]) -> list[RankFigures]:
        """The figures of all ranks."""
        answers = met.exchange([[f.rank, f.operation, f.bytes, f.mean, [round(t * 1e8) for t in f.times], f.wrong] for f in own])
        return [RankFigures(int(rank), str(operation), int(size), float(mean), tuple(t * 1e-8 for t in times), wrong)
                for answer in answers for rank, operation, size, mean, times, wrong in answer]

    def _environ(self, met: Rendezvous) -> dict[str, str]:
        environ = {**os.environ, "UCCL_EP_CPU_TIMEOUT_SECS": str(int(max(1, self._params.engine_timeout)))}
        own = interface_of(met.addresses[met.rank])
        if own is not None:
            environ.setdefault("GLOO_SOCKET_IFNAME", own)
            environ.setdefault("UCCL_SOCKET_IFNAME", own)
        return environ

    def _report(self, place: Place, reason: Reason, message: str, rows: list[Measurement], moved: tuple[int, int] | None,
                what: tuple[str, int, int], versions: dict[str, str]) -> Report:
        params, env = self._params, self._ctx.env
        kind, tokens, experts = what
        return Report(
            reason=reason, message=message, measurements=rows if env.rank == 0 else [],
            evidence=Evidence(stack="uccl_ep", nics_seen=len(place.nics), devices=list(place.nics), gpus=list(place.names),
                              payload_bytes=moved),
            versions=versions,
            shape={"ranks": place.gpus * place.nodes, "nodes": place.nodes, "gpus_per_worker": place.gpus, "kernel": kind, "tokens": tokens,
                   "hidden": params.hidden, "topk": params.topk, "experts": experts, "dtype": "fp8" if params.fp8 else "bf16"},
        )


def _figures(rank: int, record: Record) -> RankFigures:
    return RankFigures(rank, record.operation, record.bytes, sum(record.times) / len(record.times), tuple(record.times), record.wrong)


def _nothing() -> None:
    """The lanes of the driver write to the worker's log themselves."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
