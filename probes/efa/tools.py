"""Running a tool of somebody else under a deadline, with its output bounded and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OUTPUT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Ran:
    """How a tool ended. `code` is its exit status (negative: the signal), None when it did not end in time; `missing`: it is not there."""

    code: int | None
    output: str
    missing: bool = False


def run(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Ran:
    """Run a command in a session of its own for at most `seconds`; the first MiB of standard output and error together is kept."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                       env={**os.environ, **(environ or {})})
        except OSError as error:
            return Ran(None, error.strerror or str(error), missing=isinstance(error, FileNotFoundError))
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
        # The whole session goes, also what a tool that ended by itself has left behind.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        return Ran(code, log.read(OUTPUT_LIMIT).decode(errors="replace"))
