"""The parser of nccl-tests output as one call: text or JSON, with the verdict the output alone allows. Works on its own, without GPU."""

from __future__ import annotations

from pathlib import Path

from probes.nccl.report import looks_like_report, read_report
from probes.nccl.run import ParsedRun
from probes.nccl.text import read_text
from probes.nccl.verdict import Expectations, settle

LIMIT = 64 << 20


def parse_text(text: str, expect: Expectations | None = None) -> ParsedRun:
    """Parse recorded output. Never raises: what cannot be read shows in `problems` and in the reason."""
    return settle(read_report(text) if looks_like_report(text) else read_text(text), expect)


def parse_file(path: str | Path, expect: Expectations | None = None) -> ParsedRun:
    """Parse a recorded file of at most 64 MiB. Raises OSError when it cannot be read, ValueError when it is larger."""
    with Path(path).open("rb") as file:
        data = file.read(LIMIT + 1)
    if len(data) > LIMIT:
        raise ValueError(f"{path}: larger than {LIMIT >> 20} MiB, the output of nccl-tests is a few KiB")
    return parse_text(data.decode("utf-8", errors="replace"), expect)
