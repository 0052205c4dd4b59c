"""Lanes as real processes that misbehave, and two probes that wait for them in step."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probes import rendezvous
from probes.lanes.fleet import Fleet, RemoteTrouble
from probes.lanes.link import Link, LinkClosed
from probes.lanes.together import Together
from probes.reasons import Reason
from probes.rendezvous import RendezvousError
from probes.worker import ProbeFailure

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.usefixtures("no_process_left")

GOOD = """
link.send(state='opening'); link.send(card={'bus': job})
while True:
    m = link.receive(60)
    if m and m['do'] == 'join': link.send(ready=True)
    elif m and m['do'] == 'measure': link.send(record={'x': 1}); link.send(done=True)
    elif m: sys.exit(0)
"""


def lane(body: str) -> list[str]:
    head = "import os, signal, sys, time\nfrom probes.lanes.fleet import lane_job, lane_link\nlink = lane_link(); job = lane_job()\n"
    return [sys.executable, "-c", head + body]


@pytest.fixture
def fleet() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(body: str, lanes: int = 1) -> Fleet:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        made.append(Fleet([f'"job {number}"' for number in range(lanes)], lane(body), [environ] * lanes))
        return made[-1]

    yield make
    for one in made:
        one.end()


def listen(fleet: Fleet, ready: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, fleet.states()
        fleet.listen(0.2)


class TestFleet:
    def test_lanes_are_told_and_heard_to_the_end(self, fleet: Callable[..., Fleet]) -> None:
        lanes = fleet(GOOD, lanes=2)
        listen(lanes, lanes.carded)
        assert [one.card for one in lanes.lanes] == [{"bus": '"job 0"'}, {"bus": '"job 1"'}]
        lanes.tell("join", [{}, {}])
        listen(lanes, lambda: lanes.at(1))
        lanes.tell("measure")
        listen(lanes, lanes.done)
        assert [one.records for one in lanes.lanes] == [[{"x": 1}]] * 2
        begin = time.monotonic()
        lanes.end()
        assert time.monotonic() - begin < 3
        assert [one.process.returncode for one in lanes.lanes] == [0, 0]

    def test_what_a_lane_says_failed_ends_the_run_with_its_reason(self, fleet: Callable[..., Fleet]) -> None:
        lanes = fleet("link.send(state='thinking'); link.send(failed={'reason': 'gpu_busy', 'message': 'no room'}); time.sleep(60)")
        with pytest.raises(ProbeFailure, match=r"no room \(lane 0, thinking\)") as caught:
            listen(lanes, lanes.done)
        assert caught.value.reason is Reason.GPU_BUSY

    def test_a_remote_fault_is_told_apart(self, fleet: Callable[..., Fleet]) -> None:
        lanes = fleet("link.send(failed={'reason': 'transfer_failed', 'message': 'peer gone', 'remote': True}); time.sleep(60)")
        with pytest.raises(RemoteTrouble, match="peer gone"):
            listen(lanes, lanes.done)

    @pytest.mark.parametrize(("body", "reason", "word"), [
        ("link.send(state='busy'); os.kill(os.getpid(), signal.SIGKILL)", Reason.KILLED, "killed from outside"),
        ("link.send(state='busy'); os.abort()", Reason.ENGINE_CRASHED, "died of SIGABRT"),
        ("link.send(state='busy'); os._exit(3)", Reason.ENGINE_CRASHED, "ended with status 3")])
    def test_a_lane_that_dies_is_named_with_what_it_did(self, fleet: Callable[..., Fleet], body: str, reason: Reason, word: str) -> None:
        lanes = fleet(body)
        with pytest.raises(ProbeFailure, match=rf"lane 0 \(busy\).*{word}") as caught:
            listen(lanes, lanes.done)
        assert caught.value.reason is reason

    def test_a_stopped_lane_shows_in_its_state(self, fleet: Callable[..., Fleet]) -> None:
        lanes = fleet("link.send(state='measuring'); time.sleep(60)")
        listen(lanes, lambda: lanes.lanes[0].state == "measuring")
        lanes.lanes[0].process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 5
        while "stopped" not in lanes.states()[0]:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert lanes.states() == ["measuring, its process is stopped"]

    def test_a_lane_that_hears_nothing_is_ended_by_force_and_in_time(self, fleet: Callable[..., Fleet]) -> None:
        lanes = fleet("link.send(state='deaf')\nwhile True: time.sleep(1)", lanes=3)
        listen(lanes, lambda: all(one.state == "deaf" for one in lanes.lanes))
        begin = time.monotonic()
        lanes.end()
        assert time.monotonic() - begin < 3
        assert all(one.process.returncode == -signal.SIGKILL for one in lanes.lanes)

    def test_a_lane_does_not_outlive_its_probe(self) -> None:
        """The probe is killed while its lane is stuck and hears nothing."""
        stuck = lane("link.send(state=str(os.getpid()))\nwhile True: time.sleep(1)")
        body = ("import os, sys, time\nfrom probes.lanes.fleet import Fleet\n"
                f"f = Fleet(['1'], {stuck!r}, [dict(os.environ)])\n"
                "while not f.lanes[0].state.isdigit(): f.listen(1)\nprint(f.lanes[0].state, flush=True); time.sleep(60)\n")
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", body], env=environ, stdout=subprocess.PIPE, text=True) as probe:
            assert probe.stdout is not None
            pid = int(probe.stdout.readline())
            probe.kill()
        until = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.02)

    def test_a_program_that_is_not_there_cannot_be_launched(self) -> None:
        with pytest.raises(ProbeFailure, match="could not be started") as caught:
            Fleet(["1"], ["/does/not/exist"], [{}])
        assert caught.value.reason is Reason.LAUNCH_FAILED


class TestLink:
    def test_messages_arrive_whole_and_in_order(self) -> None:
        ours, theirs = (Link(end) for end in socket.socketpair())
        theirs.send(a=1)
        theirs.send(b="x" * 100_000)
        assert ours.receive(1) == {"a": 1}
        assert ours.receive(1) == {"b": "x" * 100_000}
        assert ours.receive(0.0) is None

    def test_the_last_words_are_heard_before_the_end(self) -> None:
        ours, theirs = (Link(end) for end in socket.socketpair())
        theirs.send(last=True)
        theirs.close()
        assert ours.receive(1) == {"last": True}
        with pytest.raises(LinkClosed):
            ours.receive(1)

    def test_a_message_without_end_is_not_kept_for_ever(self) -> None:
        near, far = socket.socketpair()
        link = Link(near)
        far.settimeout(0.2)

        def flood() -> None:
            with contextlib.suppress(OSError):
                far.sendall(b"x" * (3 << 20))

        writer = threading.Thread(target=flood)
        writer.start()
        with pytest.raises(LinkClosed, match="no end"):
            link.receive(5)
        writer.join()
        link.close()
        far.close()


class Worker:
    """The part of a probe's context that waiting in step uses."""

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.notes: list[str] = []

    def remaining(self) -> float:
        return max(0.0, self.ends - time.monotonic())

    def note(self, text: str) -> None:
        self.notes.append(text)


