"""A lane: the process that owns one GPU and one rank of the communicator. `python -m probes.nccl` runs it; the probe starts it.

It says what it does before it does it, so that a hang has a name, and it obeys `abort` while it waits for the GPU. What blocks inside
NCCL itself (joining, connecting) is ended by the probe, which kills it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

from probes.gpu.driver import CudaError, Driver, Gpu
from probes.gpu.gate import driver_version, judge, look
from probes.lanes.fleet import lane_job, lane_link
from probes.lanes.link import Link, LinkClosed
from probes.nccl.api import Nccl, Nccl4py, NcclError
from probes.nccl.bench import Bench, Peers, Plan, capacity_of
from probes.nccl.job import MAX_TIMED, Job, Join, Record
from probes.nccl.pattern import Shape, shape
from probes.reasons import Reason
from probes.units import show_size

SPIN_SECONDS = 0.2
NAP_SECONDS = 0.0005
LOOK_SECONDS = 0.05
# Operations whose in-place form NCCL defines.
IN_PLACE = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


class LaneEnd(Exception):  # noqa: N818 - a verdict
    """Ends the lane with a reason."""

    def __init__(self, reason: Reason, message: str, remote: bool = False) -> None:
        super().__init__(message)
        self.reason, self.remote = reason, remote


class Lane:
    """One GPU from the gate to the last row."""

    def __init__(self, job: Job, link: Link) -> None:
        self._job = job
        self._link = link
        self._nccl: Nccl | None = None
        self._gpu: Gpu | None = None
        self._next_look = 0.0
        self._seed = 0

    def run(self) -> None:
        """Gate, join, measure, leave; then tell how it ended."""
        try:
            self._open()
            join = Join.model_validate(self._ask("join"))
            bench, shapes = self._join(join)
            self._ask("measure")
            self._measure(bench, shapes, join)
            self._link.send(done=True)
            self._ask("close")
            bench.close()
            if self._nccl is not None:
                self._nccl.leave()
        except LinkClosed:
            self._abort()
        except LaneEnd as end:
            self._fail(end.reason, str(end), end.remote)
        except NcclError as error:
            self._fail(error.reason, str(error), error.remote)
        except CudaError as error:
            self._fail(error.reason, str(error), False)

    def _open(self) -> None:
        self._say("looking at the GPU")
        driver = Driver()
        device, visible = self._job.device, driver.count()
        # Workers that share a machine but each see only their own GPUs all start at 0.
        if self._job.wraps and visible:
            device %= visible
        usage = look(driver, device)
        if usage is not None:
            refusal = judge(usage, index=device, need=self._job.need, allow_busy=self._job.allow_busy)
            if refusal is not None:
                raise LaneEnd(refusal.reason, refusal.message)
        self._say("making a context on the GPU")
        self._gpu = gpu = Gpu(driver, device)
        self._nccl = nccl = Nccl4py(gpu.stream, self._job.dtype)
        versions = {**nccl.versions(), "cuda": driver.version()}
        kernel_driver = driver_version()
        if kernel_driver:
            versions["driver"] = kernel_driver
        self._say("ready to join")
        self._link.send(card={"name": gpu.name(), "bus_id": driver.bus_id(device), "versions": versions,
                              "unique_id": nccl.unique_id() if self._job.makes_id else None})

    def _join(self, join: Join) -> tuple[Bench, list[Shape]]:
        gpu, nccl, job = self._gpu, self._nccl, self._job
        if gpu is None or nccl is None:
            raise LaneEnd(Reason.INTERNAL_ERROR, "a lane joins before it opened its GPU")
        self._seed = join.seed
        self._say("joining the communicator")
        nccl.join(join.ranks, join.rank, join.unique_id)
        try:
            shapes = [shape(operation, join.ranks, size, job.dtype) for operation in job.operations for size in job.sizes]
        except ValueError as error:
            raise LaneEnd(Reason.BAD_SPEC, str(error)) from None
        meetings = [shape("sendrecv", join.ranks, size, job.dtype) for size in job.sizes] if join.turns else []
        self._say("allocating")
        bench = Bench(gpu, nccl, join.rank, capacity_of(shapes + meetings), self._wait)
        self._say("waiting to measure")
        self._link.send(ready=True)
        return bench, shapes

    def _measure(self, bench: Bench, shapes: list[Shape], join: Join) -> None:
        job = self._job
        ring = Peers((join.rank + 1) % join.ranks, (join.rank - 1) % join.ranks)
        seen: set[str] = set()
        for what in shapes:
            for in_place in (False, True) if job.in_place and what.operation in IN_PLACE else (False,):
                variant = "in_place" if in_place else None
                self._row(bench, what, ring, variant, first=what.operation not in seen)
                seen.add(what.operation)
        meetings = {meeting.turn: meeting for meeting in join.meetings}
        for turn in range(join.turns):
            meeting = meetings.get(turn)
            for size in job.sizes:
                self._say(f"waiting for turn {turn + 1} of {join.turns}")
                bench.barrier()
                if meeting is not None:
                    what = shape("sendrecv", join.ranks, size, job.dtype)
                    self._row(bench, what, Peers(meeting.partner, meeting.partner), meeting.name, first=False)

    def _row(self, bench: Bench, what: Shape, peers: Peers, variant: str | None, *, first: bool) -> None:
        """Measure and check one row, and tell it."""
        job = self._job
        in_place, paired = variant == "in_place", variant not in {None, "in_place"}
        name = f"{what.operation} {show_size(what.bytes)}" + (f" {variant}" if variant else "")
        self._say(f"{name}: measuring")
        plan = Plan(job.iterations, min(job.iterations, MAX_TIMED), job.warmup, in_place, first, paired)
        timing = bench.measure(what, peers, plan)
        wrong = None
        if job.check:
            self._say(f"{name}: checking values")
            self._seed += 1
            wrong = bench.check(what, peers, in_place=in_place, seed=self._seed & 0xFFFFFFFF)
        record = Record(operation=what.operation, bytes=what.bytes, variant=variant, mean=timing.mean, times=timing.times, wrong=wrong,
                        launches=timing.launches + (1 if job.check else 0), cold=timing.cold)
        self._link.send(record=record.model_dump(mode="json"))

    def _wait(self) -> None:
        """Return when the stream is idle. Raises LaneEnd when NCCL noticed trouble, LinkClosed when the probe says abort or is gone."""
        gpu, nccl = self._gpu, self._nccl
        if gpu is None or nccl is None:
            raise LaneEnd(Reason.INTERNAL_ERROR, "a lane waits before it opened its GPU")
        begin = time.monotonic()
        while not gpu.idle():
            now = time.monotonic()
            if now >= self._next_look:
                self._next_look = now + LOOK_SECONDS
                trouble = nccl.trouble()
                if trouble is not None:
                    raise LaneEnd(Reason.TRANSFER_FAILED, f"NCCL: {trouble}", remote=True)
                message = self._link.receive(0.0)
                if message is not None:
                    raise LinkClosed(f"told to {message.get('do')}")
            if now - begin > SPIN_SECONDS:
                time.sleep(NAP_SECONDS)

    def _ask(self, wanted: str) -> dict[str, object]:
        while True:
            message = self._link.receive(3600.0)
            if message is not None:
                if message.get("do") != wanted:
                    raise LinkClosed(f"told to {message.get('do')}")
                return dict(message.get("with") or {})

    def _say(self, what: str) -> None:
        self._link.send(state=what)

    def _fail(self, reason: Reason, message: str, remote: bool) -> None:
        with suppress(LinkClosed):
            self._link.send(failed={"reason": reason.value, "message": message, "remote": remote})
            self._link.receive(2.0)
        self._abort()

    def _abort(self) -> None:
        with suppress(NcclError):
            if self._nccl is not None:
                self._nccl.abort()


def main() -> None:
    """Entry of the process."""
    link = lane_link()
    Lane(Job.model_validate_json(lane_job()), link).run()
    sys.stdout.flush()
    # Teardown of CUDA and NCCL after an abort can hang or crash; everything that matters has been told.
    os._exit(0)
