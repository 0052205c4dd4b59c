"""One KV run on one rank: rank 0 initiates every operation, rank 1 owns the other end. Both walk the same plan in step.

Each step has two rounds. In the first the operation is repeated and timed; in the second it is done once. Before each round the source gets
content never used before and the destination is poisoned, after it the destination is compared byte by byte. The second round is what
proves that a completed operation has delivered: in the first a late or lost transfer hides behind an earlier one of the same content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from probes.kv.engine import Engine, Step, TransferFailedError, plan
from probes.kv.memory import Region, fill, wrong_bytes
from probes.kv.params import KvParams, Operation
from probes.kv.pattern import Pattern
from probes.kv.timing import Budget, Samples, bandwidth, statistics
from probes.reasons import Reason
from probes.rendezvous import Rendezvous
from probes.result import Measurement, Phase
from probes.units import show_size
from probes.worker import Context, ProbeFailure

ALIVE_SECONDS = 3.0
LATE_SECONDS = 0.2


@dataclass
class Rows:
    """The columns of one operation."""

    bytes: list[int] = field(default_factory=list)
    bandwidth: list[float | None] = field(default_factory=list)
    latency: dict[str, list[float | None]] = field(default_factory=dict)
    iterations: list[int] = field(default_factory=list)
    wrong: list[int | None] = field(default_factory=list)

    def add(self, size: int, wrong: int, rate: float | None = None, samples: Samples | None = None) -> None:
        """One size. Without samples only the verdict on its content."""
        self.bytes.append(size)
        self.bandwidth.append(rate)
        self.wrong.append(wrong)
        if samples is not None:
            self.iterations.append(samples.operations)
            columns = statistics(samples.latencies)
            if samples.posts:
                columns |= {f"post_{name}": value for name, value in statistics(samples.posts).items() if name in {"p50", "p99", "max"}}
            for name, value in columns.items():
                self.latency.setdefault(name, []).append(value)


class Session:
    """The measuring part of a run. `sent`, `received`, `rows`, `cold` and `complaints` are valid at any time, so that a run which
    fails half way still says what it saw."""

    def __init__(self, ctx: Context, rendezvous: Rendezvous, params: KvParams, engine: Engine, region: Region) -> None:
        self.sent = 0
        self.received = 0
        self.rows: dict[Operation, Rows] = {}
        self.cold: float | None = None
        self.complaints: list[str] = []
        self._ctx = ctx
        self._rendezvous = rendezvous
        self._params = params
        self._engine = engine
        self._region = region
        self._initiates = rendezvous.rank == 0

    def setup(self, hello: dict[str, Any]) -> dict[str, Any]:
        """Start the engine, make it known to the peer and connect. `hello` is told to the peer beside it; returns the peer's."""
        ctx = self._ctx
        ctx.note("starting the engine")
        mine = self._engine.open(self._region, self._rendezvous.addresses[self._rendezvous.rank])
        spec = self._params.model_dump(mode="json")
        peer = self._swap({**hello, "engine": mine, "spec": spec})
        if peer["spec"] != spec:
            odd = sorted(key for key in spec if peer["spec"].get(key) != spec[key])
            raise ProbeFailure(Reason.BAD_SPEC, f"the ranks were given different parameters: {', '.join(odd)}")
        ctx.note("connecting to the peer's engine")
        with self._watching("connect"):
            self._engine.connect(peer["engine"])
        self._swap({})
        return peer

    def measure(self) -> None:
        """All steps. Both ranks enter and leave phase `measure` before and after the first and the last byte."""
        self._ctx.phase(Phase.MEASURE)
        steps = plan(self._params)
        with contextlib.nullcontext() if self._initiates else self._engine.serving():
            self._swap({})
            for number, step in enumerate(steps):
                if self._ctx.remaining() <= 0:
                    raise ProbeFailure(Reason.DEADLINE, f"the time ran out before {step.name}, after {number} of {len(steps)} steps")
                self._ctx.note(step.name)
                self._step(step, len(steps) - number)
            self._swap({})
        self._ctx.phase(Phase.FINISH)

    def measurements(self) -> list[Measurement]:
        """What was measured so far: the initiator's rows with everything, the target's with the content of what was written to it."""
        found: list[Measurement] = []
        for operation, rows in self.rows.items():
            found.append(Measurement(operation=operation, memory=self._params.memory, kind="goodput", bytes=rows.bytes,
                                     bandwidth=rows.bandwidth, latency=rows.latency, iterations=rows.iterations, wrong=rows.wrong,
                                     batch=self._params.blocks(operation), cold=self.cold if not found else None))
        return found

    def _step(self, step: Step, steps_left: int) -> None:
        samples = Samples()
        lanes: Any = []
        with self._watching(step.name):
            if self._initiates:
                lanes = self._engine.lanes(step)
            wrong = self._round(step, "timed", lambda: self._timed(step, lanes, samples, steps_left))
            wrong += self._round(step, "fresh", lambda: self._fresh(step, lanes))
            if self._initiates:
                self._engine.release(lanes)
        if self._initiates:
            rate = bandwidth(samples.operations * step.bytes_each, samples.seconds, self._params.ceiling, step.name)
            self.rows.setdefault(step.operation, Rows()).add(step.size, wrong, rate, samples)
        elif step.writes:
            self.rows.setdefault(step.operation, Rows()).add(step.size, wrong)

    def _round(self, step: Step, name: str, act: Callable[[], int]) -> int:
        """One round; returns how many bytes arrived wrong, on both ranks alike. `act` returns the operations done, on the initiator."""
        pattern = Pattern(self._ctx.env.run_id, step.operation, step.size, name)
        source = self._initiates == step.writes
        self._prepare(step, pattern, source=source)
        self._swap({})
        operations = act() if self._initiates else 0
        operations += int(self._swap({"operations": operations})["operations"])
        moved = operations * step.bytes_each
        self.sent += moved if source else 0
        self.received += 0 if source else moved
        wrong = 0 if source else self._verify(step, pattern)
        wrong += int(self._swap({"wrong": wrong})["wrong"])
        if wrong and source:
            self.complaints.append(f"{step.name}: {wrong} bytes arrived wrong at the peer")
        return wrong

    def _timed(self, step: Step, lanes: Any, samples: Samples, steps_left: int) -> int:
        params, ctx = self._params, self._ctx
        operations = 0
        if self.cold is None:
            begun = time.perf_counter()
            self._engine.once(lanes[:1])
            self.cold = time.perf_counter() - begun
            operations += 1
        ends_at = time.monotonic() + ctx.remaining()
        # A share of what is left, so that a slow path shortens the measurements instead of running into the deadline.
        seconds = min(params.seconds, ctx.remaining() / steps_left / 2)
        begun = time.perf_counter()
        for _ in range(params.warmup):
            self._engine.once(lanes)
            operations += len(lanes)
            if time.perf_counter() - begun > seconds:
                break
        if step.writes:
            self._engine.confirm()
        budget = Budget.of(iterations=params.iterations, seconds=seconds, volume=params.volume, bytes_each=step.bytes_each,
                           ends_at=ends_at, threads=len(lanes))
        measured = self._engine.measure(lanes, budget)
        if step.writes:
            begun = time.perf_counter()
            self._engine.confirm()
            measured.seconds += time.perf_counter() - begun
        samples.latencies, samples.posts, samples.seconds = measured.latencies, measured.posts, measured.seconds
        return operations + measured.operations

    def _fresh(self, step: Step, lanes: Any) -> int:
        self._engine.once(lanes)
        if step.writes:
            self._engine.confirm()
        return len(lanes)

    def _prepare(self, step: Step, pattern: Pattern, *, source: bool) -> None:
        if source:
            fill(self._region, 0, step.bytes_each * step.threads, pattern, 0)
        else:
            for thread in range(step.threads):
                for origin, offset in step.pairs(thread):
                    fill(self._region, offset, step.size, pattern, origin, poison=True)
        self._region.settle()

    def _verify(self, step: Step, pattern: Pattern) -> int:
        """Wrong bytes at the destination now, when the engine has said that all is done. What comes later is wrong too."""
        wrong = self._count_wrong(step, pattern)
        if wrong:
            time.sleep(min(LATE_SECONDS, self._ctx.remaining()))
            still = self._count_wrong(step, pattern)
            late = f", {wrong - still} of them came up to {LATE_SECONDS:g} s after the engine reported completion" if still < wrong else ""
            total = step.bytes_each * step.threads
            self.complaints.append(f"{step.name}: {wrong} bytes of {show_size(total)} arrived wrong{late}")
        return wrong

    def _count_wrong(self, step: Step, pattern: Pattern) -> int:
        return sum(wrong_bytes(self._region, offset, step.size, pattern, origin)
                   for thread in range(step.threads) for origin, offset in step.pairs(thread))

    def _swap(self, value: dict[str, Any]) -> dict[str, Any]:
        """Exchange with the peer. A peer that says it failed is answered once, so that it can tell a dead peer from a failed transfer."""
        other: dict[str, Any] = self._rendezvous.exchange(value)[1 - self._rendezvous.rank]
        if "failed" in other:
            self._rendezvous.exchange({"alive": True})
            raise ProbeFailure(Reason.PEER_LOST, f"rank {1 - self._rendezvous.rank} ended: {other['failed']}")
        return other

    @contextlib.contextmanager
    def _watching(self, what: str) -> Iterator[None]:
        """Turn a failed transfer into a reason: `peer_lost` when the peer is gone, else `transfer_failed`."""
        try:
            yield
        except TransferFailedError as error:
            text = f"{what}: {error}"
        else:
            return
        self._rendezvous.extend(time.monotonic() + min(ALIVE_SECONDS, self._ctx.remaining()))
        # One exchange may still succeed with what the peer sent before it died; the second needs an answer.
        self._rendezvous.exchange({"failed": f"{Reason.TRANSFER_FAILED.value}: {text}"})
        self._rendezvous.exchange({"alive": True})
        raise ProbeFailure(Reason.TRANSFER_FAILED, text)
