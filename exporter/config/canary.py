"""The canaries: which endpoints get a small request now and then, and what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, create_model, model_validator

from exporter.config.base import FilePath, Model, Name, Secret
from exporter.config.pd import PdServing
from exporter.config.schedule import Schedule, every
from exporter.config.semantic import Found, Where, refuse, repeated, within
from probes.canary.endpoint import Api
from probes.canary.params import CanaryParams
from probes.canary.pd.params import Page, PdParams
from probes.canary.stacks import Connector, StackName
from probes.units import Duration, show_duration

Kind = Literal["short", "long", "shared_prefix"]
# What a worker needs beside the request itself: its start and its report.
OVERHEAD_SECONDS = 10.0
ANY_PAGE = Page(url="http://pod/metrics", role="decode", pod="pod")
_ELSEWHERE = {"url", "model", "api", "prompt", "key_file", "ca_file", "stack", "connector", "route", "prefill", "pd"}

if TYPE_CHECKING:
    class CanaryOptions(Model):
        """Parameters of a request that a target or one of its prompts may set."""
else:
    CanaryOptions = create_model(
        "CanaryOptions", __base__=Model, __doc__="Parameters of a request that a target or one of its prompts may set.",
        **{name: (field.annotation, field) for name, field in CanaryParams.model_fields.items() if name not in _ELSEWHERE},
    )


class Prompt(Model):
    """One kind of prompt of a target."""

    enabled: bool = True
    """Whether it is sent."""
    schedule: Schedule
    params: CanaryOptions = CanaryOptions()
    """Parameters for this prompt only; they win over those of the target."""


class ShortPrompt(Prompt):
    """A short prompt: the path works and answers."""

    schedule: Annotated[Schedule, every("60s")] = Schedule(interval=60.0)
    """When it is sent."""


class LongPrompt(Prompt):
    """A long prompt: prefill and the KV transfer take part."""

    schedule: Annotated[Schedule, every("10m")] = Schedule(interval=600.0)
    """When it is sent."""


class SharedPrefixPrompt(Prompt):
    """Two requests in a row with the same beginning; the second is measured and should find the first one's prefix in the cache."""

    enabled: bool = False
    """Whether it is sent: for endpoints with prefix caching."""
    schedule: Annotated[Schedule, every("30m")] = Schedule(interval=1800.0)
    """When it is sent."""


class Prompts(Model):
    """The kinds of prompt."""

    short: ShortPrompt = ShortPrompt()
    """The short prompt, by default every 60 s."""
    long: LongPrompt = LongPrompt()
    """The long prompt, by default every 10 minutes, fitted to the served context length."""
    shared_prefix: SharedPrefixPrompt = SharedPrefixPrompt()
    """Two prompts with the same beginning, off by default."""

    def items(self) -> list[tuple[Kind, Prompt]]:
        """All kinds, enabled or not."""
        return [("short", self.short), ("long", self.long), ("shared_prefix", self.shared_prefix)]


