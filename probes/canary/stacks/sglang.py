"""SGLang with prefill/decode disaggregation.

Behind sglang-router or smg one plain request is sent; both routers write the bootstrap fields over and drop what they do not know
(`cache_salt`, `continuous_usage_stats`), so a fresh first block is what keeps caches out. As a pair the same body goes to both workers at
once, with the bootstrap server of the prefill worker and a room used once: each worker holds the request until the other has it, so waiting
for the prefill worker first would wait for ever. SGLang makes one token on the prefill side whatever is asked for. A prefill or decode
worker serves nothing alone: the baseline is a server without disaggregation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.canary.endpoint import parse_endpoint
from probes.canary.stacks.base import Ask, Connector, Leg, Plain, Plan, Route, StackName, random_room

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams

FAKE_HOST = "2.2.2.2"
"""SGLang's own mark for a request without any transfer; its health checks use it, a canary never may."""


class Sglang(Plain):
    """The router, or both workers at once."""

    name: StackName = "sglang"
    routes: frozenset[Route] = frozenset({"router", "pair", "baseline"})
    connectors: tuple[Connector, ...] = ("sglang",)

    def check(self, params: CanaryParams) -> None:
        """Raise ValueError for what would make SGLang fake the transfer, or what a router drops."""
        if params.bootstrap_host == FAKE_HOST:
            raise ValueError(f"bootstrap_host {FAKE_HOST} makes SGLang fake the transfer: name the prefill worker")
        if params.route == "pair":
            taken = sorted({"bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"} & params.extra_body.keys())
            if taken:
                raise ValueError(f"extra_body: {taken[0]} is set by the canary itself on the route pair")
        if params.route == "router" and params.cache_salt:
            raise ValueError("cache_salt is dropped by SGLang's routers: leave it off, the prompt's first block is new each time anyway")

    def plan(self, ask: Ask) -> Plan:
        """One leg, or the same body twice."""
        params = ask.params
        if params.route != "pair" or params.prefill is None:
            return Plan(Leg(params.url, ask.body))
        room = {"bootstrap_host": params.bootstrap_host or parse_endpoint(params.prefill).host, "bootstrap_port": params.bootstrap_port,
                "bootstrap_room": random_room(ask.entropy)}
        return Plan(Leg(params.url, ask.body | room), Leg(params.prefill, ask.body | room), "concurrent")
