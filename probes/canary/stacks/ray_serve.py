"""Ray Serve LLM: the HTTP proxy of Serve in front of prefill and decode deployments.

Ray exposes neither its prefill nor its decode replicas, and a client's `kv_transfer_params` trip an assertion there, so pairs are covered
by chance. Serve batches streamed tokens (50 ms by default): gaps between tokens come as bursts, TPOT is not touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.canary.stacks.base import Ask, Connector, Leg, Plain, Plan, Route, StackName

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams


class RayServe(Plain):
    """One request to the proxy."""

    name: StackName = "ray-serve"
    routes: frozenset[Route] = frozenset({"router", "baseline"})
    connectors: tuple[Connector, ...] = ()

    def check(self, params: CanaryParams) -> None:
        """Raise ValueError for fields that Ray's own code refuses."""
        if "kv_transfer_params" in params.extra_body:
            raise ValueError("extra_body: Ray Serve LLM sets kv_transfer_params itself and fails on a client's: remove it")

    def plan(self, ask: Ask) -> Plan:
        """The question as it is."""
        return Plan(Leg(ask.params.url, ask.body))
