"""Network namespaces for local ranks: one namespace a rank, a veth pair each, joined by a bridge in a namespace of its own.

Nothing of the machine's own network is touched. Needs root (CAP_SYS_ADMIN) and iproute2.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from pathlib import Path
from types import TracebackType

IP_SECONDS = 10.0
PORT = 29400
MAX_RANKS = 250
_NAMES = "efapulse"
_counter = itertools.count()


class NamespaceError(Exception):
    """A namespace could not be made. The text says which command failed and why."""


class Namespaces:
    """A context manager that makes namespaces for `ranks` ranks and removes them at the end."""

    def __init__(self, ranks: int) -> None:
        if ranks > MAX_RANKS:
            raise NamespaceError(f"{ranks} ranks do not fit one bridge of namespaces, at most {MAX_RANKS}")
        self._name = f"{_NAMES}-{os.getpid()}-{next(_counter)}"
        self._ranks = ranks
        self._made: list[str] = []
        self.addresses = [f"10.199.0.{rank + 1}" for rank in range(ranks)]
        self.endpoint = f"{self.addresses[0]}:{PORT}"

    def __enter__(self) -> Namespaces:
        remove_stale()
        try:
            switch = self._add("sw")
            _ip("-n", switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", switch, "link", "set", "br0", "up")
            for rank in range(self._ranks):
                name = self._add(str(rank))
                _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{rank}", "netns", switch)
                _ip("-n", switch, "link", "set", f"p{rank}", "master", "br0", "up")
                _ip("-n", name, "address", "add", f"{self.addresses[rank]}/24", "dev", "eth0")
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "link", "set", "eth0", "up")
                _ip("-n", name, "route", "add", "default", "dev", "eth0")
        except NamespaceError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in self._made:
            with contextlib.suppress(NamespaceError):
                _ip("netns", "delete", name)
        self._made.clear()

    def command(self, rank: int) -> list[str]:
        """The prefix that runs a command as this rank."""
        return ["ip", "netns", "exec", f"{self._name}-{rank}"]

    def received_bytes(self, rank: int) -> int:
        """Bytes the rank's link has received, by the kernel's own counter."""
        done = subprocess.run([*self.command(rank), "cat", "/sys/class/net/eth0/statistics/rx_bytes"], capture_output=True, text=True,
                              timeout=IP_SECONDS, check=True)
        return int(done.stdout)

    def _add(self, suffix: str) -> str:
        name = f"{self._name}-{suffix}"
        _ip("netns", "add", name)
        self._made.append(name)
        return name


def remove_stale() -> None:
    """Remove namespaces left by a process of ours that no longer exists."""
    folder = Path("/run/netns")
    for entry in folder.glob(f"{_NAMES}-*") if folder.is_dir() else ():
        owner = entry.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            with contextlib.suppress(NamespaceError):
                _ip("netns", "delete", entry.name)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=IP_SECONDS, check=False)
    except FileNotFoundError:
        raise NamespaceError("network namespaces need the `ip` command: apt-get install iproute2") from None
    except subprocess.TimeoutExpired:
        raise NamespaceError(f"ip {' '.join(arguments)}: no end within {IP_SECONDS:g} s") from None
    if done.returncode != 0:
        raise NamespaceError(f"ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode} (network namespaces need root)")
