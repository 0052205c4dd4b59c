"""Judged runs for tests of the status board: made by the judge itself from results, never by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exporter.config.thresholds import Floor
from exporter.judge.judge import judge
from exporter.judge.verdict import Verdict
from exporter.judge.witnesses import Answers
from exporter.runs import Run, RunSpec
from probes.efa.window import CounterWindow, DeviceDelta, WitnessAnswer
from probes.result import Evidence, Measurement, Result, Stream

PAYLOAD = 1 << 30
FLOOR = Floor.model_validate({"probe": "nixl", "operation": "write", "bytes": 1 << 20, "min_bandwidth": 2e9,
                              "source": "the vendor's table"})
COUNTERS = ("tx_bytes", "rx_bytes", "send_bytes", "recv_bytes", "rdma_write_bytes", "rdma_write_recv_bytes", "rdma_read_bytes",
            "rdma_read_resp_bytes")


def pair(run_id: str = "nixl-1", nodes: tuple[str, str] = ("a", "b"), *, at: float = 100.0, mode: Any = "any", reason: str = "ok",
         message: str = "", bandwidth: float = 3e9, tcp: int | None = PAYLOAD, wrong: int = 0, floors: tuple[Floor, ...] = (),
         answers: Answers | None = None, labels: Mapping[str, str] | None = None, probe: str = "nixl") -> Verdict:
    """One run of a pair that ended at `at`: rank 0 sent `PAYLOAD` to rank 1, `tcp` bytes of it through TCP sockets."""
    target = "--".join(nodes)
    results = []
    for rank, node in enumerate(nodes):
        moved = (PAYLOAD, 0) if rank == 0 else (0, PAYLOAD)
        through = None if tcp is None else (tcp, 0) if rank == 0 else (0, tcp)
        row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[bandwidth if rank == 0 else None],
                          wrong=[wrong])
        results.append(Result.model_validate({
            "run_id": run_id, "probe": probe, "target": target, "rank": rank, "world_size": 2, "node": node, "started": at - 5,
            "finished": at, "measure": {"start": at - 3, "end": at - 1}, "reason": reason, "message": message, "measurements": [row],
            "evidence": Evidence(stack=probe, payload_bytes=moved, tcp_bytes=through)}))
    spec = RunSpec(run_id, probe, target, nodes, mode, 60.0, {}, dict(labels or {}))
    return judge(Run(spec, tuple(results), at - 5, at), floors=floors, answers=answers)


def counted(node: str, moved: int, *, rdma: bool = True, background: int = 0, sends: bool = True) -> WitnessAnswer:
    """A witness whose counters of one direction rose by `moved` over a background of so many bytes a window."""
    name, wire = (("rdma_write_bytes", "tx_bytes") if sends else ("rdma_write_recv_bytes", "rx_bytes"))
    name = name if rdma else ("send_bytes" if sends else "recv_bytes")

    def window(amount: int) -> CounterWindow:
        return CounterWindow(97.0, 99.0, {"rdmap0s0": DeviceDelta({**dict.fromkeys(COUNTERS, 0), name: amount, wire: amount})})

    return WitnessAnswer(node, window(moved + background), window(background), window(background))


def rdma(nodes: tuple[str, str] = ("a", "b"), moved: int = PAYLOAD, *, background: int = 0, rdma: bool = True) -> dict[str, WitnessAnswer]:
    """The witnesses of both nodes of `pair`."""
    return {node: counted(node, moved, sends=rank == 0, background=background, rdma=rdma) for rank, node in enumerate(nodes)}


def canary(run_id: str = "canary-1", target: str = "chat", *, at: float = 100.0, reason: str = "ok", prompt: str = "short") -> Verdict:
    """One canary request."""
    stream = Stream(status=reason, ttft=0.05, tpot=0.01, output_tokens=8, finish_reason="length")
    result = Result.model_validate({"run_id": run_id, "probe": "canary", "target": target, "node": "here", "started": at - 1,
                                    "finished": at, "reason": reason, "message": "", "stream": stream})
    spec = RunSpec(run_id, "canary", target, ("here",), "any", 30.0, {}, {"job": f"canary/{target}/{prompt}", "prompt": prompt,
                                                                           "route": "router"})
    return judge(Run(spec, (result,), at - 1, at))
