"""Carrying out a Dockerfile without Docker: each instruction for real, in roots of this machine.

What a builder does is kept: stages, build arguments, COPY from the context and from stages, environment, user and folder. What stands for a
base image is given by the test, and is this Debian itself: an overlay of `/` for `debian:12-slim`, and a folder with the files of the
packages that Google's distroless Python image is made of for that one. Needs root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STEP_SECONDS = 600.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DISTROLESS = (
    "base-files", "netbase", "tzdata", "ca-certificates", "libc6", "libssl3", "libgcc-s1", "libstdc++6", "libgomp1", "libbz2-1.0",
    "libcom-err2", "libcrypt1", "libdb5.3", "libexpat1", "libffi8", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3",
    "libkrb5support0", "liblzma5", "libncursesw6", "libnsl2", "libpython3.11-minimal", "libpython3.11-stdlib", "libreadline8",
    "libsqlite3-0", "libtinfo6", "libtirpc3", "libuuid1", "python3.11-minimal", "zlib1g")
"""Debian 12 packages in gcr.io/distroless/python3-debian12."""


@dataclass
class Stage:
    """A stage of a build, or a whole image."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    labels: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)


def versions(path: Path) -> dict[str, str]:
    """The build arguments of a `versions.env`."""
    pairs = (line.partition("=") for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def instructions(text: str) -> list[tuple[str, str]]:
    """Instruction and the rest of the line, continuation lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            found.append((name.upper(), rest.strip()))
    return found


class Build:
    """One build. `bases` makes the root of a base image by its name. `run` carries out a command in a root."""

    def __init__(self, context: Path, arguments: dict[str, str], bases: Callable[[str], Path]) -> None:
        self._context, self._given, self._bases = context, arguments, bases
        self._stages: dict[str, Stage] = {}
        self.seconds: list[tuple[str, float]] = []
        """How long each instruction took."""

    def carry_out(self, dockerfile: Path) -> Stage:
        """All of it; the last stage. Raises AssertionError for an instruction that fails or is not known."""
        before: dict[str, str] = {}
        stage: Stage | None = None
        for name, rest in instructions(dockerfile.read_text()):
            if name == "FROM":
                words = _fill(rest, before).split()
                base = words[0]
                stage = self._stages[base] if base in self._stages else Stage(self._bases(base))
                self._stages[words[2] if len(words) == 3 else f"stage-{len(self._stages)}"] = stage
            elif name == "ARG" and stage is None:
                before[rest.partition("=")[0]] = self._given.get(rest.partition("=")[0], rest.partition("=")[2])
            else:
                assert stage is not None, f"{name} before FROM"
                began = time.monotonic()
                self._one(stage, name, rest)
                self.seconds.append((f"{name} {rest}"[:100], time.monotonic() - began))
        assert stage is not None
        return stage

    def _one(self, stage: Stage, name: str, rest: str) -> None:
        known = {**stage.env, **stage.arguments}
        if name == "ARG":
            key, _, default = rest.partition("=")
            stage.arguments[key] = self._given.get(key, default)
        elif name in ("ENV", "LABEL"):
            pairs = dict(word.split("=", 1) for word in shlex.split(_fill(rest, known)))
            (stage.env if name == "ENV" else stage.labels).update(pairs)
        elif name == "USER":
            stage.user = rest
        elif name == "WORKDIR":
            stage.folder = rest
            (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name in ("ENTRYPOINT", "CMD"):
            words = [word.strip().strip('"') for word in rest.strip("[]").split(",")]
            if name == "ENTRYPOINT":
                stage.entrypoint = words
            else:
                stage.command = words
        elif name == "COPY":
            self._copy(stage, shlex.split(_fill(rest, known)))
        elif name == "RUN":
            chroot(stage.root, ["/bin/sh", "-c", rest], {**_outside(), **known}, folder=stage.folder)
        else:
            assert name == "EXPOSE", f"{name}: not known here"

    def _copy(self, stage: Stage, words: Sequence[str]) -> None:
        source_root = self._context
        if words[0].startswith("--from="):
            source_root = self._stages[words[0].partition("=")[2]].root
            words = words[1:]
        *sources, target = words
        for source in sources:
            place, goal = source_root / source.lstrip("/"), stage.root / target.lstrip("/")
            assert place.exists(), f"COPY {source}: it is not there"
            goal.parent.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                shutil.copytree(place, goal, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
                                if source_root == self._context else None)
            else:
                shutil.copy2(place, goal / place.name if target.endswith("/") else goal)


def chroot(root: Path, command: Sequence[str], env: dict[str, str], *, folder: str = "/", seconds: float = STEP_SECONDS) -> str:
    """Run a command as root in a root and return its output. Raises AssertionError when it fails."""
    prepared = ("mount --rbind /proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && cat /etc/resolv.conf >\"$0/etc/resolv.conf\" && "
                "exec chroot \"$0\" /usr/bin/env -C \"$1\" \"${@:2}\"")
    done = subprocess.run(["unshare", "--mount", "bash", "-c", prepared, str(root), folder, *command], env={"PATH": PATH, **env},
                          capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(command)[:300]}: {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
    return done.stdout + done.stderr


def distroless(root: Path) -> Path:
    """A root with the files of DISTROLESS and nothing else. Raises AssertionError where a package is not installed here."""
    names = subprocess.run(["dpkg", "-L", *DISTROLESS], capture_output=True, text=True, timeout=60, check=False)
    assert names.returncode == 0, f"install: {names.stderr}"
    for folder in ("proc", "dev", "tmp", "etc", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    for name in sorted(set(names.stdout.split("\n"))):
        here = Path(name)
        if not name.startswith("/") or not (here.is_file() or here.is_symlink()) or "/share/doc/" in name:
            continue
        there = root / name.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        if not there.exists() and not there.is_symlink():
            shutil.copy2(here, there, follow_symlinks=False)
    for made in ("etc/ssl/certs/ca-certificates.crt", "etc/ld.so.cache"):  # what packages make when they are installed
        if Path("/", made).exists():
            (root / made).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path("/", made), root / made)
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
    return root


def size(root: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def _fill(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known.get(found[1], ""), text)


def _outside() -> dict[str, str]:
    """How this machine reaches its package index: no part of the recipe."""
    return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_")) or name.lower().endswith("_proxy")}
