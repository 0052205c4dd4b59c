"""How a verdict looks on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from exporter.judge.verdict import Verdict
from probes.reasons import REASONS, Outcome
from probes.result import Finding, Measurement, Stream
from probes.units import show_size

STYLES = {Outcome.OK: "bold green", Outcome.DEGRADED: "bold yellow", Outcome.FAILED: "bold red", Outcome.UNKNOWN: "bold magenta"}
MARKS = {True: ("holds", "green"), False: ("broken", "bold red"), None: ("not told", "dim")}


class _Console(Console):
    """A reader that goes away ends a command like any other, not with the status of a finding."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that keeps to 120 columns when its output is not a terminal, so that tables in logs stay readable.

    It reads no markup: brackets in a name or a message are a part of it.
    """
    found = _Console(stderr=stderr, highlight=False, markup=False)
    return found if found.is_terminal else _Console(stderr=stderr, highlight=False, markup=False, width=120)


def verdict(one: Verdict) -> RenderableType:
    """Everything a person wants to know of one run: outcome, figures, proofs."""
    parts: list[RenderableType] = [headline(one)]
    # A rank that only checks what arrived has rows without figures; the proof of the answer counts them.
    rows = [row for result in one.run.results for row in result.measurements if any(value is not None for value in row.bandwidth)]
    if rows:
        parts.append(measurements(rows))
    for result in one.run.results:
        if result.stream is not None:
            parts.append(streams([(result.run_id, result.stream)]))
        if result.findings:
            parts.append(findings(result.findings))
    parts += list(_proofs(one))
    parts += list(_trouble(one))
    return Group(*parts)


def headline(one: Verdict) -> Text:
    """One line: outcome, what was measured, transport, time."""
    spec = one.run.spec
    text = Text()
    text.append(f"{one.outcome.value.upper():<9}", STYLES[one.outcome])
    text.append(f"{spec.probe} {spec.target}", "bold")
    if one.transport is not None:
        text.append(f"  transport {one.transport.value}")
    text.append(f"  {one.run.finished - one.run.started:.1f} s", "dim")
    if one.outcome is not Outcome.OK:
        text.append(f"\n          {one.reason.value}: {one.message}" if one.message else f"\n          {one.reason.value}")
        text.append(f"\n          what to do: {REASONS[one.reason].action}", "dim")
    return text


def figure(one: Verdict) -> str:
    """The one figure a person asks for first: best bandwidth, or TTFT and TPOT, or what is wrong."""
    if not one.outcome.conclusive or one.outcome is Outcome.FAILED:
        return f"{one.reason.value}: {one.message}"
    for result in one.run.results:
        if result.stream is not None:
            return f"TTFT {duration(result.stream.ttft)}, TPOT {duration(result.stream.tpot)}"
    best: dict[str, float] = {}
    for row in (row for result in one.run.results for row in result.measurements):
        best[row.operation] = max([best.get(row.operation, 0.0), *(value for value in row.bandwidth if value is not None)])
    if best:
        return ", ".join(f"{name} {value / 1e9:.2f} GB/s" for name, value in best.items())
    checks = [finding.ok for result in one.run.results for finding in result.findings]
    return f"{checks.count(True)} checks ok, {checks.count(None)} not told" if checks else ""


def measurements(rows: Iterable[Measurement]) -> Table:
    """Bandwidth and latency, one row a size."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("operation", "memory", "size", "GB/s", "kind", "p50", "p99", "max", "cold", "n", "wrong"):
        table.add_column(name, justify="left" if name in {"operation", "memory", "kind"} else "right")
    for row in rows:
        name = row.operation + (f" x{row.batch}" if row.batch > 1 else "") + (f" {row.variant}" if row.variant else "")
        for index, size in enumerate(row.bytes):
            bandwidth = row.bandwidth[index]
            wrong = row.wrong[index] if row.wrong else None
            table.add_row(name, row.memory, show_size(size), "-" if bandwidth is None else f"{bandwidth / 1e9:.3g}", row.kind,
                          *(duration(row.latency[key][index] if key in row.latency else None) for key in ("p50", "p99", "max")),
                          duration(row.cold) if index == 0 else "", str(row.iterations[index]) if row.iterations else "-",
                          "-" if wrong is None else Text(str(wrong), "red" if wrong else ""))
    return table


def streams(rows: Iterable[tuple[str, Stream]]) -> Table:
    """Canary requests, one row each."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("request", "result", "connect", "TTFT", "TPOT", "ITL p50", "max gap", "e2e", "close", "tokens", "tok/s", "clock"):
        table.add_column(name, justify="left" if name in {"request", "result", "clock"} else "right")
    for name, stream in rows:
        itl = sorted(stream.itl)
        tokens = "-" if stream.output_tokens is None else f"{stream.prompt_tokens or '?'}+{stream.output_tokens}"
        speed = "-" if stream.output_tokens_per_second is None else f"{stream.output_tokens_per_second:.1f}"
        table.add_row(name, stream.status, duration(stream.connect), duration(stream.ttft), duration(stream.tpot),
                      duration(itl[len(itl) // 2] if itl else None), duration(stream.max_gap), duration(stream.e2e),
                      duration(stream.stream_close), tokens, speed, stream.clock)
    return table


def findings(rows: Iterable[Finding]) -> Table:
    """Preflight checks, one row each."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("check", "", "seen", "expected", "remedy"):
        table.add_column(name, overflow="fold")
    for row in rows:
        mark = {True: Text("ok", "green"), False: Text("bad", "bold red"), None: Text("not told", "dim")}[row.ok]
        table.add_row(row.check, mark, row.seen or "", row.expected or "", (row.remedy or "") if row.ok is False else "")
    return table


def duration(seconds: float | None) -> str:
    """A duration in the unit that fits: `57.1 us`, `3.20 ms`, `1.50 s`."""
    if seconds is None:
        return "-"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def _proofs(one: Verdict) -> Iterator[RenderableType]:
    if one.proofs:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for proof in one.proofs:
            mark, style = MARKS[proof.holds]
            table.add_row(f"{proof.name}", Text(mark, style), Text(proof.says, "dim"))
        yield table


def _trouble(one: Verdict) -> Iterator[RenderableType]:
    """What the ranks said, where they disagree with the headline."""
    for result in one.run.results:
        if result.outcome is not Outcome.OK and len(one.run.results) > 1:
            yield Text(f"  rank {result.rank} on {result.node}: {result.reason.value}: {result.message}", "dim")
