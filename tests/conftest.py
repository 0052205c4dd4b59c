"""Fixtures that several test areas share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
sys.path.insert(0, str(Path(__file__).parent))
# Services of the tests keep their results here and not in the home of whoever runs them.
_STATE = tempfile.TemporaryDirectory(prefix="efa-pulse-state-")
os.environ["EFA_PULSE_STATE"] = _STATE.name
os.environ["PYTHONPATH"] = os.pathsep.join([str(FIXTURES), str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])


def children_of(pid: int) -> list[int]:
    """Live processes below `pid`."""
    from probes.processes import descendants

    return descendants(pid)


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Fails the test when it leaves a process behind."""
    before = set(children_of(os.getpid()))
    yield
    left = [pid for pid in children_of(os.getpid()) if pid not in before and _alive(pid)]
    assert left == [], [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ") for pid in left]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
