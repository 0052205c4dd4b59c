"""The measuring core with an engine that is a plain copy in this process, so that a fault can be put into one transfer.

The two ranks are two threads that meet through the real rendezvous. Real engines run through the same core in the integration tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes import rendezvous
from probes.contract import WorkerEnv
from probes.kv.engine import Step, TransferFailedError, plan
from probes.kv.memory import HostRegion, Region
from probes.kv.params import KIB, KvParams
from probes.kv.session import Session
from probes.kv.timing import Budget, Samples
from probes.reasons import Reason
from probes.rendezvous import RendezvousError
from probes.result import Evidence, Measurement
from probes.worker import Context, ProbeFailure

Copy = Callable[[int, int, int], None]
Lane = list[tuple[int, int, int]]


def copy(target: int, source: int, length: int) -> None:
    ctypes.memmove(target, source, length)


@dataclass
class CopyEngine:
    """Moves blocks by memmove. `moves` replaces single moves by their number, counted from 0 over the whole run."""

    moves: dict[int, Copy] = field(default_factory=dict)
    fails_at: int | None = None
    moved: int = 0
    confirmed: int = 0
    region: Region | None = None
    peer: int = 0

    def open(self, region: Region, address: str) -> dict[str, Any]:
        self.region = region
        return {"address": region.address, "host": address}

    def connect(self, peer: Any) -> None:
        self.peer = peer["address"]

    def lanes(self, step: Step) -> Sequence[Lane]:
        assert self.region is not None
        near, far = self.region.address, self.peer
        source, target = (near, far) if step.writes else (far, near)
        return [[(target + to, source + origin, step.size) for origin, to in step.pairs(thread)] for thread in range(step.threads)]

    def once(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            for block in lane:
                if self.moved == self.fails_at:
                    raise TransferFailedError("the engine returned -1")
                self.moves.get(self.moved, copy)(*block)
                self.moved += 1

    def measure(self, lanes: Sequence[Lane], budget: Budget) -> Samples:
        samples = Samples()
        started = time.perf_counter()
        while budget.more(samples.operations, started):
            before = time.perf_counter()
            self.once(lanes)
            samples.latencies += [time.perf_counter() - before] * len(lanes)
        samples.seconds = time.perf_counter() - started
        return samples

    def confirm(self) -> None:
        self.confirmed += 1

    def serving(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def release(self, lanes: Sequence[Lane]) -> None:
        pass

    def evidence(self, log: Path) -> Evidence:
        return Evidence(stack="copy")


class Silent:
    """A channel to no supervisor."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def tell(self, message: dict[str, Any]) -> None:
        self.told.append(message)


@dataclass
class Ended:
    """How one rank ended."""

    session: Session
    failure: ProbeFailure | RendezvousError | None
    told: list[dict[str, Any]]

    @property
    def rows(self) -> dict[str, Measurement]:
        return {measurement.operation: measurement for measurement in self.session.measurements()}


def run_pair(params: KvParams, engines: tuple[CopyEngine, CopyEngine], *, deadline: float = 20.0,
             others: KvParams | None = None) -> list[Ended]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"

    def one(rank: int) -> Ended:
        env = WorkerEnv(run_id="run-1", probe="mooncake", rank=rank, world_size=2, rendezvous=endpoint, secret_file=Path("unused"),
                        deadline=deadline)
        channel = Silent()
        ctx = Context(env, channel, Path("/dev/null"), time.monotonic() + deadline)  # type: ignore[arg-type]
        mine = params if rank == 0 or others is None else others
        met = rendezvous.join(endpoint=endpoint, rank=rank, world_size=2, run_id="run-1", token=b"t" * 32, address=None,
                              deadline=time.monotonic() + 10)
        session = Session(ctx, met, mine, engines[rank], HostRegion(mine.region))
        failure: ProbeFailure | RendezvousError | None = None
        try:
            session.setup({})
            session.measure()
        except (ProbeFailure, RendezvousError) as error:
            failure = error
            met.abort(f"{error.reason.value}: {error}")
        finally:
            met.close()
        return Ended(session, failure, channel.told)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def params(**changes: Any) -> KvParams:
    return KvParams.model_validate({"sizes": [16 * KIB, 64 * KIB], "batch": 4, "iterations": 5, "warmup": 2, "seconds": 5, **changes})


@pytest.fixture
def good() -> list[Ended]:
    return run_pair(params(), (CopyEngine(), CopyEngine()))


