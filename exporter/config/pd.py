"""Prefill/decode serving behind a canary target: where its engine pods are found, how pairs are visited, what they are compared with."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from exporter.config.base import Line, Model, Name
from exporter.config.kubernetes import LabelKey, LabelValue, ObjectName
from exporter.config.semantic import Found, refuse, repeated
from probes.canary.endpoint import EndpointError, parse_endpoint
from probes.canary.pd.params import KvShape
from probes.units import Duration

Port = Annotated[int, Field(ge=1, le=65535)]
Url = Annotated[str, Field(min_length=1, max_length=2048)]
ROLE_LABEL = "llm-d.ai/role"


class Labelled(Model):
    """Pods with a role label, as llm-d and its charts set it."""

    namespace: ObjectName
    """Namespace of the pods."""
    selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels that the pods have beside that of their role."""
    role_label: LabelKey = ROLE_LABEL
    """Label whose value is `prefill`, `decode`, `both` or `prefill-decode`."""


class LeaderWorkerSets(Model):
    """The leaders of two LeaderWorkerSets."""

    namespace: ObjectName
    """Namespace of both."""
    prefill: ObjectName
    """Name of the LeaderWorkerSet of prefill."""
    decode: ObjectName
    """Name of the LeaderWorkerSet of decode."""


class InferencePool(Model):
    """The pods that an InferencePool selects, with their roles by label."""

    namespace: ObjectName
    """Namespace of the pool."""
    name: ObjectName
    """Name of the pool."""
    role_label: LabelKey = ROLE_LABEL
    """Label whose value is the role."""


class Ray(Model):
    """Replicas of a Ray Serve LLM application, by the REST API of Serve."""

    url: Url
    """Address of the Ray dashboard, e.g. `http://ray-head:8265`."""
    application: Line | None = None
    """Name of the Serve application; default: all."""
    metrics_port: Port = 8080
    """Port of the metrics of each Ray node."""
    namespace: ObjectName | None = None
    """Namespace of the Ray pods, to learn their nodes and the RayService; without it neither is known."""


class StaticPod(Model):
    """One engine by its address."""

    name: Name
    """Name of the pod, a label value in metrics."""
    role: Literal["prefill", "decode", "mixed"]
    """What it does."""
    url: Url
    """Base address of its API; on llm-d that of the decode pod's sidecar."""
    metrics: Url | None = None
    """Address of its metrics; default: `/metrics` of `url`."""
    node: Line | None = None
    """Name of its node, for transport and topology."""


class PodSource(Model):
    """Where the engine pods are found: exactly one of these."""

    labels: Labelled | None = None
    """Pods with a role label."""
    leader_worker_sets: LeaderWorkerSets | None = None
    """The leaders of two LeaderWorkerSets."""
    inference_pool: InferencePool | None = None
    """The pods of an InferencePool."""
    ray: Ray | None = None
    """Replicas of Ray Serve LLM."""
    static: Annotated[tuple[StaticPod, ...], Field(max_length=1000)] = ()
    """Engines by their addresses."""

    @model_validator(mode="after")
    def _one(self) -> PodSource:
        given = [name for name in ("labels", "leader_worker_sets", "inference_pool", "ray") if getattr(self, name) is not None]
        given += ["static"] if self.static else []
        found: list[Found] = []
        if len(given) != 1:
            said = f"{' and '.join(given)} are given" if given else "none is given"
            found.append(((), f"exactly one of labels, leader_worker_sets, inference_pool, ray and static is needed: {said}"))
        found += [(("static", index, "name"), f"pod {name!r} is listed twice") for index, name in repeated(pod.name for pod in self.static)]
        for index, pod in enumerate(self.static):
            found += [(("static", index, field), why) for field, url in (("url", pod.url), ("metrics", pod.metrics))
                      if url is not None and (why := _unusable(url))]
        if self.ray is not None and (why := _unusable(self.ray.url)):
            found.append((("ray", "url"), why))
        refuse("PodSource", found)
        return self


class Baseline(Model):
    """The same model without disaggregation, for ratios: exactly one of `url` and `decode`."""

    url: Url | None = None
    """Base address of a server that does prefill and decode itself."""
    decode: bool = False
    """The decode pods alone, without a prefill pod: possible with vLLM and llm-d, not with SGLang."""
    samples: Annotated[int, Field(ge=3, le=1000)] = 10
    """Least number of samples of each side, interleaved in time, before a ratio is shown."""

    @model_validator(mode="after")
    def _one(self) -> Baseline:
        found: list[Found] = []
        if (self.url is not None) == self.decode:
            found.append(((), "exactly one of url and decode is needed"))
        if self.url is not None and (why := _unusable(self.url)):
            found.append((("url",), why))
        refuse("Baseline", found)
        return self


class PdServing(Model):
    """Prefill and decode behind a canary target."""

    source: PodSource
    """Where the engine pods are found."""
    prefill_port: Port = 8000
    """Port on which prefill pods take requests."""
    decode_port: Port = 8000
    """Port on which decode pods take requests; on llm-d that of the sidecar."""
    metrics_port: Port | None = None
    """Port of the engines' metrics; default: that of requests."""
    metrics_path: Annotated[str, Field(pattern=r"^/[!-~]{0,255}$")] = "/metrics"
    """Path of the engines' metrics."""
    scheme: Literal["http", "https"] = "http"
    """Protocol of the pods' ports."""
    insecure: bool = False
    """Accept any certificate of the pods: sidecars make their own."""
    router_metrics: Annotated[tuple[Url, ...], Field(max_length=8)] = ()
    """Metrics pages of the router (sglang-router, smg)."""
    picker_metrics: Annotated[tuple[Url, ...], Field(max_length=8)] = ()
    """Metrics pages of the endpoint picker (llm-d, port 9090)."""
    pairs: bool = True
    """Send canaries to pairs of a prefill and a decode pod directly (vLLM, SGLang, llm-d)."""
    pod_interval: Annotated[Duration, Field(ge=30, le=7 * 86400)] = 1800.0
    """Every ready prefill and decode pod is visited by a pair canary at least so often."""
    startup_grace: Annotated[Duration, Field(ge=0, le=86400)] = 1800.0
    """Failures of a pod that has not yet given a good answer are warm-up for so long after its container started."""
    prompt: Literal["short", "long"] = "long"
    """Kind of prompt that pairs get."""
    min_prompt_tokens: Annotated[int, Field(ge=0, le=131072)] = 0
    """Shorter prompts may be served by decode alone: `nonCachedTokens` of llm-d's prefix-based decider. They are not judged."""
    provenance: bool = False
    """Make the provenance test on the first contact of a pair. See `probes/canary/pd/README.md` for what it costs."""
    shape: KvShape | None = None
    """Shape of the model's KV cache, for the formula beside the learned bytes."""
    baseline: Baseline | None = None
    """The same model without disaggregation."""

    @model_validator(mode="after")
    def _usable(self) -> PdServing:
        refuse("PdServing", [((field, index), why) for field in ("router_metrics", "picker_metrics")
                             for index, url in enumerate(getattr(self, field)) if (why := _unusable(url))])
        return self


def _unusable(url: str) -> str | None:
    try:
        parse_endpoint(url)
    except EndpointError as error:
        return str(error)
    return None
