"""What the NCCL probe must show on two GPUs of one host. Each case returns what it saw; `holds` is the list of claims with their truth."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import nccl_busbw_1g, nccl_busbw_1m, nccl_busbw_256m, nccl_peer, nccl_probe_wall
from bench.report import machine
from gpu.launcher import Outcome, Workers, run, wait_for

from probes.nccl import parse_text
from probes.result import Result

MIB = 1 << 20
GIB = 1 << 30
HERE = Path(__file__).parent


def seen(outcome: Outcome) -> dict[str, Any]:
    return {"wall": round(outcome.wall, 3), "left_over": outcome.left_over, "errors": outcome.errors,
            "results": [result.model_dump(mode="json", by_alias=True, exclude_defaults=True) for result in outcome.results]}


def reasons(outcome: Outcome) -> list[str]:
    return [result.reason.value for result in outcome.results]


def rates(result: Result, operation: str, variant: str | None = None) -> dict[int, float]:
    for measurement in result.measurements:
        if measurement.operation == operation and measurement.variant == variant:
            return {size: rate for size, rate in zip(measurement.bytes, measurement.bandwidth, strict=True) if rate is not None}
    return {}


def case_peer(out: Path) -> dict[str, Any]:
    """busbw and wall time against nccl-tests, interleaved, median of five rounds."""
    rows = [row for bench in (nccl_busbw_1m, nccl_busbw_256m, nccl_busbw_1g, nccl_probe_wall) for row in bench.run()]
    raw = {size: vars(nccl_peer.compare("all_reduce", size)) for size in (MIB, 256 * MIB, GIB)}
    one_thread = {size: nccl_peer.peer("all_reduce", size, ("-g", "2"))[0] for size in (MIB, 256 * MIB, GIB)}
    (out / "nccl_tests_all_reduce_256m.txt").write_text(raw[256 * MIB]["text"])
    gpu = (raw[MIB]["gpus"] or ["no GPU"])[0].rpartition(" ")[0]
    rows = [{**row, "machine": f"2 x {gpu}, {machine()}"} for row in rows]
    return {"rows": rows, "rounds": raw, "nccl-tests with both ranks in one thread": one_thread,
            "holds": [[f"{row['name']}: {row['value']:.4g} against {row['peer_value']:.4g} {row['unit']}, {row['goal']}", row["holds"]]
                      for row in rows]}


def case_operations(out: Path) -> dict[str, Any]:
    """Every operation, in place as well, beside nccl-tests at 256 MiB; values checked."""
    size = 256 * MIB
    names = ["all_reduce", "alltoall", "all_gather", "reduce_scatter", "sendrecv"]
    outcome = run("nccl", {"operations": names, "sizes": [MIB, size], "in_place": True, "iterations": 20}, world=2)
    (out / "nccl_operations_rank0.log").write_text(outcome.logs[0])
    ratios = {}
    for operation in names:
        ratios[operation] = rates(outcome.first, operation).get(size, 0.0) / nccl_peer.peer(operation, size)[0]
    wrong = [count for m in outcome.first.measurements for count in (m.wrong or [None])]
    return {**seen(outcome), "ratios to nccl-tests at 256 MiB": ratios,
            "holds": [["all operations ran", outcome.first.outcome.value in {"ok", "degraded"}],
                      ["every value was right", set(wrong) == {0}],
                      ["every operation within 5 % of nccl-tests at 256 MiB", all(abs(r - 1) < 0.05 for r in ratios.values())],
                      ["no process is left", not outcome.left_over]]}


def case_bf16(out: Path) -> dict[str, Any]:
    outcome = run("nccl", {"operations": ["all_reduce", "reduce_scatter"], "sizes": [16 * MIB], "dtype": "bf16"}, world=2)
    return {**seen(outcome), "holds": [["bf16 sums are exact", [m.wrong for m in outcome.first.measurements] == [[0], [0]]]]}


def case_rails(out: Path) -> dict[str, Any]:
    spec = {"operations": ["sendrecv"], "sizes": [MIB, 64 * MIB], "rails": "each"}
    outcome = run("nccl", spec, world=2)
    rail = rates(outcome.first, "sendrecv", "rail0")
    whole = run("nccl", {"operations": ["all_reduce"], "sizes": [64 * MIB], "gpus": "all"}, world=1)
    return {"rails": seen(outcome), "one worker, all GPUs": seen(whole),
            "holds": [["GPU 0 to GPU 0 of the partner was measured", set(rail) == {MIB, 64 * MIB}],
                      ["one worker with both GPUs measures", bool(rates(whole.first, "all_reduce")) and whole.first.reason.value == "ok"]]}


def case_socket(out: Path) -> dict[str, Any]:
    """NVLink and shared memory off: the bytes go through TCP sockets."""
    spec = {"operations": ["all_reduce"], "sizes": [64 * MIB], "iterations": 5, "warmup": 1, "force_network": True}
    outcome = run("nccl", spec, world=2)
    (out / "nccl_socket_rank0.log").write_text(outcome.logs[0])
    nvlink = run("nccl", {"operations": ["all_reduce"], "sizes": [64 * MIB], "iterations": 5, "warmup": 1}, world=2)
    evidence, inside = outcome.first.evidence, nvlink.first.evidence
    holds = []
    if evidence and inside and evidence.tcp_bytes and evidence.payload_bytes and inside.tcp_bytes and inside.payload_bytes:
        share = evidence.tcp_bytes[0] / evidence.payload_bytes[0]
        holds = [["TCP carried the payload", 0.9 < share < 1.2], ["markers say Socket", "tcp" in {m.says for m in evidence.markers}],
                 ["with NVLink TCP carried next to nothing", inside.tcp_bytes[0] < 0.01 * inside.payload_bytes[0]],
                 ["with NVLink markers say intra_node", "intra_node" in {m.says for m in inside.markers}]]
    pinned = run("nccl", spec, world=2, transport="efa")
    (out / "nccl_pinned_rank0.log").write_text(pinned.logs[0])
    node = run("nccl", {"operations": ["all_reduce"], "sizes": [MIB]}, world=2, transport="efa")
    return {"socket": seen(outcome), "nvlink": seen(nvlink), "pinned": seen(pinned), "one node in EFA mode": seen(node),
            "holds": [*holds, ["evidence of both runs is complete", bool(holds)],
                      ["the pin makes it fail in EFA mode", "transport_unavailable" in reasons(pinned)],
                      ["one node in EFA mode is refused", set(reasons(node)) == {"not_efa"}]]}


def case_damage(out: Path) -> dict[str, Any]:
    """3 elements of rank 1's received data are overwritten on the GPU before the check."""
    spec = {"operations": ["all_reduce", "sendrecv"], "sizes": [MIB], "iterations": 2, "warmup": 1}
    outcome = run("nccl", spec, world=2, environ={"PYTHONPATH": str(HERE / "damage"), "EFA_PULSE_TEST_DAMAGE": "1:3"})
    wrong = {m.operation: m.wrong for m in outcome.first.measurements}
    return {**seen(outcome), "holds": [["the 3 damaged elements are counted", wrong == {"all_reduce": [3], "sendrecv": [3]}],
                                       ["the run failed for its content, on every rank", set(reasons(outcome)) == {"wrong_content"}]]}


