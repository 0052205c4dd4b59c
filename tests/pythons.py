"""Installs `probes` alone, without the exporter's dependencies, on every Python from 3.10 to 3.13 found here and runs its tests.

Usage: python tests/pythons.py [VERSION ...]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TEST_NEEDS = ("pytest>=8.4,<10", "pytest-timeout>=2.4,<3", "pytest-xdist>=3.8,<4", "hypothesis>=6.130,<7")
SECONDS = 900


def interpreter(version: str) -> str | None:
    """The path of an installed interpreter of this version, or None. A shim on the path that leads nowhere does not count."""
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for candidate in (*map(str, pyenv), shutil.which(f"python{version}")):
        if candidate:
            said = subprocess.run([candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True,
                                  timeout=60, check=False)
            if said.stdout.strip() == version:
                return candidate
    return None


def prepare(version: str, python: str) -> Path:
    """A virtual environment that holds the package without extras, and pytest. Made anew when what it is made from changed."""
    venv = ROOT / f".venv-{version}"
    stamp = venv / ".installed"
    wanted = f"{python}\n{(ROOT / 'pyproject.toml').read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([UV, "venv", "-q", "--clear", "--python", python, str(venv)], check=True, timeout=SECONDS)
        subprocess.run([UV, "pip", "install", "-q", "--python", str(venv / "bin" / "python"), "-e", str(ROOT), *TEST_NEEDS], check=True,
                       timeout=SECONDS)
        stamp.write_text(wanted)
    return venv / "bin" / "python"


def main(versions: list[str]) -> int:
    """Run the tests of `probes` on each version. Returns 1 when one fails or when no interpreter was found at all."""
    ran = 0
    for version in versions:
        python = interpreter(version)
        if python is None:
            print(f"probes on Python {version}: no such interpreter here, not tested")
            continue
        executable = prepare(version, python)
        print(f"probes alone on Python {version}", flush=True)
        environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        cache = ROOT / f".venv-{version}" / "cache"
        command: list[str | Path] = [executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", "tests/unit/probes"]
        # What fails on a noisy machine is run once more by itself, as `make test` does.
        for more in (["--numprocesses", "auto", "--maxprocesses", "4"], ["--last-failed", "--last-failed-no-failures", "none"]):
            done = subprocess.run([*command, *more], cwd=ROOT, env=environ, timeout=SECONDS, check=False)
            if done.returncode == 0:
                break
        if done.returncode != 0:
            return 1
        ran += 1
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(VERSIONS)))
