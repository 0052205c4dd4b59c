"""Which libfabric copies a process on this machine could meet, and versions of what a node's EFA path is made of."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

FOLDERS = ("/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
           "/usr/local/lib", "/usr/local/lib64", "/usr/lib")
MAX_FILES = 20_000

_LIBRARY = re.compile(r"libfabric(?:-[0-9a-f]+)?\.so(?:\.[\d.]+)?")


def libfabric_copies(folders: Iterable[str] = FOLDERS, packages: Iterable[str] | None = None) -> list[str]:
    """Real paths of all libfabric libraries in the system's folders and, two levels deep, in Python's package folders, sorted.

    A process that loads two of them sees no EFA through the second one.
    """
    found: set[str] = set()
    for folder in folders:
        found.update(str(path.resolve()) for path in _files(Path(folder), 0) if _LIBRARY.fullmatch(path.name))
    for folder in sys.path if packages is None else packages:
        if folder.endswith(("site-packages", "dist-packages")) or packages is not None:
            found.update(str(path.resolve()) for path in _files(Path(folder), 2) if _LIBRARY.fullmatch(path.name))
    return sorted(found)


def kernel() -> str:
    """Release of the running kernel."""
    return platform.release()


def _files(folder: Path, depth: int) -> Iterable[Path]:
    budget = MAX_FILES
    queue = [(folder, depth)]
    while queue and budget > 0:
        current, left = queue.pop()
        try:
            entries = list(current.iterdir())
        except OSError:
            continue
        for entry in entries:
            budget -= 1
            if entry.name.startswith("libfabric"):
                yield entry
            elif left > 0 and entry.suffix in ("", ".libs", ".data") and entry.is_dir() and not entry.is_symlink():
                queue.append((entry, left - 1))


def package_version(names: Iterable[str]) -> str | None:
    """Version of the first of these distributions that is installed, or None."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
