"""When a read began, by the scheduler's account."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.canary.clock import Moment
from probes.canary.wake import WakeClock, woken_at

SENDER = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(20):
    time.sleep(0.02)
    sock.sendall(b"%20d" % time.time_ns())
"""


@pytest.mark.parametrize(("before", "after", "at"), [
    ((100, 5), (400, 6), 9_700),
    ((100, 5), (100, 6), 10_000),
    ((100, 5), (100, 5), None),  # it did not sleep
    ((100, 5), (400, 7), None),  # it was also interrupted
    (None, (400, 6), None),
    ((100, 5), None, None),
])
def test_the_wait_for_a_cpu_is_taken_off(before: tuple[int, int] | None, after: tuple[int, int] | None, at: int | None) -> None:
    assert woken_at(before, after, 10_000) == at


@pytest.mark.parametrize(("moment", "begin"), [
    (Moment(100, 1, 90), 90),
    (Moment(100, 1, 110), 100),
    (Moment(100, 1), 100),
    (Moment(None, 1, 90), None),
])
def test_what_came_first_came_no_later_than_the_last(moment: Moment, begin: int | None) -> None:
    assert moment.begin().kernel == begin
    assert moment.begin().user == 1


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel keeps no scheduler figures")
def test_a_woken_thread_knows_when_that_was() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = subprocess.Popen([sys.executable, "-c", SENDER, str(listener.getsockname()[1])])
        sock, _ = listener.accept()
    clock = WakeClock()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    late = []
    for _ in range(20):
        before = clock.look()
        poll.poll(10_000)
        at = woken_at(before, clock.look(), time.time_ns())
        sent = int(sock.recv(20))
        if at is not None:
            late.append(at - sent)
    sock.close()
    clock.close()
    assert clock.look() is None
    assert sender.wait(10) == 0
    assert min(late) > 0
    assert sorted(late)[len(late) // 2] < 5_000_000