class CanaryTarget(Model):
    """One OpenAI-compatible endpoint. One request at a time goes to it."""

    name: Name
    """Name of the target, as it appears in metrics."""
    url: Annotated[str, Field(min_length=1, max_length=2048)]
    """Base address, with or without `/v1`."""
    model: Annotated[str, Field(min_length=1, max_length=512)]
    """Name of the model as the endpoint serves it."""
    api: Api = "chat"
    """`chat` or `completions`."""
    stack: StackName = "openai"
    """What serves: `openai` (anything), `vllm`, `sglang`, `llm-d` or `ray-serve`."""
    connector: Connector | None = None
    """KV connector, where the stack has several; default: its usual one."""
    enabled: bool = True
    """Whether canaries are sent."""
    key: Secret | None = None
    """API key, by file or environment variable."""
    ca_file: FilePath | None = None
    """The only certificate authorities trusted (PEM); default: the system's."""
    prompts: Prompts = Prompts()
    """What is sent and when."""
    params: CanaryOptions = CanaryOptions()
    """Parameters of every request to this target."""
    pd: PdServing | None = None
    """Prefill and decode pods behind the target: proof of KV movement, visits of pairs, ratios."""

    @model_validator(mode="after")
    def _consistent(self) -> CanaryTarget:
        found: list[Found] = []
        for kind, prompt in self.prompts.items():
            try:
                params = self.request(kind)
            except ValidationError as error:
                found += [one for one in self._located(kind, prompt, error) if one not in found]
                continue
            interval = prompt.schedule.interval
            if interval is not None and interval < params.requests * params.total_timeout:
                times = f"{params.requests} times " if params.requests > 1 else ""
                what = (f"interval {show_duration(interval)} is shorter than {times}total_timeout {show_duration(params.total_timeout)}: "
                        "lower params.total_timeout or raise the interval")
                found.append((("prompts", kind, "schedule", "interval"), what))
        refuse("CanaryTarget", found)
        return self

    def _located(self, kind: Kind, prompt: Prompt, error: ValidationError) -> list[Found]:
        """The problems of a request, each at the key that brought it in."""
        here = prompt.params.model_fields_set
        place: dict[str, Where] = {name: (name,) for name in ("url", "model", "api", "ca_file", "stack", "connector")}
        place |= {name: ("params", name) for name in self.params.model_fields_set - here}
        otherwise: Where = ("prompts", kind, "params") if here else ("params",) if self.params.model_fields_set else ()
        return [(where, what.replace("key_file", "key")) for where, what in within(error, place, otherwise)]

    def request(self, kind: Kind) -> CanaryParams:
        """The parameters of one request, without the key. Raises ValidationError when they do not go together."""
        return CanaryParams.model_validate(self.spec(kind))

    def spec(self, kind: Kind) -> dict[str, Any]:
        """What `request` is made of."""
        prompt = dict(self.prompts.items())[kind]
        spec: dict[str, Any] = {"url": self.url, "model": self.model, "api": self.api, "prompt": kind, "stack": self.stack,
                                **({"connector": self.connector} if self.connector is not None else {}),
                                **self.params.model_dump(mode="json", exclude_unset=True),
                                **prompt.params.model_dump(mode="json", exclude_unset=True)}
        if self.ca_file is not None:
            spec["ca_file"] = str(self.ca_file)
        return spec

    def routes(self, kind: Kind) -> dict[str, dict[str, Any]]:
        """The requests of a schedule by route: `router`, and `baseline` where there is one. Pairs come with the pods that are found."""
        found = {"router": self.spec(kind)}
        if self.pd is not None and self.pd.baseline is not None:
            found["baseline"] = self.baseline_spec(kind, self.pd.baseline.url)
        return found

    def baseline_spec(self, kind: Kind, url: str | None) -> dict[str, Any]:
        """The same request to a server that does prefill and decode itself: at `url`, or (None) to be filled in with a decode pod's."""
        spec = {**self.spec(kind), "route": "baseline"}
        for name in ("reference", "batch_invariant"):
            spec.pop(name, None)
        if url is None:
            return spec
        return {**{name: value for name, value in spec.items() if name not in ("connector", "objective")}, "url": url, "stack": "openai"}

    def deadline(self, kind: Kind, route: str) -> float:
        """Longest time of one run, seconds: the request, its proof, and what a worker needs beside them."""
        if self.pd is None:
            return self.request(kind).longest + OVERHEAD_SECONDS
        proof = PdParams(pages=(ANY_PAGE,), provenance=self.pd.provenance and route == "pair")
        legs = {"route": "pair", "prefill": "http://pod"} if route == "pair" else {}
        return CanaryParams.model_validate({**self.spec(kind), **legs, "pd": proof}).longest + OVERHEAD_SECONDS


class Courtesy(Model):
    """How canaries make way for users. One request at a time goes to a target; these are the pauses after one that was turned away."""

    backoff: Annotated[Duration, Field(ge=1, le=3600)] = 60.0
    """First pause after a 429, a 503 that sheds, or a request that a gateway dropped; doubled each time. A longer Retry-After wins."""
    longest: Annotated[Duration, Field(ge=1, le=86400)] = 1800.0
    """Longest pause."""

    @model_validator(mode="after")
    def _ordered(self) -> Courtesy:
        if self.longest < self.backoff:
            refuse("Courtesy", [(("longest",), f"longest {show_duration(self.longest)} is below backoff {show_duration(self.backoff)}")])
        return self


class Canary(Model):
    """Canary requests."""

    courtesy: Courtesy = Courtesy()
    """Pauses after requests that were turned away."""

    targets: Annotated[tuple[CanaryTarget, ...], Field(max_length=1000)] = ()
    """The endpoints. None by default."""

    @model_validator(mode="after")
    def _unique(self) -> Canary:
        refuse("Canary", [(("targets", index, "name"), f"target {name!r} is listed twice")
                          for index, name in repeated(target.name for target in self.targets)])
        return self
