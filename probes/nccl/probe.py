"""The `nccl` probe: collectives between the GPUs of all workers of a run, without MPI and without ssh.

Each worker starts one lane per GPU (`probes.nccl.lane`); the unique id and a heartbeat travel over the run's rendezvous. While the lanes
work, the workers tell each other every fraction of a second what their lanes do, so that a hang ends with everybody's last state and a
lost rank is noticed at once, although NCCL itself would wait for ever.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from probes.gpu.driver import CudaError, Driver
from probes.nccl import ras, tests_engine
from probes.nccl.bench import capacity_of
from probes.nccl.environ import nccl_environment
from probes.nccl.fleet import Fleet, RemoteTrouble, machine_id
from probes.nccl.job import Job, Join
from probes.nccl.logs import Gatherer, LogFacts, read_facts
from probes.nccl.merge import Merged, from_json, measurements, merge, of_record, payload, to_json
from probes.nccl.outcome import judge
from probes.nccl.params import NcclParams
from probes.nccl.pattern import shape
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.result import Evidence, Phase
from probes.worker import Context, ProbeFailure, Report

# What NCCL itself takes of a GPU's memory: buffers of all channels, measured 0.4 to 1.2 GiB, more with many peers.
RESERVE_BYTES = 2 << 30
BEAT_SECONDS = 0.1
SLOW_BEAT_SECONDS = 0.5
QUICK_PHASE_SECONDS = 5.0
GRACE_SECONDS = 2.5
BLAME_SECONDS = 1.5


class NcclProbe:
    """See the module. Registered as `nccl`."""

    def run(self, ctx: Context) -> Report:
        """Measure and report, or raise ProbeFailure."""
        params = ctx.parse(NcclParams)
        if params.engine == "nccl-tests":
            return tests_engine.run(ctx, params)
        folder = Path(tempfile.mkdtemp(prefix="efa-pulse-nccl-"))
        run = _Run(ctx, params, folder)
        try:
            return run.run()
        except ProbeFailure as failure:
            raise run.explain(failure) from None
        finally:
            run.end()
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Layout:
    """Who is where: `gpus` lanes per worker, `machines` of all workers, `first` GPU of this worker among the visible ones."""

    gpus: int
    machines: tuple[str, ...]
    first: int

    @property
    def ranks(self) -> int:
        """GPUs of the whole run."""
        return self.gpus * len(self.machines)

    @property
    def nodes(self) -> int:
        """Machines of the whole run."""
        return len(set(self.machines))


class _Run:
    """One run, step by step."""

    def __init__(self, ctx: Context, params: NcclParams, folder: Path) -> None:
        self._ctx, self._params, self._folder = ctx, params, folder
        self._gatherer = Gatherer(folder)
        self._fleet: Fleet | None = None
        self._ports: list[int] = []
        self._states: list[list[str]] = []
        self._met: Rendezvous | None = None
        self._phase = "meeting"

    def run(self) -> Report:
        self._met = met = self._ctx.meet()
        layout = self._lay_out(met)
        self._ctx.phase(Phase.SETUP)
        self._phase = "setting up"
        fleet = self._start(layout)
        self._join(fleet, met, layout)
        self._ctx.phase(Phase.MEASURE)
        self._phase = "measuring"
        met.barrier()
        fleet.measure()
        self._together(fleet, met, lambda: all(lane.done for lane in fleet.lanes))
        # The lanes still hold their sockets: the supervisor reads their counts when the phase ends.
        self._ctx.phase(Phase.FINISH)
        first_rank = self._ctx.env.rank * layout.gpus
        own = merge([of_record(record, first_rank + lane.number) for lane in fleet.lanes for record in lane.records])
        rows = self._gather_rows(met, own)
        self._gatherer.gather()
        fleet.end()
        self._gatherer.gather()
        return self._report(layout, fleet, own, rows)

    def end(self) -> None:
        """End the lanes and keep what NCCL logged. Never raises."""
        if self._fleet is not None:
            self._fleet.end()
        self._gatherer.gather()

    def explain(self, failure: ProbeFailure) -> ProbeFailure:
        """In EFA mode an engine error while setting up is the pin at work when NCCL's log says that the network did not come up."""
        if failure.reason is Reason.ENGINE_ERROR and self._ctx.env.transport == "efa" and self._phase == "setting up":
            facts = read_facts(self._folder)
            if facts.says & {"unavailable", "fallback"}:
                return ProbeFailure(Reason.TRANSPORT_UNAVAILABLE, f"NCCL_NET={self._params.net} does not start here: {failure.message}")
        return failure

    def _lay_out(self, met: Rendezvous) -> Layout:
        params, env = self._params, self._ctx.env
        visible = _visible()
        gpus = visible if params.gpus == "all" else int(params.gpus)
        cards = met.exchange({"machine": machine_id(), "gpus": gpus})
        machines = tuple(str(card["machine"]) for card in cards)
        if len({int(card["gpus"]) for card in cards}) != 1:
            counts = ", ".join(str(card["gpus"]) for card in cards)
            raise ProbeFailure(Reason.GPU_MISSING, f"the workers see different numbers of GPUs: {counts}")
        place = machines[: env.rank].count(machines[env.rank])
        first = params.gpu if params.gpu is not None else place * gpus
        # Workers that share a machine but see only their own GPUs count from 0 each.
        if params.gpu is None and first + gpus > visible >= gpus:
            first = first % visible
        if first + gpus > visible:
            raise ProbeFailure(Reason.GPU_MISSING, f"{gpus} GPUs from number {first} on are asked for, {visible} are visible")
        layout = Layout(gpus, machines, first)
        if layout.ranks < 2:
            raise ProbeFailure(Reason.BAD_SPEC, "nccl: one GPU alone has nobody to talk to: set gpus to all, or run more workers")
        if env.transport == "efa" and layout.nodes == 1 and not params.allow_intra_node and not params.force_network:
            raise ProbeFailure(Reason.NOT_EFA, f"all {layout.ranks} ranks are on one node: NVLink would carry everything")
        return layout

    def _start(self, layout: Layout) -> Fleet:
        params, env = self._params, self._ctx.env
        try:
            largest = max(params.sizes)
            shapes = [shape(operation, layout.ranks, largest, params.dtype) for operation in [*params.operations, "sendrecv"]]
            for operation in params.operations:
                shape(operation, layout.ranks, min(params.sizes), params.dtype)
        except ValueError as error:
            raise ProbeFailure(Reason.BAD_SPEC, f"nccl: {error}") from None
        need = 2 * capacity_of(shapes) + RESERVE_BYTES + params.min_free_bytes
        job = Job(device=0, operations=params.operations, sizes=params.sizes, dtype=params.dtype, iterations=params.iterations,
                  warmup=params.warmup, in_place=params.in_place, check=params.check, need=need, allow_busy=params.allow_busy,
                  makes_id=False)
        jobs = [job.model_copy(update={"device": layout.first + lane, "makes_id": env.rank == 0 and lane == 0})
                for lane in range(layout.gpus)]
        self._ports = [ras.free_port() for _ in jobs]
        environ = {**os.environ, **nccl_environment(params, env.transport, self._folder, os.environ)}
        self._fleet = fleet = Fleet(jobs, environ, lambda lane: {"NCCL_RAS_ADDR": f"127.0.0.1:{self._ports[lane]}"})
        return fleet

    def _join(self, fleet: Fleet, met: Rendezvous, layout: Layout) -> None:
        self._together(fleet, met, lambda: all(lane.gpu is not None for lane in fleet.lanes))
        gpus = [lane.gpu or {} for lane in fleet.lanes]
        cards = met.exchange({"bus": [gpu["bus_id"] for gpu in gpus], "id": gpus[0].get("unique_id"), "seed": secrets.randbits(31)})
        places = [(machine, bus) for machine, card in zip(layout.machines, cards, strict=True) for bus in card["bus"]]
        twice = {bus for machine, bus in places if places.count((machine, bus)) > 1}
        if twice:
            shared = ", ".join(sorted(twice))
            raise ProbeFailure(Reason.BAD_SPEC, f"nccl: two ranks would share GPU {shared}: run fewer workers on this node")
        rank = self._ctx.env.rank
        partner = rank ^ 1
        turns: list[list[int]] = []
        if self._params.rails != "off" and met.world_size > 1:
            turns = [[lane] for lane in range(layout.gpus)] if self._params.rails == "each" else [list(range(layout.gpus))]
        fleet.join([
            Join(unique_id=str(cards[0]["id"]), rank=rank * layout.gpus + lane, ranks=layout.ranks, seed=int(cards[0]["seed"]), rail=lane,
                 turns=turns, partner=partner * layout.gpus + lane if partner < met.world_size else None)
            for lane in range(layout.gpus)
        ])
        self._together(fleet, met, lambda: all(lane.joined for lane in fleet.lanes))

    def _together(self, fleet: Fleet, met: Rendezvous, ready: Callable[[], bool]) -> None:
        """Listen to the lanes, with the other workers in step, until all of them are ready. Every wait ends at the run's deadline."""
        begin = time.monotonic()
        trouble: tuple[float, str] | None = None
        told = ""
        while True:
            beat = BEAT_SECONDS if time.monotonic() - begin < QUICK_PHASE_SECONDS else SLOW_BEAT_SECONDS
            until = time.monotonic() + beat
            try:
                while not ready() and time.monotonic() < until:
                    fleet.listen(until - time.monotonic())
            except RemoteTrouble as noticed:
                trouble = trouble or (time.monotonic(), str(noticed))
            self._gatherer.gather()
            now_ready = ready()
            if (word := "; ".join(fleet.states())) != told:
                told = word
                self._ctx.note(told)
            answers = met.exchange({"ready": now_ready, "states": fleet.states()})
            self._states = [answer["states"] for answer in answers]
            if all(answer["ready"] for answer in answers):
                return
            if trouble is not None and time.monotonic() - trouble[0] > BLAME_SECONDS:
                raise ProbeFailure(Reason.TRANSFER_FAILED, trouble[1])
            if self._ctx.remaining() < GRACE_SECONDS:
                raise ProbeFailure(Reason.DEADLINE, self._hung())
            if now_ready:
                time.sleep(min(beat, max(0.0, until - time.monotonic())))

    def _hung(self) -> str:
        """Where everybody stands, and what NCCL itself says about it."""
        states = [f"rank {worker * len(lanes) + lane} {state}"
                  for worker, lanes in enumerate(self._states) for lane, state in enumerate(lanes)]
        text = f"NCCL hung while {self._phase}: {', '.join(states[:8])}"
        if len(states) > 8:
            text += f" and {len(states) - 8} more"
        answer = ras.status(self._ports[0], 1.5) if self._ports else None
        return text + (f"; RAS: {' | '.join(answer.splitlines())[-600:]}" if answer else "; RAS does not answer")

    def _gather_rows(self, met: Rendezvous, own: list[Merged]) -> list[Merged]:
        """The rows of all workers, merged. One exchange a row keeps each message small."""
        rounds = max(met.exchange(len(own)))
        rows: list[Merged] = []
        try:
            for number in range(rounds):
                values = met.exchange(to_json(own[number]) if number < len(own) else None)
                rows += [from_json(value) for value in values if value is not None]
            return merge(rows)
        except ValueError as error:
            raise ProbeFailure(Reason.INTERNAL_ERROR, str(error)) from None

    def _report(self, layout: Layout, fleet: Fleet, own: list[Merged], rows: list[Merged]) -> Report:
        params, env = self._params, self._ctx.env
        facts = read_facts(self._folder)
        moved = payload(own, gpus=layout.gpus, workers=env.world_size)
        reason, message = judge(rows, params, ranks=layout.ranks, nodes=layout.nodes)
        gpus = [lane.gpu or {} for lane in fleet.lanes]
        versions = {**(gpus[0].get("versions") or {}), **facts.versions}
        return Report(
            reason=reason, message=message, measurements=measurements(rows, layout.ranks) if env.rank == 0 else [],
            evidence=_evidence(facts, moved, [f"{gpu.get('name')} {gpu.get('bus_id')}" for gpu in gpus]),
            versions={str(key): str(value) for key, value in versions.items()},
            shape={"ranks": layout.ranks, "workers": env.world_size, "nodes": layout.nodes, "gpus_per_worker": layout.gpus,
                   "dtype": params.dtype, "iterations": params.iterations},
        )


def _visible() -> int:
    try:
        return Driver().count()
    except CudaError as error:
        raise ProbeFailure(error.reason, str(error)) from None


def _evidence(facts: LogFacts, moved: int, gpus: list[str]) -> Evidence:
    return Evidence(stack="nccl", provider=facts.provider, fabric=facts.fabric, nics_seen=facts.nics, payload_bytes=(moved, moved),
                    gpus=gpus)
