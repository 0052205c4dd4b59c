"""The lanes of one worker, seen from the probe: started, told, listened to, and ended whatever state they are in.

A lane says `state` (what it does now), any number of `record`s, its `card` (what it has), `ready` before each step it waits in, `done`, or
`failed` with a reason. It is told what to do by messages with a `do`; after `done` it keeps its sockets until it is told to close.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes import processes
from probes.lanes.link import Link, LinkClosed
from probes.reasons import Reason
from probes.worker import ProbeFailure

JOB_VARIABLE = "EFA_PULSE_LANE_JOB"
CHANNEL_VARIABLE = "EFA_PULSE_LANE_FD"
PARENT_VARIABLE = "EFA_PULSE_LANE_PARENT"
ABORT_SECONDS = 1.0
CLOSE_SECONDS = 5.0
KILL_SECONDS = 2.0
_STATES = {"T": ", its process is stopped", "t": ", its process is stopped", "D": ", it waits inside the kernel", "Z": ", it is dead"}


class RemoteTrouble(Exception):  # noqa: N818 - the cause is elsewhere
    """A lane noticed that a peer or the network between them failed: another rank knows better why."""


class LaneHandle:
    """One lane process and what it said so far. `step` counts how often it was ready."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link, number: int) -> None:
        self.process, self.link, self.number = process, link, number
        self.state = "starting"
        self.card: dict[str, Any] | None = None
        self.step = 0
        self.done = self.failed = False
        self.records: list[dict[str, Any]] = []

    def hear(self, message: dict[str, Any]) -> None:
        """Take one message. Raises ProbeFailure or RemoteTrouble when the lane failed."""
        if "state" in message:
            self.state = str(message["state"])[:120]
        elif "record" in message:
            self.records.append(message["record"])
        elif "card" in message:
            self.card = message["card"]
        elif "ready" in message:
            self.step += 1
        elif "done" in message:
            self.done, self.state = True, "done"
        elif "failed" in message:
            failed, self.failed = message["failed"], True
            text = f"{failed['message']} (lane {self.number}, {self.state})"
            if failed.get("remote"):
                raise RemoteTrouble(text)
            raise ProbeFailure(Reason(failed["reason"]), text)

    def look(self) -> str:
        """What it does now, with a word on the process where it does not run."""
        return self.state + _STATES.get(_process_state(self.process.pid), "")


class Fleet:
    """All lanes of one worker. End it in every case: no lane outlives it."""

    def __init__(self, jobs: Sequence[str], command: Sequence[str], environs: Sequence[Mapping[str, str]]) -> None:
        """Start one process per job (JSON, in its environment). Raises ProbeFailure (`launch_failed`)."""
        self.lanes: list[LaneHandle] = []
        try:
            for number, (job, environ) in enumerate(zip(jobs, environs, strict=True)):
                self.lanes.append(_start(job, command, environ, number))
        except OSError as error:
            self.end()
            raise ProbeFailure(Reason.LAUNCH_FAILED, f"a lane could not be started: {error}") from None

    def listen(self, seconds: float) -> None:
        """Take what the lanes say for `seconds`, or until one says something. Raises ProbeFailure or RemoteTrouble when one failed."""
        links = [lane.link for lane in self.lanes if not lane.failed]
        ready, _, _ = select.select(links, [], [], max(0.0, seconds))
        for link in ready:
            lane = next(lane for lane in self.lanes if lane.link is link)
            try:
                while (message := lane.link.receive(0.0)) is not None:
                    lane.hear(message)
            except LinkClosed:
                raise _died(lane) from None

    def tell(self, what: str, each: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Tell every lane to do something, with a word of its own for each."""
        for lane in self.lanes:
            try:
                lane.link.send(do=what, **{"with": dict(each[lane.number]) if each is not None else {}})
            except LinkClosed:
                raise _died(lane) from None

    def carded(self) -> bool:
        """Whether every lane has shown its card."""
        return all(lane.card is not None for lane in self.lanes)

    def at(self, step: int) -> bool:
        """Whether every lane has been ready `step` times."""
        return all(lane.step >= step for lane in self.lanes)

    def done(self) -> bool:
        """Whether every lane is done."""
        return all(lane.done for lane in self.lanes)

    def states(self) -> list[str]:
        """What each lane does now."""
        return [lane.look() for lane in self.lanes]

    def end(self) -> None:
        """End every lane: politely where all are done, else by abort and then by force. Never raises."""
        finished = bool(self.lanes) and self.done()
        for lane in self.lanes:
            with suppress(LinkClosed):
                lane.link.send(do="close" if finished else "abort")
        until = time.monotonic() + (CLOSE_SECONDS if finished else ABORT_SECONDS)
        for lane in self.lanes:
            with suppress(subprocess.TimeoutExpired):
                lane.process.wait(max(0.0, until - time.monotonic()))
        stuck = [lane for lane in self.lanes if lane.process.poll() is None]
        for lane in stuck:
            lane.process.kill()
        for lane in stuck:
            # The driver takes a moment to clean up behind a killed process; the supervisor waits for it as well.
            with suppress(subprocess.TimeoutExpired):
                lane.process.wait(max(0.0, until + KILL_SECONDS - time.monotonic()))
        for lane in self.lanes:
            lane.link.close()


def lane_link() -> Link:
    """The lane's end of the line, made once at its start. The lane ends with the probe from then on, even when it is stuck."""
    processes.die_with_parent(signal.SIGKILL, int(os.environ[PARENT_VARIABLE]))
    return Link(socket.socket(fileno=int(os.environ[CHANNEL_VARIABLE])))


def lane_job() -> str:
    """The lane's job, the JSON it was started with."""
    return os.environ[JOB_VARIABLE]


def machine_id() -> str:
    """The same for every process on this machine, whatever its container calls itself."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _start(job: str, command: Sequence[str], environ: Mapping[str, str], number: int) -> LaneHandle:
    ours, theirs = socket.socketpair()
    with theirs:
        full = {**environ, JOB_VARIABLE: job, CHANNEL_VARIABLE: str(theirs.fileno()), PARENT_VARIABLE: str(os.getpid())}
        process = subprocess.Popen(command, env=full, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return LaneHandle(process, Link(ours), number)


def _died(lane: LaneHandle) -> ProbeFailure:
    with suppress(subprocess.TimeoutExpired):
        lane.process.wait(2.0)
    code = lane.process.returncode
    where = f"the process of lane {lane.number} ({lane.state})"
    if code is not None and code == -signal.SIGKILL:
        return ProbeFailure(Reason.KILLED, f"{where} was killed from outside (SIGKILL)")
    if code is not None and code < 0:
        return ProbeFailure(Reason.ENGINE_CRASHED, f"{where} died of {signal.Signals(-code).name}")
    return ProbeFailure(Reason.ENGINE_CRASHED, f"{where} ended with status {code} before it was done")


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
