"""What a hollow kubelet is told: its nodes, its images, folders that stand in for the host's."""

from __future__ import annotations

import fnmatch
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Image:
    """What an image name stands for: where programs and Python modules are looked for, what runs without a command, how long a first
    pull on a node takes."""

    name: str
    path: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    pull_seconds: float = 0.0


@dataclass(frozen=True)
class Settings:
    """`needed` are folders that must be visible in every container. `host_paths` maps a node and a hostPath to the folder that stands in
    for it: `{"node": {"/sys": "/tmp/made"}}`."""

    work: str
    block: int
    nodes: tuple[str, ...]
    images: tuple[Image, ...]
    needed: tuple[str, ...] = ()
    host_paths: dict[str, dict[str, str]] = field(default_factory=dict)
    users: bool = True
    """Whether containers run as the user that they name; without it as root, for an interpreter that only root can reach."""
    gateway: str = "10.77.0.1"
    api_port: int = 6443

    def image(self, name: str) -> Image | None:
        """The image of this name (patterns such as `registry/probe:*` work); None for one that cannot be pulled."""
        return next((image for image in self.images if fnmatch.fnmatchcase(name, image.name)), None)

    def write(self, path: Path) -> Path:
        """Write to a file that `read` takes."""
        path.write_text(json.dumps(asdict(self)))
        return path


def read(path: Path) -> Settings:
    """Read what `write` wrote."""
    data = json.loads(path.read_text())
    images = tuple(Image(**{**one, "path": tuple(one["path"]), "command": tuple(one["command"])}) for one in data.pop("images"))
    return Settings(**{**data, "nodes": tuple(data["nodes"]), "needed": tuple(data["needed"]), "images": images})
