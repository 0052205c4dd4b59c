"""Reads the JSON that nccl-tests writes with `-J`: versions 1 to 3, cut short, with its typing errors and its traps.

Traps (nccl-tests src/util.cu): booleans are the strings "true" and "false"; `root` is a padded string; NaN is "nan" but infinity a bare
`inf`; `devices` has one entry a process, not one a rank; the keys of the average were misspelt from 2.17.3 to 2.17.8; a killed run has no
`end_time`. The list `env` is the whole process environment, credentials included: it is dropped before anything else looks.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from probes.nccl.cells import GIGA, fits
from probes.nccl.run import ParsedRun
from probes.nccl.table import Device, Half, Row, Table
from probes.nccl.text import operation_of, show_nccl_version, sweep

KNOWN_VERSIONS = (1, 2, 3)
# A whole string, a bracket or comma outside of one, or the quote of a string that never ends.
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|"')
_BARE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])(-?inf|-?nan)(?![\w.])')


def looks_like_report(text: str) -> bool:
    """Whether this is the JSON of nccl-tests rather than its text."""
    return text.lstrip()[:1] == "{"


def read_report(text: str) -> ParsedRun:
    """Parse a report. Never raises: what cannot be read is listed under `problems`."""
    run = ParsedRun("json")
    document = _load(text, run)
    if document is None:
        return run
    document.pop("env", None)
    version = document.get("version")
    if version not in KNOWN_VERSIONS:
        run.notes.append(f"JSON version {str(version)[:20]} is not known, {', '.join(map(str, KNOWN_VERSIONS))} are")
    table = _head(document)
    results = document.get("results")
    for entry in results if isinstance(results, list) else []:
        _add(table, entry)
    _foot(table, document)
    run.tables.append(table)
    return run


def without_environment(text: str) -> str:
    """The same report without the list `env`, to keep or to send. A report that cannot be read gives ""."""
    document = _load(text, ParsedRun("json"))
    if document is None:
        return ""
    document.pop("env", None)
    return json.dumps(document, indent=1)


def _load(text: str, run: ParsedRun) -> dict[str, Any] | None:
    text = _BARE.sub(lambda match: match.group(0) if match.group(1) is None else f'"{match.group(1)}"', text)
    try:
        document = json.loads(text)
    except ValueError:
        document = _mend(text)
        run.problems.append("the JSON is cut short: the run did not finish")
    except RecursionError:
        document = None
    if not isinstance(document, dict):
        run.problems.append("this is not a report of nccl-tests")
        return None
    return document


def _mend(text: str) -> Any:
    """A cut report, closed after the last complete value. None when nothing of it can be saved."""
    closers: list[str] = []
    safe: tuple[int, str] | None = None
    for match in _MARK.finditer(text):
        mark = match.group(0)
        if mark in "{[":
            closers.append("}" if mark == "{" else "]")
        elif mark in "}]":
            if not closers or closers.pop() != mark:
                break
            safe = (match.end(), "".join(reversed(closers)))
        elif mark == "," and closers:
            safe = (match.start(), "".join(reversed(closers)))
        elif mark == '"':
            break
    if safe is None:
        return None
    try:
        return json.loads(text[: safe[0]] + safe[1])
    except (ValueError, RecursionError):
        return None


def _head(document: dict[str, Any]) -> Table:
    table = Table()
    arguments = document.get("args")
    if isinstance(arguments, list) and arguments and isinstance(arguments[0], str):
        table.program = arguments[0].rsplit("/", 1)[-1][:100]
        table.operation = operation_of(table.program)
    code = _integer(document.get("nccl_version"))
    table.nccl_version = show_nccl_version(code) if code is not None and 0 < code < 10**9 else None
    config = document.get("config")
    if not isinstance(config, dict):
        return table
    table.iterations, table.warmup = _integer(config.get("iterations")), _integer(config.get("warmup_iters"))
    validation = _integer(config.get("validation"))
    table.checked = None if validation is None else validation > 0
    low, high = _integer(config.get("minimum_bytes")), _integer(config.get("maximum_bytes"))
    factor, step = _integer(config.get("step_factor")), _integer(config.get("step_bytes"))
    if low is not None and high is not None and (factor or step):
        table.expected_sizes = sweep(low, high, factor or step or 0, bool(factor))
    devices = config.get("devices")
    processes = [entry for entry in devices if isinstance(entry, dict)] if isinstance(devices, list) else []
    table.devices = [_device(entry) for entry in processes]
    threads, gpus = _integer(config.get("nthreads")), _integer(config.get("ngpus"))
    groups = {device.group for device in table.devices}
    if threads and gpus and processes and 0 < threads * gpus < 10**6:
        table.ranks = threads * gpus * len(processes) // len(groups)
    return table


def _device(entry: dict[str, Any]) -> Device:
    rank, device, group = (_integer(entry.get(key)) or 0 for key in ("rank", "device", "group"))
    host, bus, name = (str(entry.get(key))[:255] for key in ("hostname", "device_hex", "device_info"))
    return Device(rank, host, device, bus, name, group)


def _add(table: Table, entry: Any) -> None:
    if not isinstance(entry, dict):
        table.problems.append("an entry of results is no object")
        return
    size, count = _integer(entry.get("size")), _integer(entry.get("count"))
    if size is None or size < 0:
        table.problems.append("an entry of results has no size")
        return
    halves = []
    for placement in ("out_of_place", "in_place"):
        half = _half(entry.get(placement), entry.get(f"{placement}_per_iter"))
        cpu_time = isinstance(entry.get(placement), dict) and "cpu_time" in entry[placement]
        if half is not None and half.finite and not cpu_time and not fits(size, half.seconds, half.algbw, rate_unit=2e-6 * GIGA):
            table.problems.append(f"a row could not be read: size {size}: alg_bw does not fit the time")
            half = None
        halves.append(half)
    redop = str(entry["redop"])[:20] if entry.get("redop") else None
    table.rows.append(Row(size=size, count=count or 0, dtype=str(entry.get("type"))[:20], redop=redop, root=_integer(entry.get("root")),
                          out_of_place=halves[0], in_place=halves[1], iterations=_integer(entry.get("actual_iterations"))))


def _half(body: Any, per_iteration: Any) -> Half | None:
    if not isinstance(body, dict):
        return None
    time = _figure(body.get("time", body.get("cpu_time")))
    algbw, busbw = _figure(body.get("alg_bw")), _figure(body.get("bus_bw"))
    if time is None or algbw is None or busbw is None:
        return None
    extra = per_iteration if isinstance(per_iteration, dict) else {}
    cv = _figure(extra.get("cv_pct"))
    fastest, slowest, p50, p99 = (_micro(extra.get(key)) for key in ("min_us", "max_us", "p50_us", "p99_us"))
    return Half(seconds=time * 1e-6, algbw=algbw * GIGA, busbw=busbw * GIGA, wrong=_figure(body.get("nwrong")), fastest=fastest,
                slowest=slowest, p50=p50, p99=p99, cv=None if cv is None else cv / 100)


def _foot(table: Table, document: dict[str, Any]) -> None:
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        count, okay = _integer(bounds.get("count")), bounds.get("okay")
        failed = okay != "true" and okay is not True
        table.out_of_bounds = max(count or 0, 1) if failed else count
    average = document.get("average_bus_bandwidth", document.get("average_bus_bandwidith"))
    if isinstance(average, dict):
        mean = average.get("bandwidth", average.get("bandwidith"))
        table.notes.append(f"average over all sizes and both placements {str(mean)[:20]} GB/s: not judged")
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, str) and error:
            table.notes.append(f"last NCCL error: {error[:200]}")
    table.finished = isinstance(document.get("end_time"), str) and isinstance(bounds, dict)


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip()
        return int(value) if re.fullmatch(r"-?\d{1,19}", value) else None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**63 else None
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _figure(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    return float(value.replace("-nan", "nan")) if isinstance(value, str) and re.fullmatch(r"-?nan|-?inf", value) else None


def _micro(value: Any) -> float | None:
    figure = _figure(value)
    return None if figure is None else figure * 1e-6
