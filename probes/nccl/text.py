"""Reads the text that nccl-tests prints, as recorded by any launcher: every layout since 2.0, split and prefixed rows, several tables.

Grammar: nccl-tests src/util.cu (2.17.3 and later), src/common.cu and the `*PrintLine` functions before.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from probes.nccl import cells
from probes.nccl.lines import Line, clean, cut_log, log_hosts
from probes.nccl.run import Failure, ParsedRun
from probes.nccl.table import Device, Table

_BANNER = re.compile(
    r"# nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) step: (\d+)\((factor|bytes)\) warmup iters: (\d+) iters: (\d+)"
    r".*?validation: (\d+)"
)
_VERSION = re.compile(r"# nccl-tests version (\S+) nccl-headers=(\d+) nccl-library=(\d+)")
_STARTING = re.compile(r"# Collective test starting: (\S+)")
_DEVICE = re.compile(r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+ on\s+(\S+) device\s+(\d+) \[([0-9A-Fa-fx:.]+)\] ?(.*)")
_REDUCED = re.compile(r"# Reducing maxBytes to (\d+) due to memory limitation")
_OUT_OF_BOUNDS = re.compile(r"# Out of bounds values\s*: (-?\d+) (OK|FAILED)")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*: (\S+)")
_ERROR = re.compile(r"# error: (.+)")
_JSON = re.compile(r"# Writing JSON output to (.+)")
_NO_JSON = re.compile(r"# skipping json output; (.+)")

_FAILURES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Test timeout \(\d+s\)"), "timeout"),
    (re.compile(r"Test NCCL failure"), "nccl"),
    (re.compile(r"Test CUDA failure"), "cuda"),
    (re.compile(r"^\s*invalid option '|^\s*invalid sizes? |^\s*USAGE:"), "usage"),
    (re.compile(r"Invalid number of GPUs|Please check the number of processes and GPUs"), "devices"),
    (re.compile(r"(?:mpirun|prterun) detected|mpirun has exited|MPI_ABORT was invoked|srun: error:|Primary job +terminated"), "launcher"),
    (re.compile(r"^\s*(?:\S+: )?(?:Segmentation fault|Bus error|Aborted|Killed|terminate called)|exited on signal \d+"), "crash"),
    (re.compile(r"Test failure"), "other"),
)

# More than any run prints, few enough that a hostile file costs no memory.
MAX_EXPECTED = 4096
MAX_ROWS = 4096
MAX_TABLES = 256
MAX_RANKS = 65536
MAX_FAILURES = 32


def read_text(text: str) -> ParsedRun:
    """Parse recorded output. Never raises: what cannot be read is listed under `problems`."""
    run = ParsedRun("text")
    lines = list(clean(text))
    hosts = log_hosts(lines)
    streams: dict[str, _Stream] = {}
    for line in lines:
        if line.stream not in streams:
            streams[line.stream] = _Stream(run, line.stream, hosts)
        _take(run, streams[line.stream], line)
    for stream in streams.values():
        stream.end()
    run.tables = [table for table in run.tables if table.rows or table.devices or table.iterations is not None]
    for table in run.tables:
        _count_ranks(table)
    return run


def _count_ranks(table: Table) -> None:
    """Ranks of one communicator: with NCCL_TESTS_SPLIT every group is one of its own, and the figures are those of one group."""
    sizes = Counter(device.group for device in table.devices)
    if sizes:
        table.ranks = min(sizes.values()) if len(sizes) > 1 else max(table.ranks or 0, len(table.devices))


def _take(run: ParsedRun, stream: _Stream, line: Line) -> None:
    text, had_log = cut_log(line.text, stream.hosts)
    if not had_log:
        for pattern, kind in _FAILURES:
            if pattern.search(text):
                if len(run.failures) < MAX_FAILURES:
                    run.failures.append(Failure(kind, text.strip()[:300]))  # type: ignore[arg-type]
                return
    if text.lstrip().startswith("#"):
        stream.comment(text.strip())
    elif text.strip():
        stream.row(text.split())


class _Stream:
    """The output of one process, or of all when no prefix tells them apart."""

    def __init__(self, run: ParsedRun, name: str, hosts: set[str]) -> None:
        self.hosts = hosts
        self._run = run
        self._current: Table | None = None
        self._ranks: set[tuple[int, int]] = set()
        self._name = name
        self._layout = cells.UNKNOWN
        self._pending: list[str] = []
        self._program: str | None = None
        self._versions: tuple[str, str] | None = None
        self._handlers: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], None]], ...] = (
            (_BANNER, self._banner), (_VERSION, self._version), (_STARTING, self._starting), (_DEVICE, self._device),
            (_REDUCED, self._reduced), (_OUT_OF_BOUNDS, self._bounds), (_AVERAGE, self._average), (_ERROR, self._error),
            (_JSON, self._json), (_NO_JSON, self._no_json),
        )

    def comment(self, text: str) -> None:
        """A line that begins with `#`."""
        layout = cells.read_header(text)
        if layout is not None:
            self._layout = layout
            return
        for pattern, handler in self._handlers:
            match = pattern.match(text)
            if match:
                handler(match)
                return

    def row(self, parts: list[str]) -> None:
        """A line that can be a row, a piece of one, or noise."""
        if self._pending:
            if cells.continues_row(parts) and not (len(parts) > 2 and cells.starts_row(parts)):
                self._offer(self._pending + parts)
                return
            if cells.starts_row(parts) and len(parts) > 2:
                self._drop()
        if cells.starts_row(parts) and (len(parts) > 2 or cells.continues_row(parts)):
            self._offer(parts)

    def end(self) -> None:
        """The stream is over."""
        if self._pending:
            self._drop()

    def _offer(self, parts: list[str]) -> None:
        row, problem = cells.read_row(parts, self._layout) if len(parts) > 2 else (None, "")
        self._pending = []
        if row is not None:
            if len(self._table().rows) < MAX_ROWS:
                self._table().rows.append(row)
            else:
                self._problem(f"more than {MAX_ROWS} rows")
        elif problem == "":
            self._pending = parts
        else:
            self._problem(f"a row could not be read: {problem}")

    def _drop(self) -> None:
        # A bare number or two is no row that was cut: logs hold many.
        if len(self._pending) > 2:
            self._problem(f"a row is incomplete: {' '.join(self._pending)[:80]}")
        self._pending = []

    def _problem(self, text: str) -> None:
        problems = self._table().problems
        if len(problems) < MAX_FAILURES:
            problems.append(text)

    def _table(self) -> Table:
        return self._current or self._open()

    def _open(self) -> Table:
        if len(self._run.tables) >= MAX_TABLES:
            self._run.problems = [f"more than {MAX_TABLES} tables"]
            return self._run.tables[-1]
        table = Table(stream=self._name, program=self._program)
        if self._program is not None:
            table.operation = operation_of(self._program)
        if self._versions is not None:
            table.version, table.nccl_version = self._versions
        self._run.tables.append(table)
        self._current = table
        self._ranks = set()
        return table

    def _version(self, match: re.Match[str]) -> None:
        self._versions = (match.group(1), show_nccl_version(int(match.group(3)[:9])))

    def _starting(self, match: re.Match[str]) -> None:
        self._program = match.group(1)

    def _banner(self, match: re.Match[str]) -> None:
        self.end()
        if len(self._run.tables) >= MAX_TABLES:
            self._run.problems = [f"more than {MAX_TABLES} tables"]
            return
        table = self._open()
        self._layout = cells.UNKNOWN
        threads, gpus, low, high, step = (int(value[:20]) for value in match.group(1, 2, 3, 4, 5))
        table.warmup, table.iterations = int(match.group(7)[:9]), int(match.group(8)[:9])
        table.checked = int(match.group(9)[:9]) > 0
        table.expected_sizes = sweep(low, high, step, match.group(6) == "factor")
        table.ranks = threads * gpus
        # Version and program belong to the table that follows them: a second run in the same log brings its own.
        self._program, self._versions = None, None

    def _device(self, match: re.Match[str]) -> None:
        table = self._table()
        rank, group, host, device, bus, name = match.groups()
        line = Device(int(rank[:9]), host, int(device[:9]), bus, name.strip(), int((group or "0")[:9]))
        table.devices_cut = table.devices_cut or name.rstrip().endswith("...")
        if (line.group, line.rank) in self._ranks or len(self._ranks) >= MAX_RANKS:
            note = f"rank {line.rank} appears more than once: several programs printed into one another"
            table.notes = [*table.notes[: MAX_FAILURES - 1], note]
            return
        self._ranks.add((line.group, line.rank))
        table.devices.append(line)

    def _reduced(self, match: re.Match[str]) -> None:
        table = self._table()
        table.notes.append(f"sizes above {match.group(1)} bytes were left out for lack of GPU memory")
        table.expected_sizes = [size for size in table.expected_sizes if size <= int(match.group(1)[:20])]

    def _bounds(self, match: re.Match[str]) -> None:
        self.end()
        table = self._table()
        count = int(match.group(1)[:18])
        table.out_of_bounds = max(count, 1) if match.group(2) == "FAILED" else count
        table.finished = True

    def _average(self, match: re.Match[str]) -> None:
        self._table().notes.append(f"average over all sizes and both placements {match.group(1)[:20]} GB/s: not judged")

    def _error(self, match: re.Match[str]) -> None:
        self._table().notes.append(f"last NCCL error: {match.group(1)[:200]}")

    def _json(self, match: re.Match[str]) -> None:
        self._run.json_path = match.group(1).strip()

    def _no_json(self, match: re.Match[str]) -> None:
        self._run.notes.append(f"no JSON was written: {match.group(1)[:200]}")


def operation_of(program: str) -> str | None:
    """`all_reduce` of `./build/all_reduce_perf_mpi`; None for a name that is none of nccl-tests'."""
    match = re.fullmatch(r"([a-z_]+?)_perf(?:_.*)?", program.rsplit("/", 1)[-1])
    return match.group(1) if match else None


def show_nccl_version(code: int) -> str:
    """`2.28.9` of 22809; NCCL before 2.9 counted in hundreds of thousands less."""
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def sweep(low: int, high: int, step: int, factor: bool) -> list[int]:
    """The sizes a banner announces. Empty when they cannot be told, or are too many to be meant."""
    sizes: list[int] = []
    if low <= 0 or step <= 0 or (factor and step == 1):
        return sizes
    while low <= high and len(sizes) < MAX_EXPECTED:
        sizes.append(low)
        low = low * step if factor else low + step
    return sizes
