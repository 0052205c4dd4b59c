"""Anything that speaks the OpenAI API: one request to one address."""

from __future__ import annotations

from probes.canary.stacks.base import Ask, Connector, Leg, Plain, Plan, Route, StackName


class OpenAi(Plain):
    """No part of the stack is known, so there is no pair."""

    name: StackName = "openai"
    routes: frozenset[Route] = frozenset({"router", "baseline"})
    connectors: tuple[Connector, ...] = ()

    def plan(self, ask: Ask) -> Plan:
        """The question as it is."""
        return Plan(Leg(ask.params.url, ask.body))
