"""What canaries cost in GPU time, before one is sent."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.config.canary import Canary
from exporter.plan.cost import DAY, canary_gpu_seconds, canary_gpu_seconds_a_day
from probes.canary.params import CanaryParams

SHORT = {"long": {"enabled": False}}


def params(**fields: Any) -> CanaryParams:
    return CanaryParams.model_validate({"url": "http://h", "model": "m", **fields})


def a_day(**fields: Any) -> float:
    target = {"name": "chat", "url": "http://h", "model": "m", "prompts": SHORT, **fields}
    return canary_gpu_seconds_a_day(Canary.model_validate({"targets": [target]}))


def test_a_prompt_costs_by_its_tokens() -> None:
    assert canary_gpu_seconds(params(prompt="long")) > canary_gpu_seconds(params()) > 0


@pytest.mark.parametrize("more", [{"prompt": "shared_prefix", "prompt_tokens": 40}, {"reference": "http://other"}])
def test_a_second_request_costs_as_much_again(more: dict[str, Any]) -> None:
    assert canary_gpu_seconds(params(**more)) == 2 * canary_gpu_seconds(params())


def test_a_day_is_every_prompt_at_its_pace() -> None:
    assert a_day() == pytest.approx(canary_gpu_seconds(params()) * DAY / 60)
    assert a_day(enabled=False) == 0.0
    assert a_day(prompts={}) > a_day()


def test_the_baseline_doubles_it_and_pairs_that_are_named_are_counted() -> None:
    source = {"static": [{"name": f"{role}-{n}", "role": role, "url": f"http://{role}-{n}"} for role, n in
                         (("prefill", 0), ("prefill", 1), ("decode", 0))]}
    assert a_day(pd={"source": source, "pairs": False, "baseline": {"url": "http://b"}}) == pytest.approx(2 * a_day())
    visits = a_day(stack="vllm", pd={"source": source, "pod_interval": "30m"}) - a_day()
    assert visits == pytest.approx(2 * canary_gpu_seconds(params(prompt="long")) * DAY / 1800)
