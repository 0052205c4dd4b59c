"""Ranks meet over real sockets on loopback, or say which one is missing and why."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from probes import rendezvous
from probes.reasons import Reason
from probes.rendezvous import FRAME_LIMIT, Rendezvous, RendezvousError

TOKEN = b"t" * 32


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def join(port: int, rank: int, size: int = 2, seconds: float = 5.0, token: bytes = TOKEN, run_id: str = "r") -> Rendezvous:
    return rendezvous.join(endpoint=f"127.0.0.1:{port}", rank=rank, world_size=size, run_id=run_id, token=token, address=None,
                           deadline=time.monotonic() + seconds)


def together(size: int, work: Callable[[int, Rendezvous], Any], port: int | None = None) -> list[Any]:
    port = port or free_port()

    def one(rank: int) -> Any:
        met = join(port, rank, size)
        try:
            return work(rank, met)
        finally:
            met.close()

    with ThreadPoolExecutor(size) as pool:
        return [future.result(10) for future in [pool.submit(one, rank) for rank in range(size)]]


@pytest.mark.parametrize("size", [2, 3, 16])
def test_every_rank_gets_every_value_in_rank_order(size: int) -> None:
    rounds = together(size, lambda rank, met: [met.exchange({"rank": rank}), met.exchange(rank * 2)])
    assert rounds == [[[{"rank": r} for r in range(size)], [r * 2 for r in range(size)]]] * size


def test_every_rank_knows_every_address() -> None:
    assert together(3, lambda rank, met: met.addresses) == [["127.0.0.1"] * 3] * 3


def test_a_rank_alone_needs_nobody() -> None:
    met = rendezvous.join(endpoint="127.0.0.1:1", rank=0, world_size=1, run_id="r", token=b"", address=None, deadline=0)
    assert met.exchange(5) == [5]


def test_the_missing_rank_is_named() -> None:
    start = time.monotonic()
    with pytest.raises(RendezvousError, match="rank 1, 2 of 3 never arrived") as caught:
        join(free_port(), 0, size=3, seconds=0.4)
    assert caught.value.reason is Reason.RANK_MISSING
    assert time.monotonic() - start < 2


def test_ranks_that_came_are_told_of_the_one_that_did_not() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, port, 0, 3, 0.6)
        other = pool.submit(join, port, 1, 3, 5.0)
        for future in (host, other):
            with pytest.raises(RendezvousError, match="rank 2 of 3 never arrived"):
                future.result(4)


def test_no_rank_0_is_a_missing_rank() -> None:
    with pytest.raises(RendezvousError, match="rank 0 could not be met") as caught:
        join(free_port(), 1, seconds=0.4)
    assert caught.value.reason is Reason.RANK_MISSING


def test_a_name_that_does_not_resolve_ends_in_time() -> None:
    with pytest.raises(RendezvousError, match=r"no-such-host\.invalid") as caught:
        rendezvous.join(endpoint="no-such-host.invalid:1", rank=1, world_size=2, run_id="r", token=TOKEN, address=None,
                        deadline=time.monotonic() + 0.5)
    assert caught.value.reason is Reason.RENDEZVOUS_FAILED


def test_rank_1_may_come_long_before_rank_0() -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(join, port, 1)
        time.sleep(0.4)
        host = pool.submit(join, port, 0)
        assert late.result(5).rank == 1
        assert host.result(5).rank == 0


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RendezvousError, match="the port is in use") as caught:
        join(taken.getsockname()[1], 0)
    assert caught.value.reason is Reason.PORT_IN_USE


@pytest.mark.parametrize(("wrong", "said"), [
    ({"token": b"w" * 32}, "wrong token"), ({"run_id": "other"}, "wrong token, run id"), ({"size": 3}, "number of ranks"),
])
def test_a_stranger_is_refused_and_does_not_stop_the_run(wrong: dict[str, Any], said: str) -> None:
    port = free_port()
    with ThreadPoolExecutor(3) as pool:
        host = pool.submit(join, port, 0)
        with pytest.raises(RendezvousError, match=said) as caught:
            join(port, 1, **wrong)
        assert caught.value.reason is Reason.RENDEZVOUS_REFUSED
        assert pool.submit(join, port, 1).result(5).world_size == 2
        assert host.result(5).world_size == 2


def test_a_second_rank_1_is_refused_while_the_first_lives() -> None:
    port = free_port()
    with ThreadPoolExecutor(4) as pool:
        host = pool.submit(join, port, 0, 3)
        first = pool.submit(join, port, 1, 3)
        time.sleep(0.3)
        with pytest.raises(RendezvousError, match="rank 1 is already here"):
            join(port, 1, 3)
        pool.submit(join, port, 2, 3).result(5)
        assert first.result(5).rank == 1
        assert host.result(5).rank == 0


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"", struct.pack("!I", FRAME_LIMIT + 1), struct.pack("!I", 2) + b"{}",
                                   struct.pack("!I", 4) + b"nope", struct.pack("!I", 14) + b'{"rank":[1,2]}'])
def test_noise_on_the_port_does_not_stop_the_run(noise: bytes) -> None:
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(join, port, 0)
        time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(noise)
            assert pool.submit(join, port, 1).result(5).rank == 1
            assert host.result(5).rank == 0


def test_a_message_beyond_the_limit_is_refused_before_it_is_read() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(join, port, 0, 2, 2.0)
        time.sleep(0.1)
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.settimeout(1.0)
            stranger.recv(4096)
            stranger.sendall(struct.pack("!I", FRAME_LIMIT + 1))
            assert b"announced a message of 1048577 bytes" in stranger.recv(4096)
        with pytest.raises(RendezvousError, match="announced a message"):
            host.result(5)


def test_something_else_on_rank_0s_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        def answer() -> None:
            link, _ = server.accept()
            body = json.dumps({"hello": 1}).encode()
            link.sendall(struct.pack("!I", len(body)) + body)
            link.recv(10)
            link.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(RendezvousError, match="not rank 0 of a run"):
            join(server.getsockname()[1], 1)


def test_a_false_rank_0_cannot_prove_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        def impostor() -> None:
            link, _ = server.accept()
            for answer in ({"nonce": "00"}, {"proof": "00"}):
                body = json.dumps(answer).encode()
                link.sendall(struct.pack("!I", len(body)) + body)
            link.recv(1000)
            time.sleep(0.2)
            link.close()

        threading.Thread(target=impostor, daemon=True).start()
        with pytest.raises(RendezvousError, match="does not know this run's token"):
            join(server.getsockname()[1], 1)


def test_a_lost_rank_is_seen_at_the_next_exchange() -> None:
    def work(rank: int, met: Rendezvous) -> str:
        if rank == 1:
            return "left"
        with pytest.raises(RendezvousError, match="rank 1 closed") as caught:
            met.exchange(1)
        assert caught.value.reason is Reason.PEER_LOST
        return "saw it"

    assert together(2, work) == ["saw it", "left"]


def test_a_failing_rank_tells_the_others_why() -> None:
    def work(rank: int, met: Rendezvous) -> str:
        if rank == 2:
            met.abort("transfer_failed: rc -1")
            return ""
        with pytest.raises(RendezvousError) as caught:
            met.exchange(1)
        return str(caught.value)

    said = together(3, work)
    assert "rank 2 ended: transfer_failed: rc -1" in said[0]
    assert "rank 2 ended: transfer_failed: rc -1" in said[1]


def test_a_silent_rank_ends_by_the_deadline() -> None:
    def work(rank: int, met: Rendezvous) -> float:
        if rank == 1:
            time.sleep(1.2)
            return 0.0
        met.extend(time.monotonic() + 0.4)
        start = time.monotonic()
        with pytest.raises(RendezvousError, match=r"rank 1 .*in time"):
            met.exchange(1)
        return time.monotonic() - start

    assert together(2, work)[0] < 1.1


def test_ranks_at_different_steps_are_told_apart() -> None:
    def work(rank: int, met: Rendezvous) -> str:
        if rank == 1:
            met._sequence = 5
        with pytest.raises(RendezvousError) as caught:
            met.exchange(1)
        return str(caught.value)

    assert "at step 6, this rank at 1" in together(2, work)[0]
