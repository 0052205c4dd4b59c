"""`python -m probes.bundle FOLDER`: copy the probes into a folder, so that another image can run them.

An init container of the probe image does it for runs in the serving image, where the engine is the one that serves. What is copied is
`/opt/efa-pulse/bundle` where the image has one (the packages with compiled parts for every supported Python), else this very installation:
this package and the few that it needs. `FOLDER/start.py` then starts a worker with the other image's Python.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import probes

BUNDLE = Path("/opt/efa-pulse/bundle")
NEEDED = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "h11", "pyroute2", "yaml")
OPTIONAL = ("_yaml",)
EXIT_USAGE = 64


class BundleError(Exception):
    """The probes cannot be copied. The text says why."""


def copy(target: Path, bundle: Path = BUNDLE) -> list[str]:
    """Copy everything into `target` and return the names of what lies there. Raises BundleError."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        if bundle.is_dir():
            shutil.copytree(bundle, target, dirs_exist_ok=True)
        else:
            for name in ("probes", *NEEDED, *OPTIONAL):
                _copy_module(name, target)
        shutil.copyfile(Path(__file__).with_name("start.py"), target / "start.py")
    except OSError as error:
        raise BundleError(f"{target}: {error.strerror or error}") from None
    return sorted(path.name for path in target.iterdir())


def _copy_module(name: str, target: Path) -> None:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        if name in OPTIONAL:
            return
        raise BundleError(f"package {name} is not installed here")
    origin = Path(found.origin)
    if found.submodule_search_locations:
        shutil.copytree(origin.parent, target / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        shutil.copyfile(origin, target / origin.name)


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 copied, 1 not, 64 wrong usage."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m probes.bundle FOLDER\n")
        return EXIT_USAGE
    try:
        names = copy(Path(arguments[0]), Path(os.environ.get("EFA_PULSE_BUNDLE", str(BUNDLE))))
    except BundleError as error:
        sys.stderr.write(f"efa-pulse bundle: {error}\n")
        return 1
    sys.stdout.write(f"efa-pulse {probes.__version__}: {len(names)} entries in {arguments[0]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
