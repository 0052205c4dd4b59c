"""The archive: where every result is kept, in a folder of this machine and, if wanted, in S3.

What an installation must give it:

- `archive.folder` on a volume that the service may write (chart: an emptyDir survives the container, a PersistentVolumeClaim the pod).
  Default: `archive` below `$EFA_PULSE_STATE`, else `$STATE_DIRECTORY`, else `~/.local/state/efa-pulse`.
- with `archive.s3`: AWS credentials by IRSA or Pod Identity of the service's ServiceAccount, with `s3:PutObject`, `s3:GetObject` on
  `arn:aws:s3:::BUCKET/PREFIX*` and `s3:ListBucket` on the bucket; with `kms_key` also `kms:GenerateDataKey` and `kms:Decrypt` on that key.
- with `archive.logs` in a cluster: `get` on `pods/log` in the probe namespace (core API group). Nothing else reads logs of pods.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from exporter.config.base import FilePath, Line, Model, Name
from exporter.config.semantic import Found, refuse
from probes.units import Duration, Size


class S3(Model):
    """Results as gzipped JSON Lines in S3, below `PREFIX/results/v1/cluster=NAME/date=YYYY-MM-DD/`."""

    bucket: Annotated[str, Field(min_length=3, max_length=255, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/]*[A-Za-z0-9]$")]
    """Name of the bucket, or the ARN of an access point."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[-A-Za-z0-9!_.*'()/=]*$")] = "efa-pulse"
    """What every key begins with."""
    region: Line | None = None
    """Region of the bucket; default: that of the environment (`AWS_REGION`)."""
    endpoint: Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s]+$")] | None = None
    """Address of another service with the S3 API; default: AWS."""
    encryption: Literal["bucket", "AES256", "aws:kms"] = "bucket"
    """Server-side encryption: what the bucket says, SSE-S3 or SSE-KMS."""
    kms_key: Line | None = None
    """ARN, id or alias of the KMS key, for `aws:kms`; default: the key of S3 in the account."""
    interval: Annotated[Duration, Field(ge=1, le=86400)] = 300.0
    """How long results are gathered in one object."""
    timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """Longest time of one request."""

    @model_validator(mode="after")
    def _consistent(self) -> S3:
        found: list[Found] = []
        if self.kms_key is not None and self.encryption != "aws:kms":
            found.append((("kms_key",), "a key needs encryption: aws:kms"))
        refuse("S3", found)
        return self


class Archive(Model):
    """Every result and, on request, logs of the runs that were not ok: JSON Lines in a folder, and from there to S3."""

    enabled: bool = True
    """Keep results at all."""
    folder: FilePath | None = None
    """Where; with `s3` also what is not uploaded yet. Default: `archive` below `$EFA_PULSE_STATE` or `~/.local/state/efa-pulse`."""
    cluster: Name = "default"
    """Name of this cluster among those that share a bucket."""
    keep: Annotated[Size, Field(ge=1 << 20)] = 2 << 30
    """Most bytes of the folder; the oldest files go first, never those that are not uploaded yet."""
    segment: Annotated[Size, Field(ge=1 << 12, le=1 << 30)] = 16 << 20
    """Size at which a new file is begun."""
    queue: Annotated[int, Field(ge=10, le=1_000_000)] = 10_000
    """Results that wait in memory while the folder cannot be written."""
    logs: bool = False
    """Keep the end of the logs of runs that were not ok. In a cluster this needs the right to `get` `pods/log` in the probe namespace."""
    log_bytes: Annotated[Size, Field(ge=256, le=1 << 20)] = 16 << 10
    """How much of each rank's log."""
    s3: S3 | None = None
    """Upload to S3. Default: no."""

    def where(self, environ: Mapping[str, str] | None = None) -> Path:
        """The folder in use."""
        return self.folder or state_folder(environ) / "archive"


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the service keeps what must survive it: `$EFA_PULSE_STATE`, systemd's `$STATE_DIRECTORY`, or below the user's state folder."""
    known = os.environ if environ is None else environ
    for name in ("EFA_PULSE_STATE", "STATE_DIRECTORY"):
        if known.get(name):
            return Path(known[name].partition(":")[0])
    base = known.get("XDG_STATE_HOME") or str(Path(known.get("HOME") or "/tmp", ".local", "state"))  # noqa: S108 - only without a home
    return Path(base, "efa-pulse")
