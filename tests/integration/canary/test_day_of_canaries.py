"""A day of canaries in a minute: one every minute and a long one every ten, good and failed, by one process that does not end between.

In production each request has a process of its own, so whatever leaks there is gone with it; here nothing hides it.
"""

from __future__ import annotations

import contextlib
import gc
import http.server
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canary_peers import quick

from probes.canary.pd.params import Page, PdParams
from probes.canary.pd.watch import PdWatch, Sent
from probes.canary.session import hold
from probes.processes import descendants

DAY_MINUTES = 1440
WARM_UP = 200
ROOM_BYTES = 6_000_000
"""What an allocator may take over a day's thousand requests without a leak: 4 kB a request would already be more."""
FAULTS = ["cut", "reset", "error_in_stream", "http_503", "empty", "finish_abort", "garbage", "no_answer", "stall", "short"]
PAGES = Path(__file__).parents[2] / "fixtures" / "engines"


class Handler(http.server.BaseHTTPRequestHandler):
    """The recorded page of decode, before and after a request in turn."""

    pages = itertools.cycle([(PAGES / f"vllm_decode_{moment}.txt").read_bytes() for moment in ("idle", "after_pd")])

    def do_GET(self) -> None:
        body = next(self.pages)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()


@pytest.fixture
def endpoint() -> Iterator[tuple[str, int]]:
    """The simulated endpoint in a process of its own: its address and pid."""
    command = [sys.executable, "-m", "probes.canary.simulated", "--listen", "127.0.0.1:0", "--ttft", "0.001", "--gap", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found is not None
        yield found.group(), process.pid
        process.terminate()
        process.wait(10)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def sockets(pid: int) -> int:
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(link.readlink()).startswith("socket:")
    return count


@pytest.mark.timeout(400)
def test_a_day_of_canaries_leaks_nothing(endpoint: tuple[str, int], page: str) -> None:
    url, pid = endpoint
    seen: Counter[str] = Counter()

    def one(number: int) -> None:
        fault = FAULTS[number // 20 % len(FAULTS)] if number % 20 == 7 else "none"
        fields: dict[str, Any] = {"prompt": "long", "prompt_tokens": 2048, "context_length": 32768} if number % 10 == 0 else {}
        if fault in ("stall", "no_answer"):
            fields |= {"head_timeout": 0.3, "first_token_timeout": 0.3, "stall_timeout": 0.3}
        params = quick(url, headers={"x-simulated": json.dumps({"fault": fault, "ttft": 0.001, "gap": 0})}, max_tokens=8, **fields)
        watch = PdWatch(PdParams(pages=(Page(url=page, role="decode", pod="decode-0"),), settle=0.0))
        session = hold(params, before_request=watch.before)
        watch.after(session.run.stream, Sent("router"), seconds=0.0)
        seen["good" if session.run.stream.status in ("ok", "disturbed") else session.run.stream.status] += 1

    for number in range(WARM_UP):
        one(number)
    gc.collect()
    ours, theirs = resident(os.getpid()), resident(pid)
    before = sockets(os.getpid()), sockets(pid), threading.active_count(), len(descendants(os.getpid()))
    for number in range(WARM_UP, DAY_MINUTES):
        one(number)
    gc.collect()
    after = sockets(os.getpid()), sockets(pid), threading.active_count(), len(descendants(os.getpid()))
    assert all(there <= here + 2 for here, there in zip(before, after, strict=True)), (before, after)
    assert resident(os.getpid()) - ours < ROOM_BYTES
    assert resident(pid) - theirs < ROOM_BYTES
    assert seen["good"] == DAY_MINUTES - DAY_MINUTES // 20, seen
    assert len(seen) >= 8, seen
