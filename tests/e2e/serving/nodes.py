"""Two made nodes under the engines: a sysfs tree each with an EFA device, whose counters follow the bytes of the engine's `kv0` link as an
EFA device's would when NIXL reads over it, and the real witness over each tree. The bytes are real; that they are EFA's is made."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from types import TracebackType

from e2e.serving.rig import Engine, Rig, RigError
from sysfs_tree import SysfsTree

from exporter.judge.kv_transport import judge_kv_transport
from exporter.judge.transport import TransportVerdict
from probes.efa.window import ask
from probes.result import Pd

DEVICE = "rdmap0s6"
TICK_SECONDS = 0.05
LOOKS_SECONDS = 0.5
ANSWER_SECONDS = 60.0


class Counters(Enum):
    """What the counters of the made devices do."""

    FOLLOW = "they rise by what goes over the engines' link"
    FLAT = "they stay as they are, as when UCX or libfabric fell back to TCP"
    BUSY = "they follow, and somebody else's traffic is on them"
    RESET = "they follow, and the driver is loaded again on the decode node as soon as something moves"


class Nodes:
    """A context manager. `counters` may be changed at any time."""

    def __init__(self, rig: Rig, folder: Path, *, foreign_rate: float = 4e6) -> None:
        self.counters = Counters.FLAT
        self._foreign = round(foreign_rate * TICK_SECONDS)
        self._engines = (rig.prefill, rig.decode)
        self._trees = {engine.name: SysfsTree(folder / engine.name) for engine in self._engines}
        for tree in self._trees.values():
            tree.efa(DEVICE, generation=3, gbit=200)
        self._witnesses: dict[str, tuple[subprocess.Popen[str], str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Nodes:
        for engine in self._engines:
            process = subprocess.Popen([sys.executable, "-m", "probes.witness", "--sysfs", str(self._trees[engine.name].root), "--listen",
                                        "127.0.0.1:0", "--node", node_of(engine), "--interval", str(LOOKS_SECONDS)],
                                       stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            found = re.search(r"port (\d+)", process.stderr.readline())
            self._witnesses[engine.name] = (process, f"127.0.0.1:{found.group(1) if found else 0}")
            if found is None:
                self.__exit__(None, None, None)
                raise RigError(f"the witness of {engine.name} did not start")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        for process, _ in self._witnesses.values():
            process.kill()
            process.wait(10)
            if process.stderr is not None:
                process.stderr.close()

    def judge(self, pd: Pd, start: float, end: float) -> TransportVerdict:
        """The product's verdict on the KV of a canary that was measured from `start` to `end`, Unix seconds."""
        answers = {node_of(engine): ask(self._witnesses[engine.name][1], start, end, started=start, ended=end, deadline=ANSWER_SECONDS)
                   for engine in self._engines}
        verdict = judge_kv_transport(pd, answers)
        assert verdict is not None, pd
        return verdict

    def _follow(self) -> None:
        prefill, decode = self._engines
        sent, got = link_bytes(prefill), link_bytes(decode)
        while not self._stop.wait(TICK_SECONDS):
            try:
                sent, sent_before, got, got_before = link_bytes(prefill), sent, link_bytes(decode), got
            except OSError:
                return  # an engine has ended, and its link with it
            out, into = sent[1] - sent_before[1], got[0] - got_before[0]
            if self.counters is Counters.FLAT:
                continue
            foreign = self._foreign if self.counters is Counters.BUSY else 0
            self._trees["prefill"].add(DEVICE, rdma_read_resp_bytes=out + foreign, tx_bytes=out + foreign, tx_pkts=1 + out // 8192)
            if self.counters is Counters.RESET and into > 1 << 16:
                self._trees["decode"].set(DEVICE, "rdma_read_bytes", 0)
                self._trees["decode"].set(DEVICE, "rx_bytes", 0)
            else:
                self._trees["decode"].add(DEVICE, rdma_read_bytes=into + foreign, rx_bytes=into + foreign, rx_pkts=1 + into // 8192)


def node_of(engine: Engine) -> str:
    """The name of the node an engine is said to run on."""
    return f"node-{engine.name}"


def link_bytes(engine: Engine) -> tuple[int, int]:
    """Bytes that the engine's `kv0` received and sent."""
    assert engine.process is not None
    for line in Path(f"/proc/{engine.process.pid}/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "kv0":
            words = rest.split()
            return int(words[0]), int(words[8])
    raise RigError(f"{engine.name} has no kv0")
