"""Folders of one process: private, and swept up after a process that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from exporter import scratch


def of_a_dead_process(parent: Path) -> Path:
    script = f"from pathlib import Path; from exporter import scratch; print(scratch.make('secrets', Path({str(parent)!r})))"
    path = Path(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True).stdout.strip())
    (path / "key-1").write_text("sk-secret")
    return path


def test_a_folder_is_for_this_user_only(tmp_path: Path) -> None:
    assert scratch.make("runs", tmp_path).stat().st_mode & 0o777 == 0o700


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not(tmp_path: Path) -> None:
    dead = of_a_dead_process(tmp_path)
    alive = scratch.make("runs", tmp_path)
    scratch.make("runs", tmp_path)
    assert not dead.exists()
    assert alive.exists()


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    dead = of_a_dead_process(tmp_path)
    pid = dead.name.split("-")[3]
    others = [tmp_path / name for name in ("efa-pulse-notes", "efa-pulse-runs-x-1", f"other-runs-{pid}-abc")]
    for other in others:
        other.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / f"efa-pulse-runs-{pid}-link"
    link.symlink_to(target)
    scratch.sweep(tmp_path)
    assert [other.exists() for other in others] == [True] * 3
    assert link.is_symlink()
    assert target.exists()


def test_the_folder_above_is_made(tmp_path: Path) -> None:
    assert scratch.make("runs", tmp_path / "a" / "b").parent == tmp_path / "a" / "b"
    assert os.access(tmp_path / "a" / "b", os.W_OK)
