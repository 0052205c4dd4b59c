"""The parent process of a worker: it never touches native code, and it always leaves a result.

It starts the probe's child under a hard deadline, writes a `died_in_<phase>` mark before each phase, watches the child's TCP sockets and
the pressure on the cgroup while it measures, and turns whatever happens (abort, hang, exit, kill, SIGTERM) into one result document:
in the termination file, overwritten in place because it is a bind mount, and on the last line of standard output.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

import probes
from probes import processes
from probes.contract import PREFIX, ContractError, WorkerEnv
from probes.observe import Observer
from probes.reasons import Reason
from probes.result import Evidence, Phase, Result, ResultError, Window, died_in, encode
from probes.worker import CHANNEL_FD, ENDS_AT

PARENT_PID = "EFA_PULSE_PARENT_PID"
SAMPLE_SECONDS = 0.25
EXIT_SECONDS = 3.0
STACK_DUMP_SECONDS = 0.3
LOG_LIMIT = 64 << 20
LINE_LIMIT = 8 << 20
"""Bytes of one line that the child may say: far more than any report, and little memory."""
REPORT_KEYS = frozenset({"reason", "message", "role", "measurements", "stream", "pd", "findings", "evidence", "versions", "shape"})
"""What the child tells. Who it is and when it ran, its supervisor knows better."""
TAIL_BYTES = 4096
EXIT_USAGE = 64


def main(environ: Mapping[str, str]) -> int:
    """Run the worker that the environment describes. Returns the exit status: 0 when a result was written, 64 for a wrong environment."""
    try:
        env = WorkerEnv.read(environ)
    except ContractError as error:
        sys.stderr.write(f"efa-pulse worker: {error}\n")
        _report_bad_environment(environ, str(error))
        return EXIT_USAGE
    supervisor = Supervisor(env)
    signal.signal(signal.SIGTERM, supervisor.cancel)
    signal.signal(signal.SIGINT, supervisor.cancel)
    if environ.get(PARENT_PID, "").isdigit():
        processes.die_with_parent(signal.SIGTERM, int(environ[PARENT_PID]))
    result = supervisor.run()
    written = write_mark(env.result_path, result)
    sys.stdout.write(encode_or_reduce(result).decode() + "\n")
    sys.stdout.flush()
    if written is not None:
        sys.stderr.write(f"efa-pulse worker: {written}; the result is on standard output only\n")
    return 0


class Supervisor:
    """One worker from start to result."""

    def __init__(self, env: WorkerEnv) -> None:
        self._env = env
        self._started = time.time()
        self._clock = time.monotonic()
        self._phase = Phase.LAUNCH
        self._phase_since = self._clock
        self._phases: dict[Phase, float] = {}
        self._window: list[float] = []
        self._note = ""
        self._report: dict[str, Any] | None = None
        self._cancelled = False
        self._owns_log = env.log_path is None
        self._observer: Observer | None = None
        processes.adopt_orphans()

    def cancel(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a signal handler
        """Signal handler: end the child soon and report `cancelled`."""
        self._cancelled = True

    def run(self) -> Result:
        """Start the child, follow it to its end and return the result. Leaves no process and no temporary file."""
        self._mark()
        log_path = self._env.log_path or Path(tempfile.mkstemp(prefix="efa-pulse-", suffix=".log")[1])
        try:
            return self._follow(log_path)
        finally:
            processes.kill_descendants(os.getpid())
            if self._owns_log:
                log_path.unlink(missing_ok=True)

    def _follow(self, log_path: Path) -> Result:
        ours, theirs = socket.socketpair()
        log_start = _size(log_path)
        try:
            child = self._spawn(theirs, log_path)
        except OSError as error:
            return self._result(Reason.LAUNCH_FAILED, f"the engine's process could not be started: {error}", log_path)
        finally:
            theirs.close()
        with ours:
            self._observer = Observer(child.pid, log_start)
            reason, message = self._watch(child, ours, log_path, log_start)
        return self._result(reason, message, log_path)

    def _spawn(self, channel: socket.socket, log_path: Path) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **self._env.to_environ(), f"{PREFIX}LOG_PATH": str(log_path), CHANNEL_FD: str(channel.fileno()),
                   ENDS_AT: repr(self._clock + self._env.deadline),
                   PARENT_PID: str(os.getpid()), "PYTHONUNBUFFERED": "1"}
        with log_path.open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", "probes", "child"], env=environ, pass_fds=[channel.fileno()],
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def _watch(self, child: subprocess.Popen[bytes], channel: socket.socket, log_path: Path, log_start: int) -> tuple[Reason | None, str]:
        """Serve the child until it reported, died or must be ended. None as reason means: the report speaks."""
        ends_at = self._clock + self._env.deadline
        buffer = bytearray()
        next_sample = time.monotonic()
        while True:
            now = time.monotonic()
            if self._cancelled:
                return Reason.CANCELLED, f"stopped on request in phase {self._phase.value}"
            if now >= ends_at:
                return self._overdue(child, log_path)
            if _size(log_path) - log_start > LOG_LIMIT:
                return Reason.ENGINE_ERROR, f"the engine wrote more than {LOG_LIMIT >> 20} MiB of log"
            if now >= next_sample and self._observer and self._phase is Phase.MEASURE:
                self._observer.sample()
                next_sample = time.monotonic() + SAMPLE_SECONDS
            # Asked before the channel is looked at, so that its last words are heard. Its end alone must count too: a process that the
            # engine left behind may hold the channel open.
            ended = child.poll() is not None
            ready, _, _ = select.select([channel], [], [], min(SAMPLE_SECONDS, ends_at - now))
            if not ready:
                if ended:
                    return self._died(child)
                continue
            end = self._take(child, channel, buffer)
            if end is not None:
                return end

    def _take(self, child: subprocess.Popen[bytes], channel: socket.socket, buffer: bytearray) -> tuple[Reason | None, str] | None:
        """Read what the child says and answer it. Returns how that ends the run, or None while it goes on."""
        try:
            piece = channel.recv(1 << 16)
        except ConnectionResetError:  # killed before it had read our last answer
            piece = b""
        if not piece:
            return self._died(child)
        buffer += piece
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if not self._hear(line):
                return Reason.INTERNAL_ERROR, f"the child said what is no message, in phase {self._phase.value}: {line[:60]!r}"
            with contextlib.suppress(OSError):  # it reads each answer; one that does not must not hold us
                channel.send(b"\n", socket.MSG_DONTWAIT)
            if self._report is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(EXIT_SECONDS)
                return None, ""
        if len(buffer) > LINE_LIMIT:
            return Reason.INTERNAL_ERROR, f"the child said more than {LINE_LIMIT >> 20} MiB without an end of line"
        return None

    def _hear(self, line: bytes) -> bool:
        """Take in one message. False for what is none: from there on answers and phases would not belong together."""
        try:
            message = json.loads(line)
            kind, value = next(iter(message.items()))
            if kind == "phase":
                self._enter(Phase(value))
            elif kind == "note":
                self._note = str(value)
            elif kind == "report":
                self._enter(Phase.FINISH)
                self._report = {key: told for key, told in value.items() if key in REPORT_KEYS and told is not None}
            else:
                return False
        except (ValueError, TypeError, AttributeError, StopIteration, RecursionError):
            return False
        return True

    def _enter(self, phase: Phase) -> None:
        if phase is self._phase:
            return
        if self._phase is Phase.MEASURE and self._observer:
            self._observer.end()
            self._window.append(time.time())
        now = time.monotonic()
        self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._phase_since
        self._phase, self._phase_since, self._note = phase, now, ""
        self._mark()
        if phase is Phase.MEASURE and self._observer:
            self._observer.begin()
            self._window = [time.time()]

    def _overdue(self, child: subprocess.Popen[bytes], log_path: Path) -> tuple[Reason, str]:
        """The deadline has passed: ask for the stacks, keep what is known, and say where it hung."""
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)
        time.sleep(STACK_DUMP_SECONDS)
        where = f"no end within {self._env.deadline:g} s: it hung in phase {self._phase.value}"
        if self._note:
            where += f" ({self._note})"
        if self._phase is Phase.LAUNCH:
            return Reason.CPU_STARVED, f"the probe's process did not start within {self._env.deadline:g} s"
        return Reason.DEADLINE, where + _last_words(log_path)

    def _died(self, child: subprocess.Popen[bytes]) -> tuple[Reason, str]:
        """The child ended without a report."""
        try:
            code = child.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return Reason.ENGINE_CRASHED, f"the engine closed its channel in phase {self._phase.value} and did not end"
        where = f" in phase {self._phase.value}" + (f" ({self._note})" if self._note else "")
        if code == -signal.SIGKILL:
            return Reason.KILLED, f"the engine's process was killed from outside (SIGKILL){where}"
        if code < 0:
            return Reason.ENGINE_CRASHED, f"the engine died of {signal.Signals(-code).name}{where}"
        return Reason.ENGINE_CRASHED, f"the engine ended its process with status {code}{where} and no report"

    def _mark(self) -> None:
        write_mark(self._env.result_path, died_in(self._document(Reason.DIED_IN_LAUNCH, ""), self._phase))

    def _document(self, reason: Reason, message: str, **more: Any) -> Result:
        env = self._env
        return Result.model_validate({"run_id": env.run_id, "probe": env.probe, "target": env.target, "rank": env.rank,
                                      "world_size": env.world_size, "node": env.node, "started": round(self._started, 6),
                                      "finished": round(time.time(), 6), "reason": reason, "message": message, **more})

    def _result(self, reason: Reason | None, message: str, log_path: Path) -> Result:
        phase = self._phase
        if self._phase is Phase.MEASURE and self._observer:
            self._observer.end()
            self._window.append(time.time())
        self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - self._phase_since
        if reason in {Reason.ENGINE_CRASHED, Reason.KILLED, Reason.ENGINE_ERROR}:
            message += _last_words(log_path)
        try:
            more = self._told(log_path)
            said, says = Reason(more.pop("reason", Reason.INTERNAL_ERROR)), str(more.pop("message", ""))
            return self._document(said if reason is None else reason, says if reason is None else message, **more)
        except (ValidationError, ValueError, TypeError, AttributeError, KeyError) as error:
            return self._document(Reason.INTERNAL_ERROR, f"the probe's report is not valid: {error}"[:600])

    def _told(self, log_path: Path) -> dict[str, Any]:
        """The child's report joined with what was seen of it from outside. Raises what a report of a wrong shape leads to."""
        more = dict(self._report or {})
        more["versions"] = {"efa-pulse": probes.__version__, "python": platform.python_version(), **more.get("versions", {})}
        more["phases"] = {key.value: round(value, 6) for key, value in self._phases.items()}
        if len(self._window) == 2:
            more["measure"] = Window(start=round(self._window[0], 6), end=round(self._window[1], 6))
        if self._observer:
            more["evidence"] = self._observer.evidence(self._env.probe, more.get("evidence"), log_path)
            more["throttling"] = self._observer.throttling()
        return more


