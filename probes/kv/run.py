"""From a worker's context to a report: what the Mooncake and the NIXL probe have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from probes.gpu.driver import CudaError
from probes.kv.engine import Engine
from probes.kv.gpu import GpuRegion
from probes.kv.memory import HostRegion, Region
from probes.kv.params import KvParams
from probes.kv.session import Session
from probes.reasons import Reason
from probes.rendezvous import RendezvousError
from probes.result import Evidence, Finding, Phase
from probes.worker import Context, ProbeFailure, Report

ParamsT = TypeVar("ParamsT", bound=KvParams)
ROLES = ("initiator", "target")

_kept: list[Engine] = []
"""Engines outlive their run: their destructors join threads for half a second, or for ever when a peer died. The process ends without."""


def region_of(params: KvParams, rank: int) -> Region:
    """The memory of one rank, where the parameters want it. Raises CudaError for a GPU that is not there or has no room."""
    if params.memory == "dram":
        return HostRegion(params.region)
    device = params.gpu if rank == 0 or params.target_gpu is None else params.target_gpu
    return GpuRegion(params.region, device)


def machine_id() -> str | None:
    """What two ranks on one machine have in common, containers or not: the kernel's boot id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


class PairRun:
    """One run of a KV probe on one rank.

    `load` gets this rank's address, sets the engine's variables, imports it and returns what makes an Engine, called once the memory is
    there; both may raise ProbeFailure. `versions` is asked at the end, when all libraries are loaded; `findings` and `shape` may grow
    until then.
    """

    def __init__(self, ctx: Context, params: KvParams, load: Callable[[str], Callable[[], Engine]],
                 versions: Callable[[], dict[str, str]], findings: list[Finding], shape: dict[str, int | float | str]) -> None:
        self._ctx = ctx
        self._params = params
        self._load = load
        self._versions = versions
        self._findings = findings
        self._shape = shape
        self._engine: Engine | None = None
        self._region: Region | None = None
        self._session: Session | None = None

    def run(self) -> Report:
        """Meet, set up, measure, report. A failure is reported with everything that was known by then."""
        ctx = self._ctx
        if ctx.env.world_size != 2:
            raise ProbeFailure(Reason.BAD_SPEC, f"a KV probe needs 2 ranks, this run has {ctx.env.world_size}")
        try:
            self._go()
        except (ProbeFailure, RendezvousError, CudaError) as failure:
            ctx.leave(f"{failure.reason.value}: {failure}")
            return self._report(failure.reason, str(failure))
        if self._session and self._session.complaints:
            return self._report(Reason.WRONG_CONTENT, "; ".join(self._session.complaints[:4]))
        return self._report(Reason.OK, "")

    def _go(self) -> None:
        ctx, params = self._ctx, self._params
        rendezvous = ctx.meet()
        ctx.phase(Phase.SETUP)
        ctx.note("loading the engine")
        start = self._load(rendezvous.addresses[rendezvous.rank])
        self._region = region_of(params, rendezvous.rank)
        self._engine = start()
        _kept.append(self._engine)
        self._session = Session(ctx, rendezvous, params, self._engine, self._region)
        machine = machine_id() or ctx.env.node
        peer = self._session.setup({"machine": machine})
        self._shape["ranks_per_node"] = 2 if peer["machine"] == machine else 1
        self._session.measure()

    def _report(self, reason: Reason, message: str) -> Report:
        params, session = self._params, self._session
        evidence: Evidence | None = None
        if self._engine is not None and session is not None:
            evidence = self._engine.evidence(self._ctx.log_path).model_copy(
                update={"payload_bytes": (session.sent, session.received), "gpus": self._region.gpus if self._region else []})
        shape: dict[str, Any] = {"memory": params.memory, "threads": params.threads, "batch": params.batch, **self._shape}
        return Report(reason=reason, message=message, role=ROLES[self._ctx.env.rank], findings=self._findings, shape=shape,
                      measurements=session.measurements() if session else [], evidence=evidence,
                      versions=self._versions())
