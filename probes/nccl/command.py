"""Builds the command line of nccl-tests, from what the installed version knows: an unknown option makes it print its usage and exit 0."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from probes.nccl.params import NcclParams, Operation

USUAL_FOLDERS = ("/opt/nccl-tests/build", "/usr/local/nccl-tests/build", "/opt/nccl-tests/bin", "/nccl-tests/build", "/usr/local/bin")
DATA_TYPES = {"float": "float", "bf16": "bfloat16"}
_FLAG = re.compile(r"\[-([A-Za-z])\b")
# Without MPI these are the same on every version since 2.0.
_ALWAYS = frozenset("tgbeifnmwpcodrzh")


def find_program(operation: Operation, folder: str | None) -> Path | None:
    """The program of an operation, in `folder` or else on PATH and in the usual folders. None: not installed."""
    name = f"{operation}_perf"
    if folder is not None:
        path = Path(folder) / name
        return path if path.is_file() else None
    found = shutil.which(name)
    if found:
        return Path(found)
    return next((Path(place) / name for place in USUAL_FOLDERS if (Path(place) / name).is_file()), None)


def known_flags(usage: str) -> frozenset[str]:
    """The one-letter options a usage text lists. Without one only those that every version has."""
    return frozenset(_FLAG.findall(usage)) or _ALWAYS


def build(program: Path, params: NcclParams, size: int, *, gpus: int, flags: frozenset[str], seconds: float, report: Path) -> list[str]:
    """One size of one operation on `gpus` GPUs of this process. JSON, slowest-rank times, time-out and statistics as far as known."""
    command = [str(program), "-b", str(size), "-e", str(size), "-f", "2", "-g", str(gpus), "-n", str(params.iterations), "-w",
               str(params.warmup), "-c", "1" if params.check else "0", "-d", DATA_TYPES[params.dtype]]
    for flag, value in (("T", str(max(1, int(seconds)))), ("a", "3"), ("I", "1"), ("J", str(report))):
        if flag in flags:
            command += [f"-{flag}", value]
    return command


def mpirun(command: Sequence[str], hosts: Sequence[str], *, per_host: int, environ: Sequence[str]) -> list[str]:
    """The same command over several hosts by Open MPI, one process a GPU, rank and stream marked on every line."""
    slots = ",".join(f"{host}:{per_host}" for host in hosts)
    return ["mpirun", "--allow-run-as-root", "-np", str(per_host * len(hosts)), "-N", str(per_host), "-H", slots, "--tag-output",
            "--bind-to", "none", "--mca", "pml", "^ucx", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_exclude",
            "lo,docker0,pod-id-link0", *(item for name in environ for item in ("-x", name)), *command]
