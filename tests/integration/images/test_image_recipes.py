"""Recipes of the images: clean, pinned, and consistent with what is tested here. The exporter's is carried out in `tests/e2e`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import pythons
import recipes

REPO = Path(__file__).resolve().parent.parent.parent.parent
IMAGES = REPO / "images"
DOCKERFILES = sorted(IMAGES.glob("*/Dockerfile"))
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)


def pins(path: Path) -> dict[str, str]:
    return dict(PIN.findall(path.read_text()))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=[path.parent.name for path in DOCKERFILES])
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(program), str(dockerfile)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_every_version_is_pinned_has_its_reason_and_is_used() -> None:
    known = recipes.versions(IMAGES / "versions.env")
    asked = {name.partition("=")[0] for path in DOCKERFILES for key, name in recipes.instructions(path.read_text()) if key == "ARG"}
    assert asked - {"VERSION", "REVISION"} == set(known)
    assert not [name for name, value in known.items() if value in ("", "latest", "main", "master")]
    blocks = (IMAGES / "versions.env").read_text().strip().split("\n\n")
    assert all(block.startswith("#") for block in blocks), "each stands below a comment that says why"


def test_the_exporters_image_holds_the_versions_that_are_tested() -> None:
    here, locked = pins(REPO / "requirements.lock"), pins(IMAGES / "exporter" / "requirements.lock")
    assert {name: version for name, version in locked.items() if here.get(name) != version} == {}, "run images/lock.sh"
    assert not set(locked) & {"pytest", "numpy", "nixl"}


def test_the_probes_bring_their_four_libraries_and_nothing_else() -> None:
    assert set(pins(IMAGES / "probe" / "requirements.lock")) == {
        "annotated-types", "h11", "pydantic", "pydantic-core", "pyroute2", "pyyaml", "typing-extensions", "typing-inspection",
        "win-inet-pton"}


@pytest.mark.timeout(240)
def test_the_bundle_runs_on_every_python_that_a_serving_image_may_have(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    pip.chmod(0o755)
    subprocess.run(["bash", str(IMAGES / "probe" / "bundle.sh"), str(IMAGES / "probe" / "requirements.lock"), str(folder)], check=True,
                   timeout=220, env={**os.environ, "PIP": str(pip), "PYTHON": sys.executable})
    (folder / "probes").symlink_to(REPO / "probes")
    (folder / "start.py").symlink_to(REPO / "probes" / "start.py")
    found = {version: python for version in pythons.VERSIONS if (python := pythons.interpreter(version)) is not None}
    assert found
    for version, python in found.items():
        done = subprocess.run([python, "-s", str(folder / "start.py"), "probes", "schema"], capture_output=True, text=True, timeout=60,
                              check=False, env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")})
        assert done.returncode == 0, f"{version}: {done.stderr}"
        assert "efa-pulse/result/v1" in done.stdout


def test_the_build_script_shows_what_it_would_do() -> None:
    done = subprocess.run([str(IMAGES / "build.sh"), "--print", "--prefix", "registry.example.com/x", "--tag", "v1", "--push"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [command[command.index("-t") + 1] for command in commands] == [
        f"registry.example.com/x/{name}:v1" for name in ("exporter", "probe", "probe-nccl", "probe-uccl-ep")]
    for command in commands:
        given = {command[index + 1].partition("=")[0] for index, word in enumerate(command) if word == "--build-arg"}
        assert given == {"VERSION", "REVISION", *recipes.versions(IMAGES / "versions.env")}
        assert {"--sbom=true", "--provenance=true", "--push"} <= set(command)
    assert "linux/amd64,linux/arm64" in commands[0], "the witness runs on every node"


def test_the_build_script_refuses_an_image_that_it_does_not_know() -> None:
    done = subprocess.run([str(IMAGES / "build.sh"), "probes"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 64
    assert "usage" in done.stderr
