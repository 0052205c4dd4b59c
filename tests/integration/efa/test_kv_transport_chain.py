"""The transport of a prefill/decode pair's KV, through everything but the hardware: a canary worker that reads the engines' pages, real
witnesses of two nodes over made sysfs trees whose counters follow the bytes the decode engine counts, and the judge."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.vllm import MODEL, Server
from sysfs_tree import SysfsTree

from exporter.judge.judge import judge
from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.runs import Run, RunSpec
from exporter.witness import witnessed
from probes.contract import WorkerEnv
from probes.efa.window import NoAnswer, WitnessAnswer, ask
from probes.result import Result, decode

ROOT = Path(__file__).parents[3]
TOKENS = 4000
DEVICE = "rdmap79s0"
QUIET_SECONDS = 4.0
"""Time before a request in which nothing moves: the witness compares it with the request's own window."""

pytestmark = pytest.mark.timeout(300)


@dataclass
class Side:
    """One node: its made tree, its witness, its engine. `follow` is how the tree's counters follow the KV."""

    tree: SysfsTree
    server: Server
    witness: str
    counters: tuple[str, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, amount: int) -> None:
        """KV bytes, or somebody else's, went through the devices."""
        with self.lock:
            self.tree.add(DEVICE, **dict.fromkeys(self.counters, amount))

    def reset(self) -> None:
        """The driver was loaded again: every counter starts over."""
        with self.lock:
            for counter in self.counters:
                self.tree.set(DEVICE, counter, 0)


@contextlib.contextmanager
def witness(root: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "probes.witness", "--sysfs", str(root), "--listen", "127.0.0.1:0", "--interval", "0.5"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    try:
        port = re.search(r"port (\d+)", process.stderr.readline())
        assert port is not None
        yield f"127.0.0.1:{port[1]}"
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with contextlib.ExitStack() as stack:
        sides = []
        for name, counters in (("p", ("rdma_read_resp_bytes", "tx_bytes")), ("d", ("rdma_read_bytes", "rx_bytes"))):
            tree = SysfsTree(tmp_path / name)
            tree.efa(DEVICE)
            server = stack.enter_context(Server(ttft=0.3))
            sides.append(Side(tree, server, stack.enter_context(witness(tmp_path / name)), counters))
        yield sides[0], sides[1]


@contextlib.contextmanager
def moving(pair: tuple[Side, Side], each: Callable[[int], None]) -> Iterator[None]:
    """Tell `each` of the KV bytes that decode has newly counted, ten times a second, also of none."""
    done = threading.Event()

    def run() -> None:
        seen = pair[1].server.counts.moved
        while not done.wait(0.1):
            now = pair[1].server.counts.moved
            each(now - seen)
            seen = now

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def canary(pair: tuple[Side, Side], folder: Path) -> tuple[Verdict, Result]:
    """A whole canary worker to the pair, and the verdict with what the witnesses of both nodes say."""
    prefill, decoder = pair
    pages = [{"url": f"{side.server.url}/metrics", "role": role, "pod": f"{role}-0", "node": name}
             for side, role, name in ((prefill, "prefill", "p"), (decoder, "decode", "d"))]
    spec = {"url": decoder.server.url, "prefill": prefill.server.url, "stack": "vllm", "route": "pair", "model": MODEL,
            "api": "completions", "prompt": "long", "prompt_tokens": TOKENS, "max_tokens": 8, "context_length": 8192, "anchors": "off",
            "pd": {"pages": pages}}
    time.sleep(QUIET_SECONDS)
    env = WorkerEnv(run_id="r", probe="canary", target="chat", node="exporter", deadline=120.0, spec=spec, result_path=folder / "result")
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env={**os.environ, **env.to_environ()}, capture_output=True, timeout=150,
                          check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    result = decode((folder / "result").read_bytes())
    assert result.pd is not None, result.message
    assert result.measure is not None
    answers: dict[str, WitnessAnswer | NoAnswer | None] = {}
    for name, side in (("p", prefill), ("d", decoder)):
        said = ask(side.witness, result.measure.start, result.measure.end, started=result.started, ended=result.finished, deadline=60.0)
        answers[name] = said if isinstance(said, NoAnswer) else WitnessAnswer(name, said.window, said.before, said.after)
    run = Run(RunSpec("r", "canary", "chat", ("exporter",), "any", 120.0), (result,), result.started, result.finished)
    return judge(run, answers=answers), result


def test_counters_that_follow_the_kv_are_efa(pair: tuple[Side, Side], tmp_path: Path) -> None:
    def each(moved: int) -> None:
        for side in pair if moved else ():
            side.add(moved)

    with moving(pair, each):
        verdict, result = canary(pair, tmp_path)
    assert witnessed(result) == ("p", "d")
    assert verdict.transport is Transport.EFA_RDMA, verdict.proofs


def test_counters_that_stay_flat_are_tcp(pair: tuple[Side, Side], tmp_path: Path) -> None:
    verdict, result = canary(pair, tmp_path)
    assert result.pd is not None
    assert result.pd.kv_bytes is not None
    assert result.pd.kv_bytes > TOKENS * 2048 * 0.9
    assert verdict.transport is Transport.TCP, verdict.proofs


def test_background_traffic_hides_it(pair: tuple[Side, Side], tmp_path: Path) -> None:
    def each(_: int) -> None:
        for side in pair:
            side.add(1_000_000)

    with moving(pair, each):
        verdict, _ = canary(pair, tmp_path)
    assert verdict.transport is Transport.INDETERMINATE, verdict.proofs
    assert any("other traffic" in proof.says for proof in verdict.proofs), verdict.proofs


def test_a_reset_in_the_middle_is_told_and_nothing_is_proven(pair: tuple[Side, Side], tmp_path: Path) -> None:
    def each(moved: int) -> None:
        if moved:
            pair[0].add(moved)
            pair[1].reset()

    with moving(pair, each):
        verdict, _ = canary(pair, tmp_path)
    assert verdict.transport is Transport.INDETERMINATE, verdict.proofs
    assert any("reset" in statement.text for statement in verdict.statements), verdict.statements
