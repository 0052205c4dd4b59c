"""Engine `nccl-tests`: the program itself on the GPUs of one node, for those who trust its numbers. Several nodes need an MPI launcher."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from probes.gpu.driver import CudaError, Driver
from probes.gpu.gate import driver_version, judge, look
from probes.nccl import command as commands
from probes.nccl.environ import nccl_environment
from probes.nccl.factors import leaving_bytes
from probes.nccl.logs import Gatherer, read_facts
from probes.nccl.params import NcclParams, Operation
from probes.nccl.parse import parse_file, parse_text
from probes.nccl.run import ParsedRun
from probes.nccl.table import PLACEMENTS, Half, Placement, Row
from probes.nccl.verdict import Expectations
from probes.reasons import SEVERITY, Reason, outcome_of
from probes.result import Evidence, Measurement, Phase
from probes.units import show_size
from probes.worker import Context, ProbeFailure, Report

HELP_SECONDS = 20.0
FINISH_SECONDS = 2.0
OUTPUT_LIMIT = 1 << 20
RESERVE_BYTES = 2 << 30


@dataclass
class _Collected:
    """What all programs of a run said."""

    rows: dict[tuple[str, Placement], list[Row]] = field(default_factory=dict)
    findings: list[tuple[Reason, str]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    moved: int = 0


def run(ctx: Context, params: NcclParams) -> Report:
    """Run one program per operation and size under the run's deadline. Raises ProbeFailure."""
    if ctx.env.world_size > 1:
        raise ProbeFailure(Reason.BAD_SPEC, "nccl: engine nccl-tests spans nodes only under MPI: use engine nccl4py, or gpus: all on one")
    ctx.meet()
    if ctx.env.transport == "efa" and not (params.allow_intra_node or params.force_network):
        raise ProbeFailure(Reason.NOT_EFA, "engine nccl-tests on one node: NVLink would carry everything")
    ctx.phase(Phase.SETUP)
    gpus, names = _gate(params)
    programs = {operation: _program(operation, params) for operation in params.operations}
    flags = {operation: _flags(program) for operation, program in programs.items()}
    folder = Path(tempfile.mkdtemp(prefix="efa-pulse-nccl-tests-"))
    gatherer = Gatherer(folder)
    collected = _Collected()
    try:
        environ = {**os.environ, **nccl_environment(params, ctx.env.transport, folder, os.environ)}
        if params.gpu is not None:
            environ["NCCL_TESTS_DEVICE"] = str(params.gpu)
        ctx.phase(Phase.MEASURE)
        for operation, program in programs.items():
            for size in params.sizes:
                ctx.note(f"{program.name} at {show_size(size)}")
                report = folder / f"{operation}-{size}.json"
                command = commands.build(program, params, size, gpus=gpus, flags=flags[operation], seconds=_left(ctx), report=report)
                parsed = _execute(command, environ, _left(ctx), report, params)
                gatherer.gather()
                _collect(collected, parsed, operation, gpus)
        ctx.phase(Phase.FINISH)
        facts = read_facts(folder)
    finally:
        gatherer.gather()
        shutil.rmtree(folder, ignore_errors=True)
    kernel_driver = driver_version()
    versions = {**collected.versions, **facts.versions, **({"driver": kernel_driver} if kernel_driver else {})}
    reason, message = min(collected.findings, key=lambda finding: SEVERITY.index(outcome_of(finding[0])), default=(Reason.OK, ""))
    return Report(reason=reason, message=message, measurements=_measurements(collected, params), versions=versions,
                  evidence=Evidence(stack="nccl", provider=facts.provider, fabric=facts.fabric, nics_seen=facts.nics, gpus=names,
                                    payload_bytes=(collected.moved, collected.moved)),
                  shape={"ranks": gpus, "workers": 1, "nodes": 1, "gpus_per_worker": gpus, "dtype": params.dtype,
                         "iterations": params.iterations, "engine": "nccl-tests"})


def _gate(params: NcclParams) -> tuple[int, list[str]]:
    try:
        driver = Driver()
        # One GPU a worker is the light default of the other engine; alone it moves nothing, so here all are meant unless a number is given.
        gpus = int(params.gpus) if params.gpus != "all" and "gpus" in params.model_fields_set else driver.count()
        first = params.gpu or 0
        names = []
        need = 3 * max(params.sizes) + RESERVE_BYTES + params.min_free_bytes
        for index in range(first, first + gpus):
            usage = look(driver, index)
            if usage is not None:
                refusal = judge(usage, index=index, need=need, allow_busy=params.allow_busy)
                if refusal is not None:
                    raise ProbeFailure(refusal.reason, refusal.message)
                names.append(f"{usage.name} {usage.bus_id}")
    except CudaError as error:
        raise ProbeFailure(error.reason, str(error)) from None
    if gpus < 2:
        raise ProbeFailure(Reason.BAD_SPEC, "nccl: one GPU alone has nobody to talk to: set gpus to all")
    return gpus, names