def test_a_good_run_measures_every_size_of_every_operation(good: list[Ended]) -> None:
    initiator, _ = good
    assert [ended.failure for ended in good] == [None, None]
    assert list(initiator.rows) == ["write", "read", "batch_write", "batch_read"]
    for name, row in initiator.rows.items():
        assert row.bytes == [16 * KIB, 64 * KIB]
        assert row.iterations == [5, 5]
        assert row.wrong == [0, 0]
        assert row.batch == (4 if name.startswith("batch") else 1)
        assert all(rate is not None and rate > 0 for rate in row.bandwidth)
        assert set(row.latency) == {"min", "p50", "p99", "max", "mean"}
        assert row.kind == "goodput"


def test_the_first_operation_of_the_run_is_cold_and_no_other(good: list[Ended]) -> None:
    cold = [row.cold for row in good[0].rows.values()]
    assert cold[0] is not None
    assert cold[1:] == [None, None, None]


def test_the_target_reports_the_content_of_what_was_written_to_it_and_no_speed(good: list[Ended]) -> None:
    rows = good[1].rows
    assert list(rows) == ["write", "batch_write"]
    assert all(row.wrong == [0, 0] and row.bandwidth == [None, None] and row.cold is None for row in rows.values())


def test_the_payload_is_exact_and_mirrored(good: list[Ended]) -> None:
    # Per size 2 warm-ups, 5 measured and 1 fresh operation of 1 and of 4 blocks, and the cold one.
    expected = 8 * (1 + 4) * (16 + 64) * KIB
    initiator, target = (ended.session for ended in good)
    assert (initiator.sent, initiator.received) == (expected + 16 * KIB, expected)
    assert (target.sent, target.received) == (initiator.received, initiator.sent)


def test_both_ranks_walk_the_phases_in_order(good: list[Ended]) -> None:
    for ended in good:
        assert [message["phase"] for message in ended.told if "phase" in message] == ["measure", "finish"]


def test_every_thread_has_blocks_of_its_own() -> None:
    initiator, target = run_pair(params(threads=3), (CopyEngine(), CopyEngine()))
    assert (initiator.failure, target.failure) == (None, None)
    assert initiator.rows["batch_write"].wrong == [0, 0]
    offsets = [pair for thread in range(3) for pair in Step("batch_write", 64 * KIB, 4, 3).pairs(thread)]
    assert sorted(source for source, _ in offsets) == sorted(target for _, target in offsets) == [n * 64 * KIB for n in range(12)]
    assert all(source != target for source, target in offsets)


def test_writes_are_confirmed_after_warm_up_after_measuring_and_after_the_fresh_round() -> None:
    engine = CopyEngine()
    run_pair(params(operations=["write"], sizes=[64 * KIB]), (engine, CopyEngine()))
    assert engine.confirmed == 3
    reading = CopyEngine()
    run_pair(params(operations=["read"], sizes=[64 * KIB]), (reading, CopyEngine()))
    assert reading.confirmed == 0


