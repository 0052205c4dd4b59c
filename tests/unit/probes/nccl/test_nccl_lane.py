"""A lane from gate to last row, with a stand-in for the GPU and for NCCL: buffers are bytearrays and collectives plain Python.

The stand-in exists because no GPU is here; the same lane runs on real ones in tests/gpu. What it proves: order of steps, buffers,
placement, poison, counting, what is told, and how a lane ends.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from probes.gpu.driver import CudaError
from probes.lanes.link import Link
from probes.nccl import lane as lane_module
from probes.nccl import meetings
from probes.nccl.api import NcclError
from probes.nccl.job import Job, Join, Record
from probes.nccl.lane import Lane
from probes.nccl.pattern import ITEM_SIZE, value
from probes.reasons import Reason


class World:
    """Shared by the ranks of one test: a barrier and what each rank sent."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.barrier = threading.Barrier(ranks, timeout=20)
        self.sent: list[list[float]] = [[] for _ in range(ranks)]
        self.broken: dict[int, str] = {}
        self.damage = 0

    def meet(self, rank: int, send: list[float]) -> list[list[float]]:
        self.sent[rank] = send
        self.barrier.wait()
        found = [list(one) for one in self.sent]
        self.barrier.wait()
        return found


class StandInGpu:
    def __init__(self, driver: object, index: int) -> None:
        self.index, self.stream, self.driver = index, 1, driver
        self.memory = bytearray(1 << 22)
        self.top = 4096

    def name(self) -> str:
        return "stand-in"

    def allocate(self, size: int) -> int:
        address, self.top = self.top, self.top + -(-size // 512) * 512
        if self.top > len(self.memory):
            raise CudaError(Reason.GPU_BUSY, "no room")
        return address

    def free(self, address: int) -> None:
        pass

    def fill_bytes(self, address: int, byte: int, size: int) -> None:
        self.memory[address : address + size] = bytes([byte]) * size

    def read_u64(self, address: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, address)[0])

    def idle(self) -> bool:
        return True

    def floats(self, address: int, count: int) -> list[float]:
        return list(struct.unpack_from(f"<{count}f", self.memory, address))

    def store(self, address: int, values: list[float]) -> None:
        struct.pack_into(f"<{len(values)}f", self.memory, address, *values)


class StandInModule:
    def __init__(self, gpu: StandInGpu, ptx: object) -> None:
        self.gpu = gpu

    def function(self, name: str) -> str:
        return name

    def launch(self, function: str, arguments: Sequence[Any], blocks: int) -> None:
        numbers = [int(argument.value) for argument in arguments]
        gpu = self.gpu
        if function == "fill_float":
            address, count, seed, rank, offset, mask, stride = numbers
            gpu.store(address, [float(value(seed, rank, offset + i, mask, stride)) for i in range(count)])
        else:
            address, count, seed, first, ranks, offset, mask, stride, wrong = numbers
            seen = gpu.floats(address, count)
            bad = sum(seen[i] != float(sum(value(seed, first + r, offset + i, mask, stride) for r in range(ranks))) for i in range(count))
            struct.pack_into("<Q", gpu.memory, wrong, gpu.read_u64(wrong) + bad)


class StandInEvents:
    def __init__(self, gpu: object, count: int) -> None:
        self.recorded: list[int] = []

    def record(self, index: int) -> None:
        self.recorded.append(index)

    def seconds(self, first: int, last: int) -> float:
        assert {first, last} <= set(self.recorded)
        return 1e-5

    def close(self) -> None:
        pass


class StandInDriver:
    def count(self) -> int:
        return 2

    def bus_id(self, index: int) -> str:
        return f"0000:0{index}:00.0"

    def version(self) -> str:
        return "13.0"