def _program(operation: Operation, params: NcclParams) -> Path:
    program = commands.find_program(operation, params.tests_folder)
    if program is None:
        where = params.tests_folder or f"PATH or {', '.join(commands.USUAL_FOLDERS)}"
        raise ProbeFailure(Reason.ENGINE_MISSING, f"{operation}_perf of nccl-tests is not in {where}")
    return program


def _flags(program: Path) -> frozenset[str]:
    try:
        usage = subprocess.run([program, "-h"], capture_output=True, timeout=HELP_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"{program.name} does not run here: {error}") from None
    text = (usage.stdout + usage.stderr).decode(errors="replace")
    if usage.returncode == 127 or "error while loading shared libraries" in text:
        raise ProbeFailure(Reason.ENGINE_INCOMPATIBLE, f"{program.name} does not run here: {text.strip()[:300]}")
    return commands.known_flags(text)


def _left(ctx: Context) -> float:
    left = ctx.remaining() - FINISH_SECONDS
    if left <= 0:
        raise ProbeFailure(Reason.DEADLINE, "the deadline came before all sizes were measured")
    return left


def _execute(command: list[str], environ: dict[str, str], seconds: float, report: Path, params: NcclParams) -> ParsedRun:
    output = report.with_suffix(".out")
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5.0)
            sys.stderr.write(output.read_bytes()[-OUTPUT_LIMIT:].decode(errors="replace"))
            raise ProbeFailure(Reason.DEADLINE, f"{Path(command[0]).name} did not end within {seconds:.0f} s: {_tail(output)}") from None
    text = output.read_bytes()[-OUTPUT_LIMIT:].decode(errors="replace")
    sys.stderr.write(text)
    sys.stderr.flush()
    expect = Expectations(local_rate=params.local_line_rate, fall_ratio=params.fall_ratio, tail_ratio=params.tail_ratio)
    parsed = parse_text(text, expect)
    written = Path(parsed.json_path) if parsed.json_path else report
    if written.is_file():
        precise = parse_file(written, expect)
        # The report has more digits, the text every failure line: figures from the one, the worse verdict of the two.
        if precise.usable_rows():
            if SEVERITY.index(outcome_of(parsed.reason)) < SEVERITY.index(outcome_of(precise.reason)):
                precise.reason, precise.message = parsed.reason, parsed.message
            parsed = precise
    if process.returncode and parsed.reason is Reason.OK:
        parsed.reason, parsed.message = Reason.ENGINE_ERROR, f"exit status {process.returncode}: {_tail(output)}"
    return parsed


def _tail(output: Path) -> str:
    lines = [line.strip() for line in output.read_bytes()[-4096:].decode(errors="replace").splitlines() if line.strip("# \t")]
    return " | ".join(lines[-3:])[-300:]


def _collect(collected: _Collected, parsed: ParsedRun, operation: Operation, gpus: int) -> None:
    if parsed.reason is not Reason.OK:
        collected.findings.append((parsed.reason, f"{operation}: {parsed.message}"))
    for table in parsed.tables:
        if table.nccl_version:
            collected.versions["nccl"] = table.nccl_version
        if table.version:
            collected.versions["nccl-tests"] = table.version
        for row in table.usable():
            for placement in PLACEMENTS:
                if table.half_usable(row, placement):
                    collected.rows.setdefault((operation, placement), []).append(row)
            # Both placements with warm-up and check: nccl-tests src/common.cu, TimeTest and BenchTime.
            launches = 2 * (1 + (table.iterations or 0) + int(bool(table.checked))) + (table.warmup or 0)
            collected.moved += launches * gpus * leaving_bytes(operation, size=row.size, gpus=1, workers=gpus)


def _measurements(collected: _Collected, params: NcclParams) -> list[Measurement]:
    found = []
    for (operation, placement), rows in collected.rows.items():
        if placement == "in_place" and not params.in_place:
            continue
        pairs = [(row, half) for row in sorted(rows, key=lambda row: row.size) for half in (row.half(placement),) if half is not None]
        found.append(_columns(operation, placement, pairs))
    return found


def _columns(operation: str, placement: Placement, pairs: list[tuple[Row, Half]]) -> Measurement:
    halves = [half for _, half in pairs]
    latency = {"mean": [half.seconds for half in halves]}
    for name, values in (("min", [half.fastest for half in halves]), ("p50", [half.p50 for half in halves]),
                         ("p99", [half.p99 for half in halves]), ("max", [half.slowest for half in halves])):
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) == len(halves):
            latency[name] = known
    wrong = [None if half.wrong is None else int(half.wrong) for half in halves]
    return Measurement(
        operation=operation, memory="gpu", kind="busbw", variant="in_place" if placement == "in_place" else None,
        bytes=[row.size for row, _ in pairs], bandwidth=[half.busbw for half in halves], algbw=[half.algbw for half in halves],
        latency={name: list(values) for name, values in latency.items()}, wrong=wrong if any(n is not None for n in wrong) else None,
    )
