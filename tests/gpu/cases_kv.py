"""Mooncake and NIXL with GPU memory on both sides, on two GPUs of one host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu.cases_nccl import seen
from gpu.launcher import run

MIB = 1 << 20
SPEC = {"memory": "gpu", "gpu": 0, "target_gpu": 1, "sizes": [64 << 10, MIB, 16 * MIB], "operations": ["write", "read"], "seconds": 1.0}


def _case(probe: str, spec: dict[str, Any], out: Path, name: str) -> dict[str, Any]:
    outcome = run(probe, {**SPEC, **spec}, world=2, deadline=60)
    for rank, log in enumerate(outcome.logs):
        (out / f"{name}_rank{rank}.log").write_text(log[-200_000:])
    measured = [m for result in outcome.results for m in result.measurements]
    return {**seen(outcome), "holds": [["it measured GPU memory", bool(measured) and all(m.memory == "gpu" for m in measured)],
                                       ["every byte arrived right", all(count == 0 for m in measured for count in m.wrong or [0])],
                                       ["the run is ok or degraded", {r.outcome.value for r in outcome.results} <= {"ok", "degraded"}],
                                       ["no process is left", not outcome.left_over]]}


def case_mooncake(out: Path) -> dict[str, Any]:
    return _case("mooncake", {}, out, "mooncake_gpu")


def case_nixl(out: Path) -> dict[str, Any]:
    return _case("nixl", {}, out, "nixl_gpu")


CASES = {"mooncake": case_mooncake, "nixl": case_nixl}