class Stage:
    """Lanes that are ready, hang or fail on cue."""

    def __init__(self, state: str, *, ready_after: float = 0.0, trouble: bool = False) -> None:
        self.state, self.at, self.trouble = state, time.monotonic() + ready_after, trouble

    def listen(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))
        if self.trouble:
            self.trouble = False
            raise RemoteTrouble("remote process exited")

    def states(self) -> list[str]:
        return [self.state]

    def ready(self) -> bool:
        return time.monotonic() >= self.at


def two(first: Stage, second: Stage, seconds: float, more: Callable[[], str] = str, leave: float | None = None) -> list[Any]:
    """Both workers wait for their stage; what each raised, or None. `leave`: the second goes away after so many seconds."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]

    def run(rank: int) -> BaseException | None:
        met = rendezvous.join(endpoint=f"127.0.0.1:{port}", rank=rank, world_size=2, run_id="r", token=b"t" * 32, address=None,
                              deadline=time.monotonic() + 10)
        worker, stage = Worker(seconds), (first, second)[rank]
        met.extend(time.monotonic() + seconds)
        try:
            if rank == 1 and leave is not None:
                time.sleep(leave)
                return None
            Together(worker, met, lambda: None, more).wait("measuring", stage, stage.ready)  # type: ignore[arg-type]
        except (ProbeFailure, RendezvousError) as error:
            met.abort(str(error))
            return error
        finally:
            met.close()
        return None

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, [0, 1]))


class TestTogether:
    def test_all_go_on_when_all_are_ready(self) -> None:
        begin = time.monotonic()
        assert two(Stage("fast"), Stage("slow", ready_after=0.6), 20) == [None, None]
        assert 0.5 < time.monotonic() - begin < 2

    def test_a_hang_ends_before_the_deadline_with_everybodys_last_state(self) -> None:
        begin = time.monotonic()
        stages = Stage("all_reduce 1GiB: measuring", ready_after=60), Stage("stopped", ready_after=60)
        ends = two(*stages, 4.0, lambda: "; RAS: rank 1 is silent")
        assert time.monotonic() - begin < 4.0
        deadline = next(end for end in ends if isinstance(end, ProbeFailure))
        assert deadline.reason is Reason.DEADLINE
        assert str(deadline) == "hung while measuring: rank 0 all_reduce 1GiB: measuring, rank 1 stopped; RAS: rank 1 is silent"

    def test_a_lost_rank_is_noticed_at_once(self) -> None:
        begin = time.monotonic()
        first, _ = two(Stage("measuring", ready_after=60), Stage("gone"), 30, leave=0.5)
        assert isinstance(first, RendezvousError)
        assert first.reason is Reason.PEER_LOST
        assert time.monotonic() - begin < 3

    def test_the_rank_that_caused_a_fault_has_the_word(self) -> None:
        """Rank 0's lane sees the network fail because rank 1 went away: that is a lost peer, not a failed transfer."""
        first, _ = two(Stage("measuring", ready_after=60, trouble=True), Stage("gone"), 30, leave=0.5)
        assert isinstance(first, RendezvousError)
        assert first.reason is Reason.PEER_LOST

    def test_a_fault_nobody_explains_is_a_failed_transfer(self) -> None:
        ends = two(Stage("measuring", ready_after=60, trouble=True), Stage("measuring", ready_after=60), 30)
        failed = next(end for end in ends if isinstance(end, ProbeFailure))
        assert (failed.reason, str(failed)) == (Reason.TRANSFER_FAILED, "remote process exited")
