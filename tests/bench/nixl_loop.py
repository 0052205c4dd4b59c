"""NIXL without our layers: two processes, one plain loop of posts and polls. The peer of the `nixl_bandwidth` benchmark.

Run as `python nixl_loop.py OPERATION SIZE BATCH SECONDS`; prints one JSON object with `rate` in bytes per second. The variables of the
environment (UCX_TLS) are those of the run.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

POLL_SECONDS = 0.0001
LIMIT_SECONDS = 60.0


def agent_with_memory(name: str, size: int) -> tuple[Any, int, Any]:
    """An agent with backend UCX, the address of its registered memory, and what keeps that memory alive."""
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = mmap.mmap(-1, size)
    view = ctypes.c_char.from_buffer(memory)
    ctypes.memset(ctypes.addressof(view), 1, size)
    agent.register_memory([(ctypes.addressof(view), size, 0, "")], "DRAM", backends=["UCX"])
    return agent, ctypes.addressof(view), (memory, view)


def target(link: Connection, size: int) -> None:
    """Count the notifications and say when all announced ones are there."""
    os.setsid()  # as a worker has: Linux schedules by session
    agent, address, _memory = agent_with_memory("target", size)
    link.send((agent.get_agent_metadata(), address))
    peer = agent.add_remote_agent(link.recv())
    seen, wanted = 0, None
    until = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < until:
        news = [message for messages in agent.get_new_notifs().values() for message in messages]
        seen += news.count(b"data")
        for message in news:
            if message.startswith(b"count:"):
                wanted = int(message[6:])
        if wanted is not None and seen >= wanted:
            agent.send_notif(peer, b"all")
            break
        if not news:
            time.sleep(POLL_SECONDS)
    link.recv()
    os._exit(0)


def initiator(link: Connection, operation: str, size: int, batch: int, seconds: float) -> float:
    """Repeat one transfer for `seconds`. Returns bytes per second, the target's word on all writes included."""
    agent, address, _memory = agent_with_memory("initiator", size * batch)
    metadata, remote = link.recv()
    link.send(agent.get_agent_metadata())
    peer = agent.add_remote_agent(metadata)
    # Reversed on the far side, so that neighbouring blocks are not joined to one large transfer.
    near = agent.get_xfer_descs([(address + i * size, size, 0) for i in range(batch)], "DRAM")
    far = agent.get_xfer_descs([(remote + (batch - 1 - i) * size, size, 0) for i in range(batch)], "DRAM")
    message = b"data" if operation == "write" else b""
    handle = agent.initialize_xfer(operation.upper(), near, far, peer, message, backends=["UCX"])

    def once() -> None:
        state = agent.transfer(handle, message)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL reports {state}")

    warmup = 3
    for _ in range(warmup):
        once()
    count = 0
    started = time.perf_counter()
    while count < 3 or time.perf_counter() - started < seconds:
        once()
        count += 1
    if operation == "write":
        agent.send_notif(peer, b"count:%d" % (count + warmup))
        while not any(b"all" in messages for messages in agent.get_new_notifs().values()):
            if time.perf_counter() - started > LIMIT_SECONDS:
                raise RuntimeError("the target does not confirm")
    elapsed = time.perf_counter() - started
    link.send("end")
    return count * size * batch / elapsed


def main(operation: str, size: int, batch: int, seconds: float) -> None:
    """Start the target beside this process and measure."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=target, args=(theirs, size * batch), daemon=True)
    other.start()
    rate = initiator(ours, operation, size, batch, seconds)
    if operation == "read":
        other.terminate()
    other.join(LIMIT_SECONDS)
    sys.stdout.write(json.dumps({"rate": rate}) + "\n")
    sys.stdout.flush()
    # The destructors of an agent whose peer is gone have ended this process with a segmentation fault.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
