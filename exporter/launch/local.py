"""The local launcher: the same worker commands as in a cluster, as processes of this machine, under the same environment contract.

Each run has a thread that starts its workers, waits for them and reads their results; a worker whose starter dies is ended by the kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from exporter import scratch
from exporter.launch import OnFinished
from exporter.launch.netns import NamespaceError, Namespaces
from exporter.runs import Run, RunSpec, missing_result
from probes import processes
from probes.contract import PREFIX, WorkerEnv
from probes.reasons import Reason
from probes.result import Result, ResultError, decode
from probes.supervisor import PARENT_PID

MARGIN_SECONDS = 10.0
CANCEL_SECONDS = 5.0
POLL_SECONDS = 0.02
LOG_KEPT = 64 << 10
OUTPUT_KEPT = 1 << 20
PARTNER_SECONDS = 5.0
"""How long the other ranks may go on after one was killed: those that met it notice by themselves."""
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|_KEY$|^KEY$", re.IGNORECASE)
"""Names of variables that no engine needs and that hold what no worker should see."""


@dataclass
class _Worker:
    rank: int
    process: subprocess.Popen[bytes]
    result_path: Path
    output_path: Path
    log_path: Path


@dataclass
class _Active:
    thread: threading.Thread
    cancel: threading.Event = field(default_factory=threading.Event)


class WorkDirError(Exception):
    """There is no folder in which workers could run. The text says where and what to do."""


class LocalLauncher:
    """Runs workers as local processes, on loopback or (`namespaces`) each in a network namespace of its own joined by veth."""

    def __init__(self, on_finished: OnFinished, *, namespaces: bool = False, work_dir: Path | None = None) -> None:
        self._on_finished = on_finished
        self._namespaces = namespaces
        self._lock = threading.Lock()
        try:
            if work_dir is not None:
                work_dir.mkdir(parents=True, exist_ok=True)
            # A folder of our own also in a given one: nobody else's files are read or removed, and two services may share it.
            self._folder = scratch.make("runs", work_dir)
            self._secret_path = self._folder / "secret"
            self._keep_secret()
        except OSError as error:
            where = f" in {work_dir}" if work_dir is not None else ""
            raise WorkDirError(f"no folder for running workers can be made{where}: {error.strerror or error}: name one that can be written "
                               "in launch.local.work_dir, or set TMPDIR") from None
        self._active: dict[str, _Active] = {}
        self._closed = False

    def start(self, spec: RunSpec) -> None:
        """See `Launcher.start`."""
        thread = threading.Thread(target=self._run, args=(spec,), name=f"run-{spec.run_id}", daemon=True)
        with self._lock:
            if self._closed:
                raise RuntimeError("the launcher is closed")
            self._active[spec.run_id] = _Active(thread)
        thread.start()

    def cancel(self, run_id: str) -> None:
        """See `Launcher.cancel`."""
        with self._lock:
            active = self._active.get(run_id)
        if active is not None:
            active.cancel.set()

    def running(self) -> list[str]:
        """See `Launcher.running`."""
        with self._lock:
            return sorted(self._active)

    def close(self, grace: float) -> None:
        """See `Launcher.close`. Runs that end within the grace keep their result; the others are cancelled."""
        until = time.monotonic() + grace
        with self._lock:
            self._closed = True
            active = list(self._active.values())
        for one in active:
            one.thread.join(max(0.0, until - time.monotonic()))
        for one in active:
            one.cancel.set()
        for one in active:
            one.thread.join(CANCEL_SECONDS + 3.0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _keep_secret(self) -> None:
        """Write the secret of the runs unless it is there; a cleaner of old files may have taken it."""
        with self._lock:
            if not self._secret_path.exists() or not self._secret_path.stat().st_size:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                with open(self._secret_path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                    file.write(secrets.token_hex(32))

    def _run(self, spec: RunSpec) -> None:
        started = time.time()
        try:
            run = self._finish(spec, started)
        except Exception as error:  # noqa: BLE001 - a run must end with a result whatever happens
            run = _failed(spec, started, Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        with self._lock:
            self._active.pop(spec.run_id, None)
        self._on_finished(run)

    def _finish(self, spec: RunSpec, started: float) -> Run:
        directory = self._folder / spec.run_id
        workers: list[_Worker] = []
        try:
            self._keep_secret()
            directory.mkdir()
            with contextlib.ExitStack() as stack:
                net = stack.enter_context(Namespaces(spec.world_size)) if self._namespaces and spec.world_size > 1 else None
                endpoint = net.endpoint if net else f"127.0.0.1:{_free_port()}"
                stack.callback(_end_all, workers)
                for rank in range(spec.world_size):
                    workers.append(self._start_worker(spec, rank, directory, endpoint, net))  # noqa: PERF401 - keeps those already started
                self._wait(spec, workers)
        except (OSError, NamespaceError) as error:
            return _failed(spec, started, Reason.LAUNCH_FAILED, str(error))
        else:
            finished = time.time()
            results = tuple(_read_result(spec, worker, started, finished) for worker in workers)
            logs = {worker.rank: _tail(worker.log_path) for worker in workers}
            return Run(spec, results, started, finished, logs)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _start_worker(self, spec: RunSpec, rank: int, directory: Path, endpoint: str, net: Namespaces | None) -> _Worker:
        result_path, output_path, log_path = (directory / f"rank-{rank}.{kind}" for kind in ("result", "out", "log"))
        env = WorkerEnv(run_id=spec.run_id, probe=spec.probe, target=spec.target, rank=rank, world_size=spec.world_size,
                        rendezvous=endpoint if spec.world_size > 1 else None, secret_file=self._secret_path,
                        address=net.addresses[rank] if net else "127.0.0.1", node=spec.nodes[rank], transport=spec.transport,
                        deadline=spec.deadline, spec=spec.spec, result_path=result_path, log_path=log_path)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX) and not _SECRET.search(name)}
        command = [*(net.command(rank) if net else []), sys.executable, "-m", "probes", "run"]
        with output_path.open("wb") as output:
            process = subprocess.Popen(command, env={**inherited, **env.to_environ(), PARENT_PID: str(os.getpid())}, stdout=output,
                                       stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        return _Worker(rank, process, result_path, output_path, log_path)

    def _wait(self, spec: RunSpec, workers: list[_Worker]) -> None:
        with self._lock:
            cancel = self._active[spec.run_id].cancel
        ends_at = time.monotonic() + spec.deadline + MARGIN_SECONDS
        while any(worker.process.poll() is None for worker in workers):
            if any((worker.process.returncode or 0) < 0 for worker in workers):
                ends_at = min(ends_at, time.monotonic() + PARTNER_SECONDS)
            if cancel.is_set() or time.monotonic() > ends_at:
                for worker in workers:
                    with contextlib.suppress(ProcessLookupError):
                        worker.process.terminate()
                until = time.monotonic() + CANCEL_SECONDS
                while any(worker.process.poll() is None for worker in workers) and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
                return
            time.sleep(POLL_SECONDS)


def _end_all(workers: list[_Worker]) -> None:
    """Whatever of these workers still lives is killed, with everything below it."""
    for worker in workers:
        if worker.process.poll() is None:
            below = processes.descendants(worker.process.pid)
            for pid in [worker.process.pid, *below]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(2.0)


def _read_result(spec: RunSpec, worker: _Worker, started: float, finished: float) -> Result:
    """The rank's result: the last line of its output, else its termination file, else one that says how it ended."""
    problem = ""
    for source in (_last_line(worker.output_path), _first_bytes(worker.result_path)):
        if not source:
            continue
        try:
            result = decode(source)
        except ResultError as error:
            problem = problem or str(error)
            continue
        if (result.run_id, result.rank) != (spec.run_id, worker.rank):
            problem = f"the result is of run {result.run_id} rank {result.rank}"
            continue
        return result
    code = worker.process.returncode
    killed = code is not None and code < 0
    how = f"the worker was killed by {signal.Signals(-code).name}" if killed else f"the worker ended with status {code}"
    reason, message = (Reason.RESULT_UNREADABLE, problem) if problem else (Reason.NO_RESULT, f"{how} and left no result")
    return missing_result(spec, worker.rank, reason, message, started, finished)


def _failed(spec: RunSpec, started: float, reason: Reason, message: str) -> Run:
    finished = time.time()
    results = tuple(missing_result(spec, rank, reason, message, started, finished) for rank in range(spec.world_size))
    return Run(spec, results, started, finished)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_line(path: Path) -> bytes:
    lines = _last_bytes(path, OUTPUT_KEPT).strip().splitlines()
    return lines[-1] if lines else b""


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(OUTPUT_KEPT)
    except OSError:
        return b""


def _last_bytes(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - limit))
            return file.read()
    except OSError:
        return b""


def _tail(path: Path) -> str:
    return _last_bytes(path, LOG_KEPT).decode(errors="replace")
