"""What the configuration asks for, spelled out: one job for each probe and target, and for each canary target and prompt."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.config.base import Secret, SecretError
from exporter.config.schedule import When
from probes.contract import Transport


@dataclass(frozen=True)
class Job:
    """One thing that is measured again and again.

    `id` is `<probe>/<target>` or `canary/<target>/<prompt>`. `nodes[r]` is where rank r runs. `lanes` are what the run occupies: two
    jobs that share a lane never run at the same time. `key` is the API key of a canary; it is not in `spec`. `labels` go with the run:
    of a canary its `route`.
    """

    id: str
    probe: str
    target: str
    nodes: tuple[str, ...]
    transport: Transport
    deadline: float
    spec: dict[str, Any] = field(compare=True, hash=False)
    when: When
    lanes: tuple[str, ...]
    key: Secret | None = None
    labels: dict[str, str] = field(default_factory=dict, hash=False)

    def spec_with(self, folder: Path) -> dict[str, Any]:
        """The spec with the name of the key's file in it.

        A key in a file is named as it is and read by the worker; one in an environment variable is written to a file in `folder`, readable
        by this user only. Raises SecretError when the key cannot be read.
        """
        if self.key is None:
            return self.spec
        return {**self.spec, "key_file": str(key_file(self.key, folder))}


def key_file(key: Secret, folder: Path) -> Path:
    """A file that holds the key. Raises SecretError when the key cannot be read or written."""
    text = key.read()
    if key.file is not None:
        return key.file
    path = folder / f"key-{hashlib.sha256(str(key).encode()).hexdigest()[:16]}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    except OSError as error:
        raise SecretError(f"{key} cannot be written to {path}: {error.strerror}") from None
    return path
