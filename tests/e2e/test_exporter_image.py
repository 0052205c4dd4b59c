"""The exporter's image by its own recipe: every instruction of the Dockerfile is carried out, and what comes out runs as in a pod."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import realtools
import recipes
import yaml
from thismachine import free_port

REPO = Path(__file__).resolve().parent.parent.parent
IMAGES = REPO / "images"
USER = 65532
START = """
set -e
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
cd / && exec chroot --userspec=65532:65532 "$0" "$@"
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own file system: an overlay cannot lie on another one."""
    if os.geteuid() != 0 or shutil.which("dpkg") is None:
        realtools.absent("the recipe is carried out in chroots of this Debian, as root")
    folder = tmp_path_factory.mktemp("image")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3G", "tmpfs", str(folder)], check=True, timeout=30)
    yield folder
    subprocess.run(["umount", "-R", "-l", str(folder)], check=False, timeout=60)


@pytest.fixture(scope="module")
def image(work: Path) -> recipes.Stage:
    def bases(name: str) -> Path:
        if name.startswith("gcr.io/distroless/python3-debian12"):
            return recipes.distroless(work / "distroless")
        assert name == "debian:12-slim"
        for part in ("upper", "work", "root"):
            (work / "build" / part).mkdir(parents=True)
        root = work / "build" / "root"
        layers = f"lowerdir=/,upperdir={work}/build/upper,workdir={work}/build/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(root)], check=True, timeout=30)
        return root

    arguments = {**recipes.versions(IMAGES / "versions.env"), "VERSION": "0.1.0", "REVISION": "test"}
    return recipes.Build(REPO, arguments, bases).carry_out(IMAGES / "exporter" / "Dockerfile")


def started(image: recipes.Stage, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process in the image, as its user, on a read-only root."""
    return subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", START, str(image.root), *command],
                            env={"PATH": recipes.PATH, **image.env, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True)


@pytest.mark.timeout(900)
def test_it_has_what_the_service_needs_and_nothing_else(image: recipes.Stage) -> None:
    assert image.user == f"{USER}:{USER}"
    assert not (image.root / "bin/sh").exists()
    assert not (image.root / "usr/bin/apt-get").exists()
    assert image.labels["org.opencontainers.image.version"] == "0.1.0"
    packages = {path.name for path in (image.root / "opt/efa-pulse/site-packages").iterdir()}
    assert {"exporter", "probes", "dashboards", "boto3", "pydantic"} <= packages
    assert not packages & {"pytest", "mooncake", "nixl", "pip", "bin"}, "tests and engines are not in it"
    assert recipes.size(image.root) < 420 << 20
    print(f"{recipes.size(image.root) >> 20} MiB, of them {recipes.size(image.root / 'opt/efa-pulse') >> 20} ours")


@pytest.mark.timeout(900)
def test_it_starts_as_in_a_pod_and_is_scraped(image: recipes.Stage) -> None:
    port = free_port()
    config = image.root / "etc/efa-pulse/config"
    config.mkdir(parents=True, exist_ok=True)
    settings = {"server": {"listen": f"127.0.0.1:{port}"}, "archive": {"enabled": False},
                "probes": {name: {"enabled": False} for name in ("mooncake", "nixl")}}
    (config / "config.yaml").write_text(yaml.safe_dump(settings))
    process = started(image, *image.entrypoint, "run", "--config", "/etc/efa-pulse/config/config.yaml")
    try:
        until = time.monotonic() + 90
        while True:
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
                if re.search(r'^efapulse_runs_total\{[^}]*probe="node"[^}]*\} [1-9]', page, re.MULTILINE):
                    break  # a worker ran in it, and its result was judged and published
            except OSError:
                page = ""
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < until, page[-3000:]
            time.sleep(0.5)
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).status == 200
        assert "efapulse_build_info" in page
    finally:
        for pid in _below(process.pid)[:1]:  # the first process of its PID namespace
            os.kill(pid, signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        print(said[-3000:])
    assert process.returncode == 0, said[-2000:]


def test_it_is_the_witness_too(image: recipes.Stage) -> None:
    process = started(image, "/usr/bin/python3", "-m", "probes.witness", "--version")
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said.strip()) == (0, "0.1.0")


def _below(pid: int) -> list[int]:
    from probes.processes import descendants

    return descendants(pid)
