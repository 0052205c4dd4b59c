"""The `nccl` probe: collectives between the GPUs of all workers of a run, without MPI and without ssh.

Each worker starts one lane per GPU (`probes.nccl.lane`); the unique id and a heartbeat travel over the run's rendezvous.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from probes.efa.devices import discover
from probes.gpu.driver import CudaError, Driver
from probes.lanes.fleet import Fleet, machine_id
from probes.lanes.together import Together
from probes.nccl import meetings, ras, tests_engine
from probes.nccl.bench import capacity_of
from probes.nccl.environ import nccl_environment
from probes.nccl.job import Job, Join, Meeting, Record
from probes.nccl.logs import Gatherer, read_facts
from probes.nccl.merge import Merged, from_json, measurements, merge, of_record, payload, to_json
from probes.nccl.outcome import judge
from probes.nccl.params import NcclParams
from probes.nccl.pattern import shape
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.result import Evidence, Phase
from probes.worker import Context, ProbeFailure, Report

LANE_COMMAND = (sys.executable, "-m", "probes.nccl")
# What NCCL itself takes of a GPU's memory: buffers of all channels, measured 0.4 to 1.2 GiB, more with many peers.
RESERVE_BYTES = 2 << 30


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
        self._setting_up = True

    def run(self) -> Report:
        met = self._ctx.meet()
        together = Together(self._ctx, met, self._gatherer.gather, self._ras)
        layout = self._lay_out(met)
        self._ctx.phase(Phase.SETUP)
        fleet = self._start(layout)
        together.wait("opening the GPUs", fleet, fleet.carded)
        fleet.tell("join", self._joins(fleet, met, layout))
        together.wait("joining the communicator", fleet, lambda: fleet.at(1))
        self._setting_up = False
        self._ctx.phase(Phase.MEASURE)
        met.barrier()
        fleet.tell("measure")
        together.wait("measuring", fleet, fleet.done)
        # The lanes still hold their sockets: the supervisor reads their counts when the phase ends.
        self._ctx.phase(Phase.FINISH)
        first_rank = self._ctx.env.rank * layout.gpus
        own = merge([of_record(Record.model_validate(record), first_rank + lane.number) for lane in fleet.lanes for record in lane.records])
        rows = self._gather_rows(met, own)
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
        if failure.reason is Reason.ENGINE_ERROR and self._ctx.env.transport == "efa" and self._setting_up:
            facts = read_facts(self._folder)
            if facts.says & {"unavailable", "fallback"}:
                return ProbeFailure(Reason.TRANSPORT_UNAVAILABLE, f"NCCL_NET={self._params.net} does not start here: {failure.message}")
        return failure

    def _lay_out(self, met: Rendezvous) -> Layout:
        params, env = self._params, self._ctx.env
        gpus = _visible() if params.gpus == "all" else int(params.gpus)
        cards = met.exchange({"machine": machine_id(), "gpus": gpus})
        machines = tuple(str(card["machine"]) for card in cards)
        if len({int(card["gpus"]) for card in cards}) != 1:
            counts = ", ".join(str(card["gpus"]) for card in cards)
            raise ProbeFailure(Reason.GPU_MISSING, f"the workers see different numbers of GPUs: {counts}")
        place = machines[: env.rank].count(machines[env.rank])
        layout = Layout(gpus, machines, params.gpu if params.gpu is not None else place * gpus)
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
        jobs = [Job(device=layout.first + lane, wraps=params.gpu is None, operations=params.operations, sizes=params.sizes,
                    dtype=params.dtype, iterations=params.iterations, warmup=params.warmup, in_place=params.in_place, check=params.check,
                    need=need, allow_busy=params.allow_busy, makes_id=env.rank == 0 and lane == 0).model_dump_json()
                for lane in range(layout.gpus)]
        self._ports = [ras.free_port() for _ in jobs]
        environ = {**os.environ, **nccl_environment(params, env.transport, self._folder, os.environ)}
        environs = [{**environ, "NCCL_RAS_ADDR": f"127.0.0.1:{port}"} for port in self._ports]
        self._fleet = fleet = Fleet(jobs, LANE_COMMAND, environs)
        return fleet

    def _joins(self, fleet: Fleet, met: Rendezvous, layout: Layout) -> list[dict[str, object]]:
        """What each lane needs to enter the communicator. Raises ProbeFailure when two ranks would share a GPU."""
        own = [lane.card or {} for lane in fleet.lanes]
        cards = met.exchange({"bus": [card["bus_id"] for card in own], "id": own[0].get("unique_id"), "seed": secrets.randbits(31)})
        places = [(machine, bus) for machine, card in zip(layout.machines, cards, strict=True) for bus in card["bus"]]
        twice = {bus for machine, bus in places if places.count((machine, bus)) > 1}
        if twice:
            shared = ", ".join(sorted(twice))
            raise ProbeFailure(Reason.BAD_SPEC, f"nccl: two ranks would share GPU {shared}: run fewer workers on this node")
        turns = meetings.turns(gpus=layout.gpus, workers=met.world_size, rails=self._params.rails, pairs=self._params.pairs)
        first = self._ctx.env.rank * layout.gpus
        return [Join(unique_id=str(cards[0]["id"]), rank=rank, ranks=layout.ranks, seed=int(cards[0]["seed"]), turns=len(turns),
                     meetings=_meetings_of(rank, turns)).model_dump(mode="json") for rank in range(first, first + layout.gpus)]

    def _ras(self) -> str:
        """What NCCL itself says about a hang."""
        answer = ras.status(self._ports[0], 1.5) if self._ports else None
        return f"; RAS: {' | '.join(answer.splitlines())[:600]}" if answer else "; RAS does not answer here"

    def _gather_rows(self, met: Rendezvous, own: list[Merged]) -> list[Merged]:
        """The rows of all workers, merged. One exchange a row keeps each message small."""
        rows: list[Merged] = []
        try:
            for number in range(max(met.exchange(len(own)))):
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
        cards = [lane.card or {} for lane in fleet.lanes]
        versions = {**(cards[0].get("versions") or {}), **facts.versions}
        return Report(
            reason=reason, message=message, measurements=measurements(rows, layout.ranks) if env.rank == 0 else [],
            evidence=Evidence(stack="nccl", provider=facts.provider, fabric=facts.fabric, nics_seen=facts.nics,
                              payload_bytes=(moved, moved), devices=list(discover().names),
                              gpus=[f"{card.get('name')} {card.get('bus_id')}" for card in cards]),
            versions={str(key): str(value) for key, value in versions.items()},
            shape={"ranks": layout.ranks, "workers": env.world_size, "nodes": layout.nodes, "gpus_per_worker": layout.gpus,
                   "dtype": params.dtype, "iterations": params.iterations},
        )


def _meetings_of(rank: int, turns: list[list[meetings.Meeting]]) -> list[Meeting]:
    """The meetings of one rank, with its partner in each."""
    return [Meeting(turn=number, partner=other if rank == one else one, name=name)
            for number, turn in enumerate(turns) for one, other, name in turn if rank in (one, other)]


def _visible() -> int:
    try:
        return Driver().count()
    except CudaError as error:
        raise ProbeFailure(error.reason, str(error)) from None