def _long(seconds: float) -> dict[str, Any]:
    return {"operations": ["all_reduce"], "sizes": [GIB], "iterations": int(seconds / 0.0033)}


def case_killed(out: Path) -> dict[str, Any]:
    """One lane, then one whole engine process, killed in the middle of a collective."""
    found: dict[str, Any] = {"holds": []}
    for victim in ("lane", "engine"):
        def kill(workers: Workers, logs: list[Path], victim: str = victim) -> None:
            wait_for(logs, "Init COMPLETE")
            time.sleep(1.0)
            word = "probes.nccl" if victim == "lane" else "probes child"
            for pid in workers.below(1, word):
                os.kill(pid, signal.SIGKILL)

        outcome = run("nccl", _long(3.2), world=2, deadline=40, hurt=kill)
        found[victim] = seen(outcome)
        said = reasons(outcome)
        found["holds"] += [[f"{victim}: rank 1 says killed, rank 0 peer_lost: {said}", said == ["peer_lost", "killed"]],
                           [f"{victim}: it ended in {outcome.wall:.1f} s, long before its deadline", outcome.wall < 20],
                           [f"{victim}: no process is left", not outcome.left_over]]
    return found


def case_stalled(out: Path) -> dict[str, Any]:
    """One lane stopped (SIGSTOP) in the middle of a collective."""
    def stop(workers: Workers, logs: list[Path]) -> None:
        wait_for(logs, "Init COMPLETE")
        time.sleep(0.5)
        for pid in workers.below(1, "probes.nccl"):
            os.kill(pid, signal.SIGSTOP)

    outcome = run("nccl", _long(3.2), world=2, deadline=15, hurt=stop)
    message = outcome.first.message
    return {**seen(outcome), "holds": [["both ranks failed by deadline", set(reasons(outcome)) == {"deadline"}],
                                       ["the message names the stalled rank", bool(re.search(r"rank 1 [^,]*, its process is st", message))],
                                       ["it ended in time", outcome.wall < 20], ["no process is left", not outcome.left_over]]}


