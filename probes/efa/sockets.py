"""Witness 2: the bytes that went through the TCP sockets of one process and of everything it started.

Socket diagnostics give every socket of the network namespace with its byte counts; `/proc/PID/fd` says by inode which of them are ours.
A socket is one kernel object with one cookie, however many processes hold it, so a byte counts once as sent where it left and once as
received where it arrived, also when both ends are ours. Sent is what the process handed over (`tcpi_bytes_acked` and what is still
queued), received is what arrived (`tcpi_bytes_received`); SYN and FIN count one byte each.

What is missed: a socket that is opened and closed between two looks, because its owner is never seen. `unattributed` bounds it. A socket
seen once counts in full to its end: the kernel tells the final counts of every socket it destroys.
"""

from __future__ import annotations

import os
from pathlib import Path

from probes.efa.process_tree import ProcessTree
from probes.efa.sock_diag import SockDiag, SockDiagError, SocketCount

FORGET_AFTER = 8  # looks without a sight before the counts of a closed socket are folded into one sum


class SocketBytes:
    """TCP bytes of process `pid` and its descendants. Never raises after creation: what cannot be seen is None, and `reason` says why.

    One look costs about 1 ms for a process with few files and 5 us for each socket of the namespace. Not thread-safe.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._tree = ProcessTree(pid, proc)
        self._own: dict[int, tuple[int, int, int]] = {}
        self._strangers: dict[int, int] = {}
        self._closed = (0, 0)
        self._unattributed = (0, 0)
        self._looks = 0
        self._mark: tuple[int, int] | None = None
        self._unattributed_at_mark = (0, 0)
        self._diag: SockDiag | None = None
        self.reason: str | None = None
        try:
            self._diag = SockDiag()
        except SockDiagError as error:
            self.reason = str(error)

    def close(self) -> None:
        """Give the netlink sockets back."""
        if self._diag is not None:
            self._diag.close()
            self._diag = None
            self.reason = "closed"

    def sample(self) -> bool:
        """Look once. False when it could not be looked; `reason` then says why."""
        if self._diag is None:
            return False
        try:
            self._look(self._diag)
        except (SockDiagError, OSError) as error:
            self.reason = str(error)
            return False
        self.reason = None
        return True

    def mark(self) -> bool:
        """Start of the window: what was counted so far no longer counts. False when it could not be looked."""
        if self._diag is not None:
            self._diag.events_lost = not self._diag.hears_events
        seen = self.sample()
        self._mark = self.total() if seen else None
        self._unattributed_at_mark = self._unattributed
        return seen

    def since_mark(self) -> tuple[int, int] | None:
        """Bytes sent and received since `mark`, by a fresh look. None when that look or the one of `mark` was not possible."""
        if not self.sample() or self._mark is None:
            return None
        sent, received = self.total()
        return sent - self._mark[0], received - self._mark[1]

    def total(self) -> tuple[int, int]:
        """Bytes sent and received over every socket ever seen to be ours, as of the last look."""
        sent, received = self._closed
        for counts in self._own.values():
            sent += counts[0]
            received += counts[1]
        return sent, received

    @property
    def unattributed(self) -> tuple[int, int] | None:
        """Upper bound of what `since_mark` missed: bytes of sockets that came and went unseen in the whole namespace since `mark`.

        None where the kernel does not tell of destroyed sockets, or told of more than could be heard.
        """
        if self._diag is None or self._diag.events_lost:
            return None
        return self._unattributed[0] - self._unattributed_at_mark[0], self._unattributed[1] - self._unattributed_at_mark[1]

    def _look(self, diag: SockDiag) -> None:
        self._looks += 1
        sockets = diag.sockets()
        inodes = self._inodes()
        strangers: dict[int, int] = {}
        for count in sockets:
            if count.inode in inodes or count.cookie in self._own:
                self._keep(count)
            else:
                strangers[count.cookie] = self._strangers.get(count.cookie, 0) + 1
        for count in diag.destroyed():
            if count.cookie in self._own:
                self._keep(count)
            # Twice seen in other hands, it is not ours. Seen once or never, it may have been ours for a moment.
            elif max(self._strangers.get(count.cookie, 0), strangers.get(count.cookie, 0)) < 2:
                self._unattributed = self._unattributed[0] + count.sent, self._unattributed[1] + count.received
        self._strangers = strangers
        self._fold()

    def _keep(self, count: SocketCount) -> None:
        self._own[count.cookie] = count.sent, count.received, self._looks

    def _fold(self) -> None:
        for cookie in [cookie for cookie, (_, _, seen) in self._own.items() if self._looks - seen >= FORGET_AFTER]:
            sent, received, _ = self._own.pop(cookie)
            self._closed = self._closed[0] + sent, self._closed[1] + received

    def _inodes(self) -> set[int]:
        """Inodes of all sockets that our processes hold. Raises OSError when they may not be looked into."""
        found: set[int] = set()
        for pid in self._tree.alive():
            try:
                if not self._same_namespace(pid):
                    raise OSError(f"process {pid} lives in another network namespace")
                with os.scandir(self._proc / str(pid) / "fd") as entries:
                    for entry in entries:
                        inode = _socket_inode(entry.path)
                        if inode is not None:
                            found.add(inode)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except PermissionError as error:
                raise OSError(f"the files of process {pid} may not be read: {error.strerror}") from None
        return found

    def _same_namespace(self, pid: int) -> bool:
        ours, theirs = self._proc / "self" / "ns" / "net", self._proc / str(pid) / "ns" / "net"
        try:
            return ours.stat().st_ino == theirs.stat().st_ino
        except PermissionError:
            return True  # the look at its files that follows says it better


def _socket_inode(path: str) -> int | None:
    try:
        target = os.readlink(path)  # noqa: PTH115 - hundreds of files, four times a second
    except FileNotFoundError:
        return None
    return int(target[8:-1]) if target.startswith("socket:[") else None