class StandInNccl:
    """Collectives over `World`. The first floats of a buffer travel, whatever they are."""

    def __init__(self, gpu: StandInGpu, world: World) -> None:
        self.gpu, self.world = gpu, world
        self.rank = 0
        self.calls: list[str] = []

    def versions(self) -> dict[str, str]:
        return {"nccl": "2.28.9"}

    def unique_id(self) -> str:
        return "00" * 128

    def join(self, ranks: int, rank: int, unique_id: str) -> None:
        self.rank = rank
        if rank in self.world.broken:
            raise NcclError(Reason.ENGINE_ERROR, self.world.broken[rank])
        self.world.barrier.wait()

    def all_reduce(self, send: int, receive: int, count: int) -> None:
        self.calls.append("all_reduce")
        sent = self.world.meet(self.rank, self.gpu.floats(send, count))
        held = [sum(column) for column in zip(*sent, strict=True)]
        if count > 1 and self.rank == 1 and self.world.damage:
            held[: self.world.damage] = [-1.0] * self.world.damage
        self.gpu.store(receive, held)

    def all_gather(self, send: int, receive: int, count: int) -> None:
        sent = self.world.meet(self.rank, self.gpu.floats(send, count))
        self.gpu.store(receive, [element for part in sent for element in part])

    def reduce_scatter(self, send: int, receive: int, count: int) -> None:
        sent = self.world.meet(self.rank, self.gpu.floats(send, count * self.world.ranks))
        total = [sum(column) for column in zip(*sent, strict=True)]
        self.gpu.store(receive, total[self.rank * count : (self.rank + 1) * count])

    def alltoall(self, send: int, receive: int, count: int) -> None:
        sent = self.world.meet(self.rank, self.gpu.floats(send, count * self.world.ranks))
        self.gpu.store(receive, [element for part in sent for element in part[self.rank * count : (self.rank + 1) * count]])

    def exchange(self, send: int, receive: int, count: int, to: int, source: int) -> None:
        self.calls.append(f"exchange {to} {source}")
        self.gpu.store(receive, self.world.meet(self.rank, self.gpu.floats(send, count))[source])

    def trouble(self) -> str | None:
        return None

    def leave(self) -> None:
        self.calls.append("leave")

    def abort(self) -> None:
        self.calls.append("abort")


