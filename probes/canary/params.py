"""What a canary request is made of. Imports nothing heavy, so that a configuration can embed it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from probes.canary.endpoint import Api, Endpoint, parse_endpoint, usable_url
from probes.canary.pd.params import PdParams
from probes.canary.stacks import STACKS, Connector, Route, StackName
from probes.units import Duration

PromptKind = Literal["short", "long", "shared_prefix"]
DEFAULT_PROMPT_TOKENS: dict[PromptKind, int] = {"short": 40, "long": 4096, "shared_prefix": 1024}
ANSWER_TOKENS_A_CODE = 8
LOOKUP_TIMEOUT = 5.0
LEGS_EXTRA = 10.0
"""Seconds a pair may need beyond its two connections and its answer: the lookup of a bootstrap server, the end of a prefill leg."""
LOOKUP_ABOVE = 512
"""Prompt and answer up to this many tokens fit any served context, so it is not asked for."""

_HEADER_NAME = re.compile(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
_OWN_HEADERS = frozenset({"content-length", "transfer-encoding", "connection", "accept", "content-type", "accept-encoding", "expect", "te"})
_OWN_BODY = frozenset({"model", "messages", "prompt", "stream", "max_tokens", "max_completion_tokens", "temperature", "seed", "ignore_eos"})


class CanaryParams(BaseModel):
    """One canary request. Times in seconds, lengths in tokens.

    Every deadline holds by itself: `head_timeout`, `first_token_timeout` and `total_timeout` count from the write of the request,
    `stall_timeout` from the last token; bytes that bring no token (keep-alives, a dripping head) never extend one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str = Field(description="base address of the OpenAI-compatible API, with or without /v1; on the route pair that of the decode "
                                 "worker (llm-d: of its sidecar)")
    stack: StackName = Field(default="openai", description="what serves: openai (anything), vllm, sglang, llm-d or ray-serve")
    route: Route = Field(default="router", description="router: what users see; pair: one prefill and one decode worker directly; "
                                                       "baseline: the same model without disaggregation")
    connector: Connector | None = Field(default=None, description="KV connector, where the stack has several; default: its usual one")
    prefill: str | None = Field(default=None, description="base address of the prefill worker; for the route pair")
    bootstrap_host: str | None = Field(default=None, min_length=1, max_length=253,
                                       description="host of the prefill worker's bootstrap server; default: that of prefill")
    bootstrap_port: int = Field(default=8998, ge=1, le=65535, description="port of the bootstrap server (SGLang, Mooncake)")
    cache_salt: bool = Field(default=False, description="keep this request's KV apart from every other in the engine's prefix cache")
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31,
                                 description="priority of the request, where the engine has it on: low is first in vLLM, last in SGLang")
    objective: str | None = Field(default=None, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
                                  description="InferenceObjective of an llm-d gateway; give one with a negative priority")
    model: str = Field(min_length=1, max_length=512, description="model name as the endpoint serves it")
    api: Api = Field(default="chat", description="chat completions or text completions")

    prompt: PromptKind = Field(default="short", description="kind of prompt, also a label of the metrics; shared_prefix sends two "
                                                            "requests with the same beginning and measures the second")
    prompt_tokens: int | None = Field(default=None, ge=16, le=131072,
                                      description="length of the prompt; default 40 (short), 4096 (long) or 1024 (shared_prefix)")
    max_tokens: int = Field(default=32, ge=1, le=256, description="length of the answer")
    context_length: int | None = Field(default=None, ge=64, description="served context length; default: asked of the endpoint")
    ignore_eos: bool = Field(default=True, description="ask for exactly max_tokens; off for gateways that refuse unknown fields")
    check_length: bool = Field(default=True, description="an answer of another length than asked for is wrong_length")
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # noqa: S105 - a field's name
    temperature: float | None = Field(default=0.0, ge=0, le=2, description="null leaves it out")
    seed: int | None = Field(default=None, ge=0, lt=2**53)
    include_usage: bool = Field(default=True, description="ask for token counts in the stream")
    continuous_usage: bool = Field(default=False, description="ask vLLM for token counts on every event")
    anchors: Literal["off", "graded", "required"] = Field(
        default="graded",
        description="code words that the answer has to copy: graded counts them, required makes a missing one a mismatch")
    reference: str | None = Field(default=None, description="base address of a server of the same model without disaggregation: it gets "
                                                            "the same prompt after the measured request, and the answers are compared")
    batch_invariant: bool = Field(default=False, description="the engines are declared batch invariant: any difference from the reference "
                                                             "is a mismatch")
    logprobs: bool = Field(default=False, description="ask for log probabilities, for the comparison with a reference")
    extra_body: dict[str, JsonValue] = Field(default_factory=dict, description="more fields of the request body")

    headers: dict[str, str] = Field(default_factory=dict, description="more request headers; never a secret")
    key_file: Path | None = Field(default=None, description="file with the API key, read at every run")
    key_header: str = Field(default="authorization", description="authorization sends it as a bearer token, another header as it is")

    ca_file: Path | None = Field(default=None, description="the only certificate authorities trusted; default: the system's")
    server_name: str | None = Field(default=None, min_length=1, max_length=253, description="name to send and verify instead of the host")
    insecure: bool = Field(default=False, description="accept any certificate")
    trust_env: bool = Field(default=False, description="use the proxy that the environment names")

    connect_timeout: Duration = Field(default=5.0, gt=0, le=600, description="name resolution and TCP connection")
    tls_timeout: Duration = Field(default=5.0, gt=0, le=600)
    head_timeout: Duration = Field(default=30.0, gt=0, le=3600)
    first_token_timeout: Duration = Field(default=30.0, gt=0, le=3600)
    stall_timeout: Duration = Field(default=10.0, gt=0, le=3600)
    total_timeout: Duration = Field(default=40.0, gt=0, le=3600)

    pd: PdParams | None = Field(default=None, description="engine pages to read around the request, and what is expected of them")

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        return usable_url(value)

    @field_validator("prefill", "reference")
    @classmethod
    def _usable_prefill(cls, value: str | None) -> str | None:
        return value if value is None else cls._usable_url(value)

    @field_validator("headers")
    @classmethod
    def _usable_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER_NAME.match(name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() in _SECRET_HEADERS:
                raise ValueError(f"{name} carries a secret: put it into a file and use key_file (and key_header)")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name} is set by the canary itself")
            if not text.isascii() or not text.isprintable() or text != text.strip():
                raise ValueError(f"the value of {name} must be printable ASCII without blanks around it")
        return value

    @field_validator("key_header")
    @classmethod
    def _usable_key_header(cls, value: str) -> str:
        if not _HEADER_NAME.match(value) or value.lower() in _OWN_HEADERS | {"host"}:
            raise ValueError(f"{value!r} cannot carry the key")
        return value

    @field_validator("extra_body")
    @classmethod
    def _no_own_fields(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        taken = sorted(_OWN_BODY & value.keys())
        if taken:
            raise ValueError(f"{taken[0]} is set by the canary itself")
        if value.get("n", 1) != 1:
            raise ValueError("n must be 1: routers skip the KV hand-over for more")
        if "min_tokens" in value:
            raise ValueError("min_tokens breaks the prefill leg of some connectors: ignore_eos with max_tokens is enough")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> CanaryParams:
        if self.insecure and self.ca_file is not None:
            raise ValueError("insecure accepts any certificate, so ca_file has no use: give one of the two")
        if not self.endpoint.tls and (self.ca_file is not None or self.server_name is not None or self.insecure):
            raise ValueError("ca_file, server_name and insecure are for https:// only")
        if self.continuous_usage and not self.include_usage:
            raise ValueError("continuous_usage needs include_usage")
        if self.key_file is not None and self.key_header.lower() in {name.lower() for name in self.headers}:
            raise ValueError(f"{self.key_header} is given in headers and as key_header")
        if self.context_length is not None and self.max_tokens + 32 > self.context_length:
            raise ValueError(f"max_tokens {self.max_tokens} and a prompt do not fit into context_length {self.context_length}")
        return self

    @model_validator(mode="after")
    def _stack_and_route(self) -> CanaryParams:
        stack = STACKS[self.stack]
        if self.route not in stack.routes:
            raise ValueError(f"route {self.route} is not possible with stack {self.stack}: use one of {', '.join(sorted(stack.routes))}")
        if self.connector is not None and self.connector not in stack.connectors:
            known = f"use one of {', '.join(stack.connectors)}" if stack.connectors else "leave it out"
            raise ValueError(f"connector {self.connector} makes no sense with stack {self.stack}: {known}")
        if self.route == "pair" and self.prefill is None:
            raise ValueError("route pair needs prefill, the address of the prefill worker")
        if self.route != "pair" and self.prefill is not None:
            raise ValueError(f"prefill is for the route pair, not for {self.route}")
        if self.batch_invariant and self.reference is None:
            raise ValueError("batch_invariant needs reference, the server to compare with")
        if self.objective is not None and self.stack != "llm-d":
            raise ValueError("objective is for stack llm-d")
        if "cache_salt" in self.extra_body and self.cache_salt:
            raise ValueError("cache_salt is given in extra_body as well")
        if "priority" in self.extra_body and self.priority is not None:
            raise ValueError("priority is given in extra_body as well")
        stack.check(self)
        return self

    @property
    def wire_connector(self) -> Connector | None:
        """The KV connector that holds: the one given, else the stack's usual one. None where none makes a difference."""
        connectors = STACKS[self.stack].connectors
        return self.connector or (connectors[0] if connectors else None)

    @property
    def endpoint(self) -> Endpoint:
        """The URL taken apart."""
        return parse_endpoint(self.url)

    @property
    def wanted_prompt_tokens(self) -> int:
        """Prompt length before it is fitted to the served context."""
        return self.prompt_tokens if self.prompt_tokens is not None else DEFAULT_PROMPT_TOKENS[self.prompt]

    @property
    def wanted_anchors(self) -> int:
        """How many codes an answer of this length has room to copy."""
        return 0 if self.anchors == "off" else min(3, self.max_tokens // ANSWER_TOKENS_A_CODE)

    @property
    def needs_lookup(self) -> bool:
        """Whether the endpoint is asked for its context length before the request."""
        return self.context_length is None and self.wanted_prompt_tokens + self.max_tokens > LOOKUP_ABOVE

    @property
    def longest(self) -> float:
        """Seconds after which a run with these deadlines has ended, whatever the endpoint does: a run's deadline must be above it."""
        lookup = LOOKUP_TIMEOUT if self.needs_lookup else 0.0
        dial = self.connect_timeout + self.tls_timeout
        legs = LEGS_EXTRA + 2 * dial if self.route == "pair" and self.prefill is not None else dial
        proof = self.pd.longest if self.pd is not None else 0.0
        return lookup + self.requests * (legs + self.total_timeout) + proof + 1.0

    @property
    def requests(self) -> int:
        """How many answers one run asks for."""
        return 1 + (self.prompt == "shared_prefix") + (self.reference is not None)
