"""Reads what the benches of UCCL-EP print: low latency, intranode and internode, every form since mid 2025; DeepEP prints the same lines.

Sources: uccl ep/bench/test_low_latency.py, test_intranode.py, test_internode.py at 0.1.1 and main of 2026-08. Several ranks write to one
stream, so lines are searched, not split: two can be glued together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path

from probes.nccl.lines import clean
from probes.reasons import SEVERITY, Reason, outcome_of
from probes.uccl_ep.output import EpRun, RankLines, Tuning

LIMIT = 64 << 20
MAX_RANKS = 65536
MAX_LINES = 4096
GIGA, MICRO = 1e9, 1e-6

_F = r"(-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|nan|inf))"
_BOTH = re.compile(rf"\[rank (\d{{1,6}})\] Dispatch \+ combine bandwidth: {_F} GB/s, avg_t={_F} us, min_t={_F} us, max_t={_F} us")
_EACH = re.compile(rf"\[rank (\d{{1,6}})\] Dispatch bandwidth: {_F} GB/s, avg_t={_F} us \| Combine bandwidth: {_F} GB/s, avg_t={_F} us")
_SPLIT = re.compile(rf"\[rank (\d{{1,6}})\] Dispatch send/recv time: {_F} \+ {_F} us \| Combine send/recv time: {_F} \+ {_F} us")
_MARK = re.compile(r"All correctness tests passed")
_TEST = re.compile(r"\[(?:testing|zero-recv-rank)\] ")
_PASSED = re.compile(r"\.\.\. ?passed|^ passed")
_TUNING = re.compile(r"\[tuning\] ")
_BEST = re.compile(r"Best (dispatch|combine)(?: \((FP8|BF16)\))?")
_LEG = re.compile(rf"{_F} GB/s \((RDMA|NVL)\)")
_TIME = re.compile(rf"(?:avg_t|transmit|\bt): {_F} us")
_SUM = re.compile(rf"{_F} \+ {_F} us")

_FAILURES: tuple[tuple[re.Pattern[str], Reason], ...] = (
    (re.compile(r"AssertionError: Error: diff=|NON-DETERMINISM: seed="), Reason.WRONG_CONTENT),
    (re.compile(r"\bassert (?:torch\.|\(?check_|calc_diff|torch\.equal)"), Reason.WRONG_CONTENT),
    (re.compile(r"DeepEP timeout check failed|DeepEP error: (?:CPU recv )?timeout|num_recv_tokens: -1\b"), Reason.TRANSFER_FAILED),
    (re.compile(r"RDMA error: |ibv_poll_cq failed|CQE error"), Reason.TRANSFER_FAILED),
    (re.compile(r"\[FATAL\] Selected RDMA NIC"), Reason.DEVICES_MISSING),
    (re.compile(r"ModuleNotFoundError: No module named '(?:torch|uccl)'"), Reason.ENGINE_MISSING),
    (re.compile(r"Failed to import uccl|ImportError: |undefined symbol"), Reason.ENGINE_INCOMPATIBLE),
    (re.compile(r"CUDA out of memory|cudaErrorMemoryAllocation|out of memory"), Reason.GPU_BUSY),
    (re.compile(r"AssertionError|CUDA error|elastic\.multiprocessing\.errors|ChildFailedError|Segmentation fault"), Reason.ENGINE_ERROR),
)
_WARNINGS = re.compile(r"\[WARNING\] Kernel '\w+' not found|samples dropped|\[WARN\] no candidate NIC found|falling back to ibv_reg_mr")


def parse_text(text: str, ranks: Iterable[int] | None = None) -> EpRun:
    """Parse recorded output. `ranks` are those that must have reported; without them, all from 0 to the highest seen. Never raises."""
    run = EpRun()
    tests = 0
    for line in clean(text):
        content = line.text
        _ranks(run, content)
        run.marks += len(_MARK.findall(content))
        tests += len(_TEST.findall(content))
        run.passed += len(_PASSED.findall(content))
        if _TUNING.search(content) and len(run.tuning) < MAX_LINES:
            run.tuning.append(_tuning(content))
        _note(run, content)
    run.unfinished = max(0, tests - run.passed)
    run.tuning = _named(run.tuning)
    _judge(run, None if ranks is None else sorted(set(ranks)))
    return run


def parse_file(path: str | Path, ranks: Iterable[int] | None = None) -> EpRun:
    """Parse a recorded file of at most 64 MiB. Raises OSError, or ValueError when it is larger."""
    with Path(path).open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ValueError(f"{path}: larger than {LIMIT >> 20} MiB")
    return parse_text(data.decode("utf-8", errors="replace"), ranks)


def _ranks(run: EpRun, content: str) -> None:
    for match in _BOTH.finditer(content):
        lines = _of(run, match, "both")
        lines.both_rate, lines.both_mean, lines.both_min, lines.both_max = _figures(match, (GIGA, MICRO, MICRO, MICRO))
    for match in _EACH.finditer(content):
        lines = _of(run, match, "each")
        lines.dispatch_rate, lines.dispatch_mean, lines.combine_rate, lines.combine_mean = _figures(match, (GIGA, MICRO, GIGA, MICRO))
    for match in _SPLIT.finditer(content):
        lines = _of(run, match, "split")
        lines.dispatch_send, lines.dispatch_receive, lines.combine_send, lines.combine_receive = _figures(match, (MICRO,) * 4)


def _of(run: EpRun, match: re.Match[str], kind: str) -> RankLines:
    rank = int(match.group(1))
    lines = run.ranks.get(rank)
    if lines is None:
        lines = RankLines()
        if len(run.ranks) < MAX_RANKS:
            run.ranks[rank] = lines
    before = {"both": lines.both_rate, "each": lines.dispatch_rate, "split": lines.dispatch_send}[kind]
    if before is not None and kind not in lines.repeated:
        lines.repeated.append(kind)
    return lines


def _figures(match: re.Match[str], units: tuple[float, ...]) -> list[float | None]:
    values = [float(text) for text in match.groups()[1:]]
    return [value * unit if math.isfinite(value) else None for value, unit in zip(values, units, strict=True)]


def _tuning(content: str) -> Tuning:
    best = _BEST.search(content)
    legs = {leg: _finite(rate, GIGA) for rate, leg in _LEG.findall(content)}
    time = _TIME.search(content)
    seconds = _finite(time.group(1), MICRO) if time else None
    if seconds is None and (parts := _SUM.search(content)):
        first, second = (_finite(text, MICRO) for text in parts.groups())
        seconds = first + second if first is not None and second is not None else None
    operation = best.group(1) if best else None
    return Tuning(operation=operation, dtype=best.group(2) if best else None, best=best is not None,  # type: ignore[arg-type]
                  default="chunk default" in content, nvl_rate=legs.get("NVL"), rdma_rate=legs.get("RDMA"), seconds=seconds)


def _finite(text: str, unit: float) -> float | None:
    value = float(text)
    return value * unit if math.isfinite(value) else None


def _named(lines: list[Tuning]) -> list[Tuning]:
    """Lines of a sweep do not say what they measure; the summary that ends the sweep does. Lines after the last summary stay nameless."""
    named: list[Tuning] = []
    pending: list[Tuning] = []
    for line in lines:
        if not line.best:
            pending.append(line)
            continue
        named += [Tuning(line.operation, line.dtype, False, one.default, one.nvl_rate, one.rdma_rate, one.seconds) for one in pending]
        named.append(line)
        pending = []
    return named + pending


def _note(run: EpRun, content: str) -> None:
    if _WARNINGS.search(content) and len(run.warnings) < MAX_LINES:
        run.warnings.append(content.strip()[:200])
    for pattern, reason in _FAILURES:
        if pattern.search(content):
            if len(run.failures) < MAX_LINES:
                run.failures.append((reason, content.strip()[:300]))
            return


def _judge(run: EpRun, ranks: list[int] | None) -> None:
    """The reason. Every rank must have measured, and every rank must have proved its values."""
    throughput = [line for line in run.tuning if line.best and (line.nvl_rate or line.rdma_rate)]
    findings: list[tuple[Reason, str]] = []
    if not any(lines.usable for lines in run.ranks.values()) and not throughput:
        findings.append((Reason.NO_ROWS, "not a single usable figure" + (f": {run.failures[0][1]}" if run.failures else "")))
    findings = [*run.failures, *findings]
    if run.ranks:
        findings += _ranks_complete(run, ranks)
    elif throughput:
        findings += _throughput_complete(run, throughput)
    wrong = [finding for finding in findings if finding[0] is Reason.WRONG_CONTENT]
    run.reason, run.message = min(wrong or findings, key=lambda finding: SEVERITY.index(outcome_of(finding[0])), default=(Reason.OK, ""))


def _ranks_complete(run: EpRun, ranks: list[int] | None) -> list[tuple[Reason, str]]:
    findings: list[tuple[Reason, str]] = []
    wanted = ranks if ranks is not None else list(range(min(max(run.ranks) + 1, MAX_RANKS)))
    silent = [rank for rank in wanted if rank not in run.ranks or not run.ranks[rank].usable]
    if silent:
        findings.append((Reason.ENGINE_ERROR, f"rank {', '.join(map(str, silent[:8]))} reported no usable bandwidth"))
    if run.marks < len(wanted):
        findings.append((Reason.ENGINE_ERROR, f"{run.marks} correctness marks of {len(wanted)} ranks"))
    strangers = sorted(set(run.ranks) - set(wanted))
    if strangers:
        findings.append((Reason.RESULT_UNREADABLE, f"rank {strangers[0]} reported and was not asked"))
    repeated = sorted(rank for rank, lines in run.ranks.items() if lines.repeated)
    if repeated:
        findings.append((Reason.RESULT_UNREADABLE, f"rank {repeated[0]} reported more than once: the output holds more than one run"))
    return findings


def _throughput_complete(run: EpRun, throughput: list[Tuning]) -> list[tuple[Reason, str]]:
    findings: list[tuple[Reason, str]] = []
    # The internode bench prints no `passed`; where the first one does, all must.
    if run.passed and run.unfinished:
        findings.append((Reason.ENGINE_ERROR, f"{run.unfinished} of its tests did not pass"))
    missing = {"dispatch", "combine"} - {line.operation for line in throughput}
    if missing:
        findings.append((Reason.ENGINE_ERROR, f"no result for {', '.join(sorted(missing))}: the bench did not finish"))
    return findings
