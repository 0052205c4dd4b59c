"""A real router in an environment of its own, as a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SETUP = Path(__file__).with_name("setup.sh")
INSTALL_SECONDS = 600.0


def environment(name: str) -> Path:
    """The interpreter of build/NAME-venv, made when it is not there."""
    done = subprocess.run([str(SETUP), "install", name], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{SETUP} install {name}: {done.stderr[-2000:]}")
    return ROOT / "build" / f"{name}-venv" / "bin" / "python"


@contextlib.contextmanager
def running(command: list[str], log: Path, ready: Callable[[], bool], *, seconds: float = 60.0,
            environ: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` in a session of its own until `ready`; the whole session ends with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, **(environ or {})})
        try:
            until = time.monotonic() + seconds
            while not ready():
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{command[0]} is not ready: {log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.1)
            yield process
        finally:
            _end(process)


def answers(url: str) -> bool:
    """Whether `url` gives a 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
