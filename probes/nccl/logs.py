"""The log files NCCL writes per process, gathered into the worker's own log while they grow, and read for facts on the transport."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from probes.efa import markers

LIMIT_PER_FILE = 4 << 20


class Gatherer:
    """Copies what is new in every file of a folder to this process's standard error, which is the worker's log. Bounded per file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def gather(self) -> None:
        """Copy what was added since the last call. Never raises."""
        for path in sorted(self._folder.glob("nccl.*.log")):
            done = self._read.get(path, 0)
            if done >= LIMIT_PER_FILE:
                continue
            try:
                with path.open("rb") as file:
                    file.seek(done)
                    piece = file.read(LIMIT_PER_FILE - done)
            except OSError:
                continue
            # Whole lines only: the rest comes with the next call.
            piece = piece[: piece.rfind(b"\n") + 1]
            if piece:
                self._read[path] = done + len(piece)
                sys.stderr.write(piece.decode(errors="replace"))
        sys.stderr.flush()


@dataclass(frozen=True)
class LogFacts:
    """What NCCL and its plugin said. `says` holds what the markers say about the transport; None fields were not said."""

    provider: str | None
    fabric: str | None
    nics: int | None
    says: frozenset[str]
    versions: dict[str, str]


def read_facts(folder: Path) -> LogFacts:
    """The facts in all log files of a folder."""
    facts: dict[str, str] = {}
    says: set[str] = set()
    for path in sorted(folder.glob("nccl.*.log")):
        scan = markers.read("nccl", path)
        facts.update(scan.facts)
        says.update(marker.says for marker in scan.markers)
    nics = facts.get("nics", "")
    versions = {name: facts[key] for key, name in (("plugin_version", "aws-ofi-nccl"), ("libfabric_version", "libfabric")) if key in facts}
    return LogFacts(facts.get("provider"), facts.get("fabric"), int(nics) if nics.isdigit() else None, frozenset(says), versions)
