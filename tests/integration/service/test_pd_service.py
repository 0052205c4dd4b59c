"""The service before doubles of prefill and decode: visits of pairs, verdicts, ratios, findings, all the way to the metrics page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doubles.vllm import KV_BYTES_PER_TOKEN, MODEL, Server
from running import Running

PREFIX = "efapulse_"
REQUEST = {"total_timeout": "5s", "first_token_timeout": "5s", "head_timeout": "5s", "stall_timeout": "3s", "max_tokens": 6,
           "anchors": "off", "context_length": 8192}
PATIENCE = 150.0
"""A worker's start takes seconds on a busy machine, and one request at a time goes to a target."""


pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def pair() -> Iterator[tuple[Server, Server]]:
    with Server() as prefill, Server() as decode:
        yield prefill, decode


@contextlib.contextmanager
def running(folder: Path, prefill: Server, decode: Server, *, router: str = "", **pd: Any) -> Iterator[Running]:
    """The service with one target whose router is decode itself, so that only pairs are disaggregated, or the one given."""
    static = [{"name": "p-0", "role": "prefill", "url": prefill.url}, {"name": "d-0", "role": "decode", "url": decode.url}]
    target = {"name": "chat", "url": router or decode.url, "model": MODEL, "api": "completions", "stack": "vllm", "params": REQUEST,
              "prompts": {"short": {"schedule": {"interval": "8s"}},
                          "long": {"schedule": {"interval": "6s"}, "params": {"prompt_tokens": 2000}}},
              "pd": {"source": {"static": static}, "pod_interval": "30s", **pd}}
    service = Running(folder, {"canary": {"targets": [target]}, "probes": {"node": {"enabled": False}, "mooncake": {"enabled": False},
                                                                          "nixl": {"enabled": False}}})
    try:
        service.until(lambda: service.get("/-/ready")[0] == 200, PATIENCE)
        yield service
    finally:
        if service.process.poll() is None:
            service.end()


def test_pairs_are_visited_and_judged_by_the_counters_of_the_engines(tmp_path: Path, pair: tuple[Server, Server]) -> None:
    with running(tmp_path, *pair) as service:
        def count(verdict: str, evidence: str) -> float:
            return service.value(PREFIX + "pd_disaggregation_total", target="chat", verdict=verdict, evidence=evidence) or 0.0

        service.until(lambda: count("yes", "counters") >= 1, PATIENCE)
        service.until(lambda: count("no", "counters") >= 1, PATIENCE)
        assert count("yes", "router_mode") == 0
        service.until(lambda: service.value(PREFIX + "pd_pair_coverage_ratio", target="chat") == 1.0, PATIENCE)
        service.until(lambda: service.value(PREFIX + "pd_pod_coverage_ratio", target="chat", role="decode") == 1.0, PATIENCE)
        assert service.value(PREFIX + "pd_pods", target="chat", role="prefill") == 1
        impure = service.value(PREFIX + "pd_impure_tokens_total", target="chat", role="decode")
        assert impure is not None
        assert impure > 0, "what comes through the router is computed on decode"
        service.until(lambda: service.value(PREFIX + "pd_pod_kv_transfer_seconds", target="chat", role="decode", pod_name="d-0")
                      == pytest.approx(0.004), PATIENCE)
        assert '"level": "error"' not in service.log


def test_a_prefill_that_gives_no_handle_is_named(tmp_path: Path, pair: tuple[Server, Server]) -> None:
    prefill, decode = pair
    prefill.drops = True
    with running(tmp_path, prefill, decode) as service:
        service.until(lambda: (service.value(PREFIX + "canary_requests_total", target="chat", route="pair", prompt="long") is not None
                               and service.value(PREFIX + "pd_pair_coverage_ratio", target="chat") == 1.0), PATIENCE)
        assert service.value(PREFIX + "pd_disaggregation_total", target="chat", verdict="yes", evidence="counters") == 0
        assert (service.value(PREFIX + "pd_disaggregation_total", target="chat", verdict="no", evidence="counters") or 0) >= 1


def test_the_slope_of_kv_is_learned_by_pairs_of_two_lengths(tmp_path: Path, pair: tuple[Server, Server]) -> None:
    """With a router that disaggregates, the short and the long prompt together give the bytes of a token."""
    prefill, decode = pair

    class Router(Server):
        """Plays smg with NIXL: both legs, one after the other, by the doubles' own counters."""

        def count(self, fields: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any] | None]:
            _, handle = prefill.count({**fields, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}})
            return decode.count({**fields, "kv_transfer_params": handle})

    with Router() as router, running(tmp_path, prefill, decode, router=router.url, pairs=False) as service:
        service.until(lambda: service.value(PREFIX + "pd_kv_bytes_per_token", target="chat")
                      == pytest.approx(KV_BYTES_PER_TOKEN, rel=0.02), PATIENCE)
