"""One engine pod, as any source gives it. A field that a source cannot tell is None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Role = Literal["prefill", "decode", "mixed"]
ROLES: dict[str, Role] = {"prefill": "prefill", "decode": "decode", "both": "mixed", "prefill-decode": "mixed", "mixed": "mixed",
                          "encode-prefill": "prefill", "encode-prefill-decode": "mixed"}
"""Values of a role label, and what they mean."""


@dataclass(frozen=True)
class Configured:
    """What the arguments and environment of an engine say. Supporting evidence only: what runs is another matter.

    `connector` is `nixl`, `mooncake` or the engine's own word; `backend` what carries it (`UCX`, `LIBFABRIC`, `rdma`, `tcp`, `efa`), with
    `by_default` where nothing names it. `role` is what the engine was told to do. `shared_store`: a KV store beside the connector.
    """

    engine: Literal["vllm", "sglang"] | None = None
    role: Role | None = None
    connector: str | None = None
    backend: str | None = None
    by_default: bool = False
    shared_store: bool = False

    @property
    def efa(self) -> bool | None:
        """Whether the backend uses EFA as it should; None when it is not known."""
        return None if self.backend is None else self.backend.lower() in ("libfabric", "efa")


@dataclass(frozen=True)
class EnginePod:
    """See the module. `url` is the base address of its API, `metrics` the address of its page; both empty where there is none.

    `life` changes with every start of its container; `started` is that start in Unix seconds, `restarts` how often it was started again.
    `efa` is whether the pod itself asks for EFA devices.
    """

    name: str
    role: Role
    url: str
    metrics: str
    life: str = ""
    node: str | None = None
    ready: bool = True
    started: float | None = None
    restarts: int = 0
    efa: bool | None = None
    configured: Configured = field(default_factory=Configured)
    bootstrap_host: str | None = None

    @property
    def prefills(self) -> bool:
        """Whether it may be the prefill side of a pair."""
        return self.role in ("prefill", "mixed")

    @property
    def decodes(self) -> bool:
        """Whether it may be the decode side of a pair."""
        return self.role in ("decode", "mixed")


@dataclass(frozen=True)
class Found:
    """All engine pods of one target at one moment. `trouble` says why they may not be all; empty when they are."""

    pods: tuple[EnginePod, ...] = ()
    trouble: str = ""
    seen: bool = True

    def of(self, role: Role) -> tuple[EnginePod, ...]:
        """Those that may be on this side of a pair, ready or not."""
        return tuple(pod for pod in self.pods if pod.role in (role, "mixed"))
