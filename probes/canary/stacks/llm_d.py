"""llm-d: the gateway, or the sidecar of one decode pod, which does the legs itself.

The pair is chosen by the header `x-prefiller-host-port` on a request to the decode pod's sidecar. Its value is exactly one host and
port: an empty one or a leading comma means decode-only without a word, no port means 80. Without the header the sidecar hands the
request to the decode engine untouched: the baseline on the same hardware. The client sends no X-Request-Id, so that the id of the answer
can show whose it was. Nothing that a client can see proves that KV moved; see `probes.canary.stacks.signs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from probes.canary.endpoint import parse_endpoint
from probes.canary.stacks.base import Ask, Connector, Leg, Plain, Plan, Refusal, Route, StackName
from probes.canary.stacks.refusals import llm_d_refusal

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams

PREFILLER = "x-prefiller-host-port"
OBJECTIVE = "x-gateway-inference-objective"
CONCURRENT: frozenset[Connector] = frozenset({"sglang", "mooncake", "offloading"})
"""Connectors whose legs run at once: a failed prefill leg is invisible there, and an aborted request leaves it working."""


class LlmD(Plain):
    """One request, to the gateway or to a sidecar."""

    name: StackName = "llm-d"
    routes: frozenset[Route] = frozenset({"router", "pair", "baseline"})
    connectors: tuple[Connector, ...] = ("nixl", "sglang", "mooncake", "shared-storage", "offloading")

    def check(self, params: CanaryParams) -> None:
        """Raise ValueError for headers that would choose another way than the route says."""
        names = {name.lower() for name in params.headers}
        if PREFILLER in names:
            raise ValueError(f"headers: {PREFILLER} is set by the canary itself: use route pair and prefill")
        if OBJECTIVE in names and params.objective is not None:
            raise ValueError(f"headers: {OBJECTIVE} is given in headers and as objective")
        if params.route == "pair" and "kv_transfer_params" in params.extra_body:
            raise ValueError("extra_body: kv_transfer_params are overwritten by the sidecar on the route pair: remove them")

    def plan(self, ask: Ask) -> Plan:
        """The question with the headers that choose its way."""
        params = ask.params
        headers: dict[str, str] = {}
        if params.objective is not None:
            headers[OBJECTIVE] = params.objective
        if params.route == "pair" and params.prefill is not None and ask.given is None:
            headers[PREFILLER] = host_port(params.prefill)
        waits = params.wire_connector not in CONCURRENT
        return Plan(Leg(params.url, ask.body | (ask.given or {}), headers), ttft_has_prefill=waits or params.route == "baseline")

    def refusal(self, code: int, headers: Mapping[str, str], body: str) -> Refusal | None:
        """By the words of gateway and sidecar."""
        return llm_d_refusal(code, headers, body)


def host_port(prefill: str) -> str:
    """The value of the header for a prefill worker's address: always with a port."""
    endpoint = parse_endpoint(prefill)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"
