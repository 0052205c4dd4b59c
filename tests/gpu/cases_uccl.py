"""What the UCCL-EP probe must show on two GPUs of one host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gpu.cases_nccl import reasons, seen
from gpu.launcher import run

from probes.result import Result
from probes.uccl_ep.parse import parse_text


def _rate(result: Result, operation: str, variant: str | None = None) -> float:
    return next((m.bandwidth[0] or 0.0 for m in result.measurements if m.operation == operation and m.variant == variant), 0.0)


def case_uccl(out: Path) -> dict[str, Any]:
    """Our short driver beside the upstream intranode bench: same tokens, same default configuration."""
    bench = os.environ["UCCL_BENCH"]
    own = run("uccl-ep", {"bench_folder": bench, "iterations": 50, "warmup": 50}, world=1, deadline=90)
    upstream = run("uccl-ep", {"mode": "intranode", "bench_folder": bench}, world=1, deadline=150)
    for name, outcome in (("uccl_driver", own), ("uccl_intranode", upstream)):
        (out / f"{name}.log").write_text(outcome.logs[0][-400_000:])
    ratios = {name: _rate(own.first, name) / max(1.0, _rate(upstream.first, name)) for name in ("dispatch", "combine")}
    wrong = [m.wrong for m in own.first.measurements if m.variant is None]
    return {"driver": seen(own), "upstream": seen(upstream), "ratios": ratios,
            "holds": [[f"the driver measured: {own.first.message}", own.first.reason.value == "ok"],
                      ["every value was right", wrong == [[0], [0]]],
                      [f"the upstream bench passed: {upstream.first.message}", upstream.first.reason.value == "ok"],
                      [f"within 15 % of upstream's default configuration: {ratios}", all(0.85 < r < 1.15 for r in ratios.values())],
                      [f"the driver takes seconds: {own.wall:.1f}", own.wall < 45],
                      ["no process is left", not own.left_over and not upstream.left_over]]}


def case_uccl_hang(out: Path) -> dict[str, Any]:
    """The low-latency bench and the driver's low-latency kernels without RDMA."""
    bench = os.environ["UCCL_BENCH"]
    upstream = run("uccl-ep", {"mode": "low-latency", "bench_folder": bench}, world=1, deadline=40)
    own = run("uccl-ep", {"kernel": "low-latency", "bench_folder": bench}, world=1, deadline=40)
    for name, outcome in (("uccl_hang", upstream), ("uccl_hang_driver", own)):
        (out / f"{name}.log").write_text(outcome.logs[0][-400_000:])
    return {"upstream": seen(upstream), "driver": seen(own), "parsed": parse_text(upstream.logs[0], range(2)).message,
            "holds": [[f"upstream ends by deadline: {upstream.first.message}", reasons(upstream) == ["deadline"] and upstream.wall < 46],
                      ["its output is kept", "Start experiment" in upstream.logs[0]],
                      [f"the driver ends in time: {own.first.reason.value} {own.first.message}", own.wall < 46],
                      ["no process is left", not upstream.left_over and not own.left_over]]}


def case_uccl_gate(out: Path) -> dict[str, Any]:
    """Too little GPU memory for the gate."""
    bench = os.environ["UCCL_BENCH"]
    short = run("uccl-ep", {"bench_folder": bench, "min_free_bytes": "200GiB"}, world=1, deadline=40)
    return {"short": seen(short), "holds": [["too little memory is gpu_busy", reasons(short) == ["gpu_busy"]]]}


CASES = {"uccl": case_uccl, "uccl_hang": case_uccl_hang, "uccl_gate": case_uccl_gate}