class TestContent:
    """One bad transfer among good ones is found, and counted in bytes."""

    LAST = 8  # cold 0, warm-up 1 and 2, measured 3 to 7, fresh 8

    def wrong(self, operation: str, moves: dict[int, Copy]) -> tuple[list[Ended], int | None]:
        ended = run_pair(params(operations=[operation], sizes=[64 * KIB]), (CopyEngine(moves), CopyEngine()))
        assert [one.failure for one in ended] == [None, None]
        found = ended[0].rows[operation].wrong
        assert found is not None
        return ended, found[0]

    @pytest.mark.parametrize("operation", ["write", "read"])
    def test_a_transfer_that_moves_nothing_and_says_it_did(self, operation: str) -> None:
        ended, wrong = self.wrong(operation, {self.LAST: lambda target, source, length: None})
        assert wrong == 64 * KIB
        source, destination = ended if operation == "write" else reversed(ended)
        assert destination.session.complaints == [f"{operation} of 64KiB: 65536 bytes of 64KiB arrived wrong"]
        assert source.session.complaints == [f"{operation} of 64KiB: 65536 bytes arrived wrong at the peer"]

    def test_a_flipped_byte(self) -> None:
        def flip(target: int, source: int, length: int) -> None:
            copy(target, source, length)
            spot = ctypes.c_ubyte.from_address(target + length // 2)
            spot.value ^= 0x40

        assert self.wrong("write", {self.LAST: flip})[1] == 1

    def test_a_short_transfer(self) -> None:
        assert self.wrong("write", {self.LAST: lambda target, source, length: copy(target, source, length - 100)})[1] == 100

    def test_a_transfer_of_stale_data(self) -> None:
        kept: list[bytes] = []

        def keep(target: int, source: int, length: int) -> None:
            kept.append(ctypes.string_at(source, length))
            copy(target, source, length)

        def stale(target: int, source: int, length: int) -> None:
            ctypes.memmove(target, kept[0], length)

        assert (self.wrong("write", {1: keep, self.LAST: stale})[1] or 0) > 65000

    def test_timed_transfers_that_all_move_nothing(self) -> None:
        lazy: Copy = lambda target, source, length: None  # noqa: E731
        assert self.wrong("write", dict.fromkeys(range(self.LAST), lazy))[1] == 64 * KIB

    def test_what_arrives_after_completion_is_wrong_and_said_to_be_late(self) -> None:
        def late(target: int, source: int, length: int) -> None:
            data = ctypes.string_at(source, length)
            threading.Timer(0.05, lambda: ctypes.memmove(target, data, length)).start()

        ended, wrong = self.wrong("write", {self.LAST: late})
        assert wrong == 64 * KIB
        assert "65536 of them came up to 0.2 s after the engine reported completion" in ended[1].session.complaints[0]

    def test_two_blocks_of_a_batch_exchanged(self) -> None:
        ended = run_pair(params(operations=["batch_read"], sizes=[16 * KIB], batch=2), (Exchanging(), CopyEngine()))
        found = ended[0].rows["batch_read"].wrong
        assert found is not None
        assert (found[0] or 0) > 1.9 * 2 * 16 * KIB * 0.99


class Exchanging(CopyEngine):
    """Puts each block where its neighbour belongs."""

    def lanes(self, step: Step) -> Sequence[Lane]:
        return [[(lane[1][0], lane[0][1], step.size), (lane[0][0], lane[1][1], step.size)] for lane in super().lanes(step)]


class TestFailure:
    """What ends a run, on which rank with which reason."""

    def test_a_failed_transfer_with_a_living_peer(self) -> None:
        initiator, target = run_pair(params(), (CopyEngine(fails_at=7), CopyEngine()))
        assert initiator.failure is not None
        assert target.failure is not None
        assert (initiator.failure.reason, str(initiator.failure)) == (Reason.TRANSFER_FAILED, "write of 16KiB: the engine returned -1")
        assert target.failure.reason is Reason.PEER_LOST
        assert "transfer_failed: write of 16KiB: the engine returned -1" in str(target.failure)

    def test_what_was_measured_before_is_kept(self) -> None:
        initiator, _ = run_pair(params(), (CopyEngine(fails_at=12), CopyEngine()))
        assert initiator.rows["write"].bytes == [16 * KIB]
        assert initiator.session.sent > 0

    def test_a_figure_above_the_ceiling(self) -> None:
        initiator, target = run_pair(params(ceiling=1.0), (CopyEngine(), CopyEngine()))
        assert initiator.failure is not None
        assert target.failure is not None
        assert initiator.failure.reason is Reason.IMPLAUSIBLE
        assert initiator.rows == {}
        assert target.failure.reason is Reason.PEER_LOST

    def test_ranks_with_different_parameters(self) -> None:
        ended = run_pair(params(), (CopyEngine(), CopyEngine()), others=params(iterations=6, warmup=1))
        for one in ended:
            assert one.failure is not None
            assert (one.failure.reason, "iterations, warmup" in str(one.failure)) == (Reason.BAD_SPEC, True)

    def test_a_slow_path_shortens_the_measurements_instead_of_missing_the_deadline(self) -> None:
        def slow(target: int, source: int, length: int) -> None:
            time.sleep(0.02)
            copy(target, source, length)

        engine = CopyEngine(dict.fromkeys(range(10_000), slow))
        started = time.monotonic()
        initiator, target = run_pair(params(operations=["write"], iterations=1000, seconds=60), (engine, CopyEngine()), deadline=5.0)
        assert (initiator.failure, target.failure) == (None, None)
        assert time.monotonic() - started < 5.0

    def test_a_path_too_slow_for_the_deadline_ends_with_it(self) -> None:
        def slow(target: int, source: int, length: int) -> None:
            time.sleep(0.7)

        initiator, target = run_pair(params(), (CopyEngine(dict.fromkeys(range(99), slow)), CopyEngine()), deadline=2.5)
        assert initiator.failure is not None
        assert target.failure is not None
        assert initiator.failure.reason is Reason.DEADLINE


def test_the_plan_walks_operations_and_within_them_sizes() -> None:
    assert [step.name for step in plan(params(operations=["batch_read", "write"]))] == [
        "batch_read of 4 x 16KiB", "batch_read of 4 x 64KiB", "write of 16KiB", "write of 64KiB"]
