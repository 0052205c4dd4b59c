"""The serving stacks a canary can talk to. See README.md for how to add one."""

from __future__ import annotations

from probes.canary.stacks.base import (
    Ask,
    Connector,
    HandoverError,
    Leg,
    Lookup,
    Plan,
    Route,
    Stack,
    StackName,
)
from probes.canary.stacks.llm_d import LlmD
from probes.canary.stacks.openai import OpenAi
from probes.canary.stacks.ray_serve import RayServe
from probes.canary.stacks.sglang import Sglang
from probes.canary.stacks.vllm import Vllm

STACKS: dict[StackName, Stack] = {stack.name: stack for stack in (OpenAi(), Vllm(), Sglang(), LlmD(), RayServe())}

__all__ = ["STACKS", "Ask", "Connector", "HandoverError", "Leg", "Lookup", "Plan", "Route", "Stack", "StackName"]