class Rig:
    """Lanes in threads, and this test at the other end of their lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
        self.world = World(ranks)
        self.nccls: list[StandInNccl] = []
        self.gpus = threading.local()
        monkeypatch.setattr(lane_module, "Driver", StandInDriver)
        monkeypatch.setattr(lane_module, "look", lambda driver, index: None)
        monkeypatch.setattr(lane_module, "driver_version", lambda: "580")
        monkeypatch.setattr(lane_module, "Gpu", self._gpu)
        monkeypatch.setattr(lane_module, "Nccl4py", self._nccl)
        monkeypatch.setattr("probes.nccl.bench.Module", StandInModule)
        monkeypatch.setattr("probes.nccl.bench.Events", StandInEvents)
        self.links: list[Link] = []
        self.threads: list[threading.Thread] = []

    def _gpu(self, driver: object, index: int) -> StandInGpu:
        gpu = self.gpus.own = StandInGpu(driver, index)
        return gpu

    def _nccl(self, stream: int, dtype: str) -> StandInNccl:
        nccl = StandInNccl(self.gpus.own, self.world)
        self.nccls.append(nccl)
        return nccl

    def start(self, **changes: object) -> None:
        for rank in range(self.world.ranks):
            job = Job.model_validate({"device": rank, "wraps": True, "operations": ["all_reduce"], "sizes": [1024], "dtype": "float",
                                      "iterations": 4, "warmup": 2, "in_place": False, "check": True, "need": 0, "allow_busy": False,
                                      "makes_id": rank == 0, **changes})
            ours, theirs = socket.socketpair()
            self.links.append(Link(ours))
            thread = threading.Thread(target=Lane(job, Link(theirs)).run, daemon=True)
            thread.start()
            self.threads.append(thread)

    def until(self, rank: int, key: str) -> dict[str, Any]:
        while True:
            message = self.links[rank].receive(20.0)
            assert message is not None, f"rank {rank} never said {key}"
            assert "failed" not in message or key == "failed", message
            if key in message:
                return message

    def everyone(self, key: str) -> list[dict[str, Any]]:
        return [self.until(rank, key) for rank in range(self.world.ranks)]

    def measured(self, join: Callable[[int], dict[str, object]] | None = None) -> list[list[Record]]:
        """All steps to the end; the records of every rank."""
        cards = self.everyone("card")
        assert cards[0]["card"]["unique_id"] is not None
        for rank, link in enumerate(self.links):
            word = {"unique_id": "00" * 128, "rank": rank, "ranks": self.world.ranks, "seed": 11, **(join(rank) if join else {})}
            link.send(do="join", **{"with": word})
        self.everyone("ready")
        for link in self.links:
            link.send(do="measure")
        records: list[list[Record]] = []
        for link in self.links:
            found: list[Record] = []
            while "done" not in (message := link.receive(20.0) or {"failed": "nothing"}):
                assert "failed" not in message, message
                if "record" in message:
                    found.append(Record.model_validate(message["record"]))
            records.append(found)
        for link in self.links:
            link.send(do="close")
        for thread in self.threads:
            thread.join(10)
        return records


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Rig]:
    return lambda ranks: Rig(monkeypatch, ranks)


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_moves_what_is_expected_of_it(rig: Callable[[int], Rig], ranks: int) -> None:
    world = rig(ranks)
    world.start(operations=["all_reduce", "alltoall", "all_gather", "reduce_scatter", "sendrecv"], sizes=[960, 3072], in_place=True)
    for records in world.measured():
        assert [(record.operation, record.variant) for record in records[::2][:2]] == [("all_reduce", None), ("all_reduce", None)]
        assert {record.wrong for record in records} == {0}
        assert {(record.operation, record.variant) for record in records} == {
            ("all_reduce", None), ("all_reduce", "in_place"), ("alltoall", None), ("all_gather", None), ("all_gather", "in_place"),
            ("reduce_scatter", None), ("reduce_scatter", "in_place"), ("sendrecv", None)}


def test_a_damaged_buffer_is_counted_on_the_rank_that_has_it(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.world.damage = 3
    world.start()
    first, second = world.measured()
    assert ([record.wrong for record in first], [record.wrong for record in second]) == ([0], [3])


def test_launches_count_everything_that_moved(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start(iterations=4, warmup=2)
    (record,) = world.measured()[0]
    launches = sum(call == "all_reduce" for call in world.nccls[0].calls)
    # Beside the record's own there are the barriers: three before the short batches, one before the single operations.
    assert launches == record.launches + 4
    assert record.launches == 2 + 3 * 4 + 4 + 1
    assert len(record.times) == 4


def test_only_the_first_row_of_an_operation_has_a_cold_time(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start(sizes=[1024, 2048])
    assert [record.cold is None for record in world.measured()[0]] == [False, True]


def test_rails_take_turns_and_name_themselves(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start()
    records = world.measured(lambda rank: {"turns": 1, "meetings": [{"turn": 0, "partner": rank ^ 1, "name": "rail0"}]})
    rows = [(record.operation, record.variant, record.wrong) for record in records[0]]
    assert rows == [("all_reduce", None, 0), ("sendrecv", "rail0", 0)]
    assert "exchange 1 1" in world.nccls[0].calls + world.nccls[1].calls


def test_eight_ranks_meet_each_other_once_and_name_their_pair(rig: Callable[[int], Rig]) -> None:
    world = rig(8)
    world.start(iterations=2, warmup=1)
    plan = meetings.turns(gpus=8, workers=1, rails="off", pairs="together")
    records = world.measured(lambda rank: {"turns": len(plan), "meetings": [
        {"turn": number, "partner": b if rank == a else a, "name": name} for number, turn in enumerate(plan) for a, b, name in turn
        if rank in (a, b)]})
    for rank, found in enumerate(records):
        pairs = [record for record in found if record.variant is not None]
        assert {record.variant for record in pairs} == {f"pair{min(rank, other)}-{max(rank, other)}" for other in range(8) if other != rank}
        assert {record.wrong for record in pairs} == {0}, "each got what its partner sent"


def test_a_communicator_that_does_not_form_is_told_and_aborted(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.world.broken = {0: "invalid usage", 1: "invalid usage"}
    world.start()
    world.everyone("card")
    for rank, link in enumerate(world.links):
        link.send(do="join", **{"with": Join(unique_id="00" * 128, rank=rank, ranks=2, seed=1).model_dump(mode="json")})
    for message in world.everyone("failed"):
        assert message["failed"] == {"reason": "engine_error", "message": "invalid usage", "remote": False}
    for link in world.links:
        link.send(do="abort")
    for thread in world.threads:
        thread.join(10)
    assert [nccl.calls for nccl in world.nccls] == [["abort"], ["abort"]]


def test_a_lane_told_to_abort_before_it_joined_ends(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start()
    world.everyone("card")
    for link in world.links:
        link.send(do="abort")
    for thread in world.threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_lane_whose_probe_is_gone_ends(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start()
    world.everyone("card")
    for link in world.links:
        link.close()
    for thread in world.threads:
        thread.join(10)
        assert not thread.is_alive()


def test_buffers_that_do_not_fit_are_gpu_busy(rig: Callable[[int], Rig]) -> None:
    world = rig(2)
    world.start(sizes=[8 << 20])
    world.everyone("card")
    for rank, link in enumerate(world.links):
        link.send(do="join", **{"with": Join(unique_id="00" * 128, rank=rank, ranks=2, seed=1).model_dump(mode="json")})
    assert {message["failed"]["reason"] for message in world.everyone("failed")} == {"gpu_busy"}


def test_item_sizes_are_those_of_the_c_types() -> None:
    assert ITEM_SIZE["float"] == ctypes.sizeof(ctypes.c_float)
