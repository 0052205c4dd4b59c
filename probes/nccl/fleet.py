"""The lanes of one worker, seen from the probe: started, told, listened to, and ended whatever state they are in."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from probes.nccl.job import CHANNEL_VARIABLE, JOB_VARIABLE, PARENT_VARIABLE, Job, Join, Record
from probes.nccl.link import Link, LinkClosed
from probes.reasons import Reason
from probes.worker import ProbeFailure

LANE_COMMAND = (sys.executable, "-m", "probes.nccl")
ABORT_SECONDS = 1.0
CLOSE_SECONDS = 5.0
_STATES = {"T": ", its process is stopped", "t": ", its process is stopped", "D": ", it waits inside the kernel", "Z": ", it is dead"}


class RemoteTrouble(Exception):  # noqa: N818 - the cause is elsewhere
    """A lane noticed that a peer or the network between them failed: another rank knows better why."""


class LaneHandle:
    """One lane process and what it said so far."""

    def __init__(self, process: subprocess.Popen[bytes], link: Link, number: int) -> None:
        self.process, self.link, self.number = process, link, number
        self.state = "starting"
        self.gpu: dict[str, Any] | None = None
        self.joined = self.done = self.failed = False
        self.records: list[Record] = []

    def hear(self, message: dict[str, Any]) -> None:
        """Take one message. Raises ProbeFailure or RemoteTrouble when the lane failed."""
        if "state" in message:
            self.state = str(message["state"])[:120]
        elif "gpu" in message:
            self.gpu = message["gpu"]
        elif "joined" in message:
            self.joined = True
        elif "record" in message:
            self.records.append(Record.model_validate(message["record"]))
        elif "done" in message:
            self.done, self.state = True, "done"
        elif "failed" in message:
            failed, self.failed = message["failed"], True
            text = f"{failed['message']} (GPU {self.number}, {self.state})"
            if failed.get("remote"):
                raise RemoteTrouble(text)
            raise ProbeFailure(Reason(failed["reason"]), text)

    def look(self) -> str:
        """What it does now, with a word on the process where it does not run."""
        return self.state + _STATES.get(_process_state(self.process.pid), "")


class Fleet:
    """All lanes of one worker. Close it in every case: no lane outlives it."""

    def __init__(self, jobs: Sequence[Job], environ: Mapping[str, str], extra: Callable[[int], dict[str, str]],
                 command: Sequence[str] = LANE_COMMAND) -> None:
        self.lanes: list[LaneHandle] = []
        try:
            for number, job in enumerate(jobs):
                self.lanes.append(_start(job, {**environ, **extra(number)}, command, number))
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

    def join(self, joins: Sequence[Join]) -> None:
        """Tell every lane to enter the communicator."""
        for lane, join in zip(self.lanes, joins, strict=True):
            self._tell(lane, do="join", **{"with": join.model_dump(mode="json")})

    def measure(self) -> None:
        """Tell every lane to measure."""
        for lane in self.lanes:
            self._tell(lane, do="measure")

    def states(self) -> list[str]:
        """What each lane does now."""
        return [lane.look() for lane in self.lanes]

    def end(self) -> None:
        """End every lane: politely where it is done, else by abort and then by force. Never raises."""
        finished = bool(self.lanes) and all(lane.done for lane in self.lanes)
        for lane in self.lanes:
            with suppress(LinkClosed):
                lane.link.send(do="close" if finished else "abort")
        until = time.monotonic() + (CLOSE_SECONDS if finished else ABORT_SECONDS)
        for lane in self.lanes:
            with suppress(subprocess.TimeoutExpired):
                lane.process.wait(max(0.0, until - time.monotonic()))
            if lane.process.poll() is None:
                lane.process.kill()
                with suppress(subprocess.TimeoutExpired):
                    lane.process.wait(2.0)
            lane.link.close()

    def _tell(self, lane: LaneHandle, **message: Any) -> None:
        try:
            lane.link.send(**message)
        except LinkClosed:
            raise _died(lane) from None


def _start(job: Job, environ: Mapping[str, str], command: Sequence[str], number: int) -> LaneHandle:
    ours, theirs = socket.socketpair()
    with theirs:
        lane_environ = {**environ, JOB_VARIABLE: job.model_dump_json(), CHANNEL_VARIABLE: str(theirs.fileno()),
                        PARENT_VARIABLE: str(os.getpid())}
        process = subprocess.Popen(command, env=lane_environ, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    return LaneHandle(process, Link(ours), number)


def _died(lane: LaneHandle) -> ProbeFailure:
    with suppress(subprocess.TimeoutExpired):
        lane.process.wait(2.0)
    code = lane.process.returncode
    where = f"the process of GPU {lane.number} ({lane.state})"
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


def machine_id() -> str:
    """The same for every process on this machine, whatever its container calls itself."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