def encode_or_reduce(result: Result) -> bytes:
    """The encoded result; one too large becomes a result that says so and keeps who, when and why."""
    try:
        return encode(result)
    except ResultError as error:
        evidence = Evidence(stack=result.evidence.stack) if result.evidence else None
        kept = result.model_dump(include={"run_id", "probe", "rank", "world_size", "started", "finished"})
        return encode(Result.model_validate({**kept, "target": result.target[:200], "node": result.node[:200], "evidence": evidence,
                                             "reason": Reason.RESULT_TOO_LARGE, "message": str(error)}))


def write_mark(path: Path, result: Result) -> str | None:
    """Overwrite `path` in place with the result and a newline. Returns None, or why it could not be written."""
    data = encode_or_reduce(result) + b"\n"
    try:
        # Not blocking: a pipe that nobody reads must not hold the worker.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            written = os.pwrite(handle, data, 0)
            if written != len(data):
                return f"{path}: only {written} of {len(data)} bytes fit"
            with contextlib.suppress(OSError):
                os.ftruncate(handle, len(data))
        finally:
            os.close(handle)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def _report_bad_environment(environ: Mapping[str, str], message: str) -> None:
    """A wrong environment is visible from outside too, when there is a file to write to."""
    path = environ.get(f"{PREFIX}RESULT_PATH")
    if path:
        now = time.time()
        said = {name: environ.get(PREFIX + name.upper(), "")[:128] for name in ("run_id", "probe", "target")}
        result = Result.model_validate({**said, "run_id": said["run_id"] or "unknown", "node": platform.node(), "started": now,
                                        "finished": now, "reason": Reason.BAD_SPEC, "message": message})
        write_mark(Path(path), result)
        sys.stdout.write(encode_or_reduce(result).decode() + "\n")


def _last_words(log_path: Path) -> str:
    """The end of the engine's log, for a message: where each thread stood, if its stacks were dumped there, else the last lines."""
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    stood = [line for before, line in itertools.pairwise(lines) if before.endswith("(most recent call first):")]
    return f"; its last words: {' | '.join((stood or lines)[-3:])[-400:]}" if lines else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
