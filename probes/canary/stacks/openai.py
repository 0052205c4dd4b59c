"""Anything that speaks the OpenAI API: one request to one address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probes.canary.stacks.base import Ask, Connector, Leg, Plan, Route, StackName

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams


class OpenAi:
    """No part of the stack is known, so there is no pair."""

    name: StackName = "openai"
    routes: frozenset[Route] = frozenset({"router", "baseline"})
    connectors: tuple[Connector, ...] = ()

    def check(self, params: CanaryParams) -> None:
        """Nothing beyond what holds for every stack."""

    def plan(self, ask: Ask) -> Plan:
        """The question as it is."""
        return Plan(Leg(ask.params.url, ask.body))
