"""NCCL's own view of a communicator that hangs: the RAS service, a text protocol on TCP that every NCCL from 2.24 on serves.

Protocol: NCCL docs, ras.rst (`CLIENT PROTOCOL`, `TIMEOUT`, `STATUS`). It answers even while the collective is stuck.
"""

from __future__ import annotations

import socket
import time

PROTOCOL = 2
ANSWER_LIMIT = 16 << 10


def free_port() -> int:
    """A TCP port on the loopback interface nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status(port: int, seconds: float = 2.0) -> str | None:
    """The answer to STATUS on 127.0.0.1:`port` within `seconds`, None when nobody answers."""
    until = time.monotonic() + seconds
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as link:
            # TIMEOUT is how long RAS may take to ask the other nodes.
            link.sendall(f"CLIENT PROTOCOL {PROTOCOL}\nTIMEOUT {max(1, int(seconds) - 1)}\nSTATUS\n".encode())
            return _tidy(_read(link, until))
    except OSError:
        return None


def _read(link: socket.socket, until: float) -> str:
    answer = b""
    while len(answer) < ANSWER_LIMIT and (left := until - time.monotonic()) > 0:
        link.settimeout(left)
        try:
            piece = link.recv(4096)
        except TimeoutError:
            break
        except OSError:
            break
        if not piece:
            break
        answer += piece
    return answer.decode(errors="replace")


def _tidy(answer: str) -> str | None:
    lines = [" ".join(line.split()) for line in answer.splitlines()]
    lines = [line for line in lines if line and line != "OK" and not line.startswith("SERVER PROTOCOL") and set(line) - set("=- ")]
    # What is wrong stands at the end, under this heading; before it come versions and counts.
    if "Errors" in lines:
        lines = lines[lines.index("Errors") + 1 :]
    return "\n".join(line for line in lines if line != "Warnings") or None
