"""A cell: network, mount and process namespaces of their own, in which a test cluster lives.

Nothing of the machine's own network or files is touched, and when the cell ends (or the test process dies, however) the kernel ends every
process in it. Processes outside reach a port inside through a `Door`, which can also cut or stall the connections that it carries.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).parent
ADDRESS = "10.77.0.1"
READY_SECONDS = 20.0
END_SECONDS = 10.0


def why_not() -> str | None:
    """Why no cell can be made here, or None."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc", "mount") if shutil.which(name) is None]
    if missing:
        return f"commands missing: {', '.join(missing)} (apt-get install iproute2 util-linux mount)"
    if os.geteuid() != 0:
        return "a cluster in namespaces of its own needs root"
    return None


@dataclass
class Process:
    """A process inside the cell. `pid` is its number outside, `handle` the nsenter that waits for it."""

    name: str
    pid: int
    handle: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """Whether it runs."""
        return self.handle.poll() is None

    def send(self, number: int) -> None:
        """Send a signal to the process itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, grace: float = END_SECONDS) -> int:
        """End it and return its exit status."""
        self.send(number)
        try:
            return self.handle.wait(grace)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            return self.handle.wait(END_SECONDS)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It is stopped in this block."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            # nsenter stops itself with its child, and wakes it when it is woken.
            self.handle.send_signal(signal.SIGCONT)
            self.send(signal.SIGCONT)

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


class Cell:
    """A context manager that makes the namespaces and ends everything in them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self._processes: list[Process] = []

    def __enter__(self) -> Cell:
        self.work.mkdir(parents=True, exist_ok=True)
        log = (self.work / "cell.log").open("wb")
        self._outer = subprocess.Popen(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                                        sys.executable, str(HERE / "cell_init.py"), ADDRESS],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        log.close()
        assert self._outer.stdout is not None
        if self._outer.stdout.readline() != b"ready\n":
            self.__exit__(None, None, None)
            raise RuntimeError(f"no cell: {(self.work / 'cell.log').read_text()}")
        self.pid = _child(self._outer.pid)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._outer.stdin is not None
        assert self._outer.stdout is not None
        self._outer.stdin.close()  # the first process of the cell ends, and the kernel ends all others
        try:
            self._outer.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._outer.kill()
            self._outer.wait(END_SECONDS)
        self._outer.stdout.close()
        for process in self._processes:
            process.handle.kill()  # its child is gone; a stopped nsenter would not notice
            process.handle.wait(END_SECONDS)

    def enter(self) -> list[str]:
        """The prefix that runs a command in the cell."""
        return ["nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--"]

    def start(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, fds: Sequence[int] = ()) -> Process:
        """Start a program in the cell; its output goes to `<name>.log`."""
        path = self.work / f"{name}.log"
        with path.open("ab") as log:
            handle = subprocess.Popen([*self.enter(), *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=tuple(fds),
                                      env={**os.environ, **(env or {})}, start_new_session=True)
        process = Process(name, _child(handle.pid), handle, path)
        self._processes.append(process)
        return process

    def run(self, *command: str, check: bool = True, timeout: float = 30.0) -> str:
        """Run a command in the cell to its end and return its output."""
        done = subprocess.run([*self.enter(), *command], capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}: {done.stderr.strip()}")
        return done.stdout


class Door:
    """A TCP port on this machine's loopback that leads to a port in the cell."""

    def __init__(self, cell: Cell, port: int, *, address: str = ADDRESS, name: str = "door") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._process = cell.start(name, [sys.executable, str(HERE / "cell_door.py"), str(self._listener.fileno()), address, str(port)],
                                   fds=[self._listener.fileno()])
        self._listener.close()

    def cut(self) -> None:
        """Reset every connection that goes through the door now; new ones are let in."""
        self._process.send(signal.SIGUSR1)

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """In this block nothing passes, in either direction, and nobody is told: the way a dead middlebox behaves."""
        with self._process.frozen():
            yield

    def close(self) -> None:
        """Shut the door."""
        self._process.stop(signal.SIGKILL)


def _child(pid: int) -> int:
    """The one child of a process that was just started."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children:
                return int(children[0])
        if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise RuntimeError("the process ended at once")
        time.sleep(0.002)
    raise RuntimeError("the process did not start")
