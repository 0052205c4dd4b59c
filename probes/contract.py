"""The environment contract between whoever starts a worker and the worker: the same for local processes and Kubernetes Jobs.

| variable | meaning |
|---|---|
| EFA_PULSE_RUN_ID | one id shared by all ranks of a run |
| EFA_PULSE_PROBE | which probe: see `probes.registry` |
| EFA_PULSE_TARGET | what is measured, a label only |
| EFA_PULSE_RANK | this rank; else JOB_COMPLETION_INDEX of an Indexed Job; else 0 |
| EFA_PULSE_WORLD_SIZE | number of ranks, default 1 |
| EFA_PULSE_RENDEZVOUS | host:port on which rank 0 listens; needed when there is more than one rank |
| EFA_PULSE_SECRET_FILE | file with the install's secret; the run's token is HMAC-SHA256(secret, run id) |
| EFA_PULSE_ADDRESS | the address this rank tells its peers; default: the one the rendezvous connection uses |
| EFA_PULSE_NODE | node name; default: the host name |
| EFA_PULSE_TRANSPORT | `efa`: a fall-back is an error; `any`: it is measured and reported |
| EFA_PULSE_DEADLINE | seconds from start to the forced end of the engine |
| EFA_PULSE_SPEC | the probe's parameters, a JSON object |
| EFA_PULSE_RESULT_PATH | where the result is written, default /dev/termination-log |
| EFA_PULSE_LOG_PATH | where the engine's output is kept; default: a temporary file, removed at the end |
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

DEFAULT_RESULT_PATH = Path("/dev/termination-log")
PREFIX = "EFA_PULSE_"

Transport = Literal["efa", "any"]


class ContractError(ValueError):
    """The environment or the spec of a worker is wrong. The text names the variable and what to do."""


class WorkerEnv(BaseModel):
    """The parsed environment of one worker."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    probe: str
    target: str = ""
    rank: int = Field(default=0, ge=0)
    world_size: int = Field(default=1, ge=1, le=4096)
    rendezvous: str | None = None
    secret_file: Path | None = None
    address: str | None = None
    node: str = Field(default_factory=socket.gethostname)
    transport: Transport = "any"
    deadline: float = Field(default=60.0, gt=0, le=86400)
    spec: dict[str, Any] = Field(default_factory=dict)
    result_path: Path = DEFAULT_RESULT_PATH
    log_path: Path | None = None

    @field_validator("rendezvous")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            split_endpoint(value)
        return value

    @model_validator(mode="after")
    def _consistent(self) -> WorkerEnv:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} does not exist in a run of {self.world_size} ranks")
        if self.world_size > 1 and (self.rendezvous is None or self.secret_file is None):
            raise ValueError(f"a run of several ranks needs {PREFIX}RENDEZVOUS and {PREFIX}SECRET_FILE")
        return self

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WorkerEnv:
        """Parse the environment. Raises ContractError that names the variable."""
        values: dict[str, Any] = {}
        for name in cls.model_fields:
            raw = environ.get(PREFIX + name.upper())
            if raw is not None and raw != "":
                values[name] = raw
        if "rank" not in values and environ.get("JOB_COMPLETION_INDEX"):
            values["rank"] = environ["JOB_COMPLETION_INDEX"]
        if "spec" in values:
            values["spec"] = _parse_spec(values["spec"])
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = PREFIX + str(first["loc"][0]).upper() if first["loc"] else "environment"
            raise ContractError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None

    def to_environ(self) -> dict[str, str]:
        """The variables that `read` turns back into this value."""
        out: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is None:
                continue
            out[PREFIX + name.upper()] = json.dumps(value) if name == "spec" else str(value)
        return out

    def token(self) -> bytes:
        """The run's token, HMAC-SHA256(install secret, run id), 32 bytes. Raises ContractError when the secret cannot be read."""
        if self.secret_file is None:
            raise ContractError(f"{PREFIX}SECRET_FILE is not set")
        try:
            secret = self.secret_file.read_bytes().strip()
        except OSError as error:
            raise ContractError(f"{PREFIX}SECRET_FILE {self.secret_file}: {error.strerror}") from None
        if len(secret) < 16:
            raise ContractError(f"{PREFIX}SECRET_FILE {self.secret_file}: the secret is shorter than 16 bytes")
        return run_token(secret, self.run_id)


def run_token(secret: bytes, run_id: str) -> bytes:
    """HMAC-SHA256(secret, run id), 32 bytes."""
    return hmac.new(secret, run_id.encode(), hashlib.sha256).digest()


def split_endpoint(value: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair. Raises ValueError with the reason."""
    host, sep, port = value.rpartition(":")
    if not sep or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{value!r} is not host:port")
    return host.strip("[]"), int(port)


def allowed_cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def _parse_spec(raw: str) -> dict[str, Any]:
    try:
        spec = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{PREFIX}SPEC: not JSON: {error}") from None
    if not isinstance(spec, dict):
        raise ContractError(f"{PREFIX}SPEC: a JSON object is needed, got {type(spec).__name__}")
    return spec