HOG = """
import time
from probes.gpu.driver import Driver, Gpu
gpu = Gpu(Driver(), 1)
gpu.allocate(8 << 30)
print("held", flush=True)
time.sleep(60)
"""


def case_gate(out: Path) -> dict[str, Any]:
    """Too little memory, and a GPU that somebody holds."""
    short = run("nccl", {"operations": ["all_reduce"], "sizes": [MIB], "min_free_bytes": "200GiB"}, world=2)
    holder = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, cwd=HERE.parents[1])
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        busy = run("nccl", {"operations": ["all_reduce"], "sizes": [MIB]}, world=2)
        allowed = run("nccl", {"operations": ["all_reduce"], "sizes": [MIB], "allow_busy": True}, world=2)
    finally:
        holder.kill()
        holder.wait()
    return {"short": seen(short), "busy": seen(busy), "allowed": seen(allowed),
            "holds": [["too little memory is unknown: gpu_busy", "gpu_busy" in reasons(short)],
                      ["a held GPU is unknown: gpu_busy", busy.results[1].reason.value == "gpu_busy" and busy.wall < 15],
                      ["unless told otherwise", allowed.first.outcome.value in {"ok", "degraded"}]]}


def case_engine(out: Path) -> dict[str, Any]:
    """Engine nccl-tests through the probe."""
    spec = {"engine": "nccl-tests", "gpus": "all", "operations": ["all_reduce", "alltoall"], "sizes": [MIB, 256 * MIB], "in_place": True,
            "tests_folder": os.environ["NCCL_TESTS"]}
    outcome = run("nccl", spec, world=1)
    (out / "nccl_tests_engine.log").write_text(outcome.logs[0])
    slow = {"operations": ["all_reduce"], "sizes": [64 * MIB], "iterations": 3, "warmup": 1, "force_network": True}
    fallback = run("nccl", {**spec, **slow}, world=1)
    evidence = fallback.first.evidence
    share = evidence.tcp_bytes[0] / evidence.payload_bytes[0] if evidence and evidence.tcp_bytes and evidence.payload_bytes else 0.0
    text = parse_text((out / "nccl_tests_engine.log").read_text())
    return {"nvlink": seen(outcome), "socket": seen(fallback), "tcp share": share,
            "holds": [["both programs gave rows", {m.operation for m in outcome.first.measurements} == {"all_reduce", "alltoall"}],
                      ["latency columns came with them", "p99" in outcome.first.measurements[0].latency],
                      ["the log, with NCCL's lines in it, reads the same", len(text.rows()) > 0],
                      ["TCP carried the payload with NVLink off", 0.9 < share < 1.2]]}


CASES = {"peer": case_peer, "operations": case_operations, "bf16": case_bf16, "rails": case_rails, "socket": case_socket,
         "damage": case_damage, "killed": case_killed, "stalled": case_stalled, "gate": case_gate, "engine": case_engine}
