"""What a canary needs to know of the engines behind it. Imports nothing heavy, so that a configuration can embed it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from probes.canary.endpoint import usable_url
from probes.units import Duration

PageRole = Literal["prefill", "decode", "mixed", "router", "epp"]
MAX_PAGES = 64
PROVENANCE_SECONDS = 20.0
"""Longest time of the four requests of a provenance test."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Page(_Model):
    """One metrics page: an engine's (prefill, decode or mixed), a router's or an endpoint picker's."""

    url: str = Field(description="whole address of the page")
    role: PageRole = Field(description="what its engine does by configuration")
    pod: str = Field(min_length=1, max_length=253, description="name of the pod, or of the Ray replica")
    node: str | None = Field(default=None, description="node the pod is on")
    zone: str | None = None
    instance_type: str | None = None
    placement_group: str | None = None
    insecure: bool = Field(default=False, description="accept any certificate: sidecars make their own")

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        return usable_url(value)


class KvShape(_Model):
    """The shape of a model's KV cache, for the formula that only cross-checks: models with hybrid attention move far less."""

    layers: int = Field(ge=1, le=1024)
    kv_heads: int = Field(default=1, ge=1, le=1024, description="KV heads of the whole model, all ranks together")
    head_dim: int = Field(ge=1, le=65536, description="size of one head; of a latent cache (MLA) kv_lora_rank plus rope")
    dtype_bytes: float = Field(default=2.0, gt=0, le=16)
    latent: bool = Field(default=False, description="one latent vector in place of keys and values (MLA)")


class Learned(_Model):
    """KV bytes of a request: `constant + slope * tokens`, tokens rounded up to whole blocks of `block_tokens` first."""

    slope: float = Field(ge=0)
    constant: float = 0.0
    block_tokens: int | None = Field(default=None, ge=1)


class PdParams(_Model):
    """What is read around one canary, and what is expected of it."""

    pages: tuple[Page, ...] = Field(default=(), max_length=MAX_PAGES)
    complete: bool = Field(default=True, description="these are all the pods that may serve the request; without that no counter says no")
    min_prompt_tokens: int = Field(default=0, ge=0, description="shorter prompts may be served by decode alone: they are not judged")
    settle: Duration = Field(default=10.0, ge=0, le=60, description="longest wait after the answer for counters to show it")
    page_timeout: Duration = Field(default=3.0, gt=0, le=30, description="for each reading of the pages")
    first_contact: bool = Field(default=False, description="this pair has not met before: its first transfer includes the handshake")
    provenance: bool = Field(default=False, description="also send A's hand-over with prompt B; needs cache_salt and a pair")
    shared_store: bool = Field(default=False, description="a KV store is shared between the engines: provenance is refused")
    shape: KvShape | None = None
    learned: Learned | None = None

    @property
    def longest(self) -> float:
        """Seconds this takes at most, beside the request itself and the provenance test."""
        reading = self.settle + 3 * self.page_timeout if self.pages else 0.0
        return reading + (PROVENANCE_SECONDS if self.provenance else 0.0)
