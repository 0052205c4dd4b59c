"""Measuring one operation at one size on one GPU, as nccl-tests does it (`TimeTest` and `BenchTime` in its src/common.cu).

Warm-up, a barrier, then all iterations back to back on one stream and the host's clock over them: that gives the bandwidth. Buffers move on
from iteration to iteration where they are larger than the size, so that no cache helps. A second pass with an event between the iterations
gives the time of each. Short batches are repeated and the median counts: one late interrupt makes a batch of 300 us ten times slower
(seen on a machine with two H200). Then the values are checked with fresh data in an output that was poisoned first.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from probes.gpu.driver import Argument, Events, Gpu, Module
from probes.nccl.api import Nccl
from probes.nccl.pattern import ITEM_SIZE, Shape, expected, mask_and_stride

ALIGNMENT = 512
POISON = 0xFF  # NaN in float and in bfloat16: equal to nothing
_PTX = Path(__file__).with_name("kernels.ptx")
_BLOCKS = 1024
BATCHES = 3
SHORT_BATCH_BYTES = 2 << 30


@dataclass(frozen=True)
class Peers:
    """Where a sendrecv goes to and comes from. Collectives ignore it."""

    to: int
    source: int


@dataclass(frozen=True)
class Timing:
    """Seconds: per operation over the batch, of every single operation, and of the very first one when it was the first of its kind."""

    mean: float
    times: list[float]
    launches: int
    cold: float | None


@dataclass(frozen=True)
class Plan:
    """How to measure one row. `first`: nothing of this operation ran before, so the first launch is timed apart. `paired`: only the two
    GPUs of a pair take part, so only they meet before the clock starts."""

    iterations: int
    timed: int
    warmup: int
    in_place: bool = False
    first: bool = False
    paired: bool = False


Wait = Callable[[], None]


class Bench:
    """The buffers and the clock of one GPU. `wait` returns when the stream is idle and raises when the run must end."""

    def __init__(self, gpu: Gpu, nccl: Nccl, rank: int, capacity: int, wait: Wait) -> None:
        self._gpu, self._nccl, self._rank, self._wait = gpu, nccl, rank, wait
        self._capacity = capacity
        self._send = gpu.allocate(capacity)
        self._receive = gpu.allocate(capacity)
        self._barrier = gpu.allocate(16)
        self._wrong = gpu.allocate(8)
        module = Module(gpu, _PTX)
        self._kernels = {(what, dtype): module.function(f"{what}_{dtype}") for what in ("fill", "check") for dtype in ITEM_SIZE}
        self._module = module

    def barrier(self) -> None:
        """Return when every rank has called it: an all-reduce of a few bytes."""
        self._nccl.all_reduce(self._barrier, self._barrier, 1)
        self._wait()

    def meet(self, peers: Peers) -> None:
        """Return when the partner has called it too: an exchange of a few bytes between the two."""
        self._nccl.exchange(self._barrier, self._barrier + 8, 1, peers.to, peers.source)
        self._wait()

    def measure(self, shape: Shape, peers: Peers, plan: Plan) -> Timing:
        """Warm up and time one shape."""
        fence: Wait = (lambda: self.meet(peers)) if plan.paired else self.barrier
        launch = self._launcher(shape, peers, plan.in_place)
        cold = None
        begin = time.perf_counter()
        launch(0)
        if plan.first:
            self._wait()
            cold = time.perf_counter() - begin
        for iteration in range(1, plan.warmup):
            launch(iteration)
        self._wait()
        collecting = gc.isenabled()
        gc.disable()
        try:
            batches = self._batches(launch, fence, plan.iterations, batches_of(shape, plan.iterations))
            times = self._single(launch, fence, plan.timed)
        finally:
            if collecting:
                gc.enable()
        return Timing(statistics.median(batches), times, plan.warmup + plan.iterations * len(batches) + plan.timed, cold)

    def check(self, shape: Shape, peers: Peers, *, in_place: bool, seed: int) -> int:
        """Run once with fresh data and count the elements that arrived wrong here."""
        item = ITEM_SIZE[shape.dtype]
        send, receive = self._addresses(shape, in_place, 0)
        summed = shape.ranks if shape.operation in {"all_reduce", "reduce_scatter"} else 1
        mask, stride = mask_and_stride(shape.dtype, summed)
        self._gpu.fill_bytes(self._wrong, 0, 8)
        self._gpu.fill_bytes(self._receive, POISON, max(shape.send, shape.receive) * item)
        self._run("fill", shape, _u64(send), _u64(shape.send), _u32(seed), _u32(self._rank), _u64(0), _u32(mask), _u32(stride))
        self._launcher(shape, peers, in_place)(0)
        self._wait()
        for part in expected(shape, self._rank, peers.source):
            self._run("check", shape, _u64(receive + part.at * item), _u64(part.count), _u32(seed), _u32(part.first_rank), _u32(part.ranks),
                      _u64(part.index), _u32(mask), _u32(stride), _u64(self._wrong))
        self._wait()
        return self._gpu.read_u64(self._wrong)

    def close(self) -> None:
        """Give the buffers back."""
        for address in (self._send, self._receive, self._barrier, self._wrong):
            self._gpu.free(address)

    def _batches(self, launch: Callable[[int], None], fence: Wait, iterations: int, batches: int) -> list[float]:
        """Seconds per operation of each batch."""
        means = []
        for _ in range(batches):
            fence()
            begin = time.perf_counter()
            for iteration in range(iterations):
                launch(iteration)
            self._wait()
            means.append((time.perf_counter() - begin) / iterations)
        return means

    def _single(self, launch: Callable[[int], None], fence: Wait, iterations: int) -> list[float]:
        events = Events(self._gpu, iterations + 1)
        try:
            fence()
            events.record(0)
            for iteration in range(iterations):
                launch(iteration)
                events.record(iteration + 1)
            self._wait()
            return [events.seconds(index, index + 1) for index in range(iterations)]
        finally:
            events.close()

    def _addresses(self, shape: Shape, in_place: bool, shift: int) -> tuple[int, int]:
        """Where to send from and receive to. In place means one buffer: a share of it where the operation gives or takes a share."""
        send, receive = self._send + shift, self._receive + shift
        if not in_place:
            return send, receive
        own = self._rank * shape.count * ITEM_SIZE[shape.dtype]
        if shape.operation == "all_gather":
            return receive + own, receive
        if shape.operation == "reduce_scatter":
            return receive, receive + own
        return receive, receive

    def _launcher(self, shape: Shape, peers: Peers, in_place: bool) -> Callable[[int], None]:
        """A function of the iteration that puts the operation on the stream, as few calls as can be."""
        span = max(shape.send, shape.receive) * ITEM_SIZE[shape.dtype]
        steps = max(1, self._capacity // span)
        places = [self._addresses(shape, in_place, step * span // ALIGNMENT * ALIGNMENT) for step in range(min(steps, 4096))]
        count = shape.count
        if shape.operation == "sendrecv":
            exchange, to, source = self._nccl.exchange, peers.to, peers.source

            def launch_exchange(iteration: int) -> None:
                send, receive = places[iteration % len(places)]
                exchange(send, receive, count, to, source)

            return launch_exchange
        run: Callable[[int, int, int], None] = getattr(self._nccl, shape.operation)

        def launch(iteration: int) -> None:
            send, receive = places[iteration % len(places)]
            run(send, receive, count)

        return launch

    def _run(self, what: str, shape: Shape, *arguments: Argument) -> None:
        self._module.launch(self._kernels[what, shape.dtype], arguments, _BLOCKS)


def batches_of(shape: Shape, iterations: int) -> int:
    """How often a batch is repeated. The same on every rank, so its bytes decide and no clock."""
    return BATCHES if max(shape.send, shape.receive) * ITEM_SIZE[shape.dtype] * iterations <= SHORT_BATCH_BYTES else 1


def _u32(value: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(value)


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


def capacity_of(shapes: list[Shape]) -> int:
    """Bytes each of the two buffers must have."""
    return max(max(shape.send, shape.receive) * ITEM_SIZE[shape.dtype] for shape in shapes)
