"""Folders for the time of one process: readable by this user only, and swept up after a process that could not do it itself."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"efa-pulse-[a-z]+-(\d+)-[A-Za-z0-9_]+")


def make(kind: str, parent: Path | None = None) -> Path:
    """A new folder of mode 0700 below `parent` (default: the system's folder for temporary files); those of dead processes go first."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    sweep(parent or Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"efa-pulse-{kind}-{os.getpid()}-", dir=parent))


def sweep(parent: Path) -> None:
    """Remove our own folders whose process no longer exists: after a kill they could hold a key."""
    with contextlib.suppress(OSError):
        for entry in parent.glob("efa-pulse-*"):
            match = _NAME.fullmatch(entry.name)
            if match is None or Path(f"/proc/{match.group(1)}").exists():
                continue
            with contextlib.suppress(OSError):
                status = entry.lstat()
                if entry.is_dir() and not entry.is_symlink() and status.st_uid == os.geteuid():
                    shutil.rmtree(entry, ignore_errors=True)
