"""The canary through a real Ray Serve proxy, with a small streaming OpenAI app of a prefill and a decode deployment behind it."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canary_peers import delivered, quick
from e2e.routers.running import answers, environment, running
from thismachine import free_port

from exporter.discovery.ray import replicas
from probes.canary.client import CanaryRun, measure
from probes.reasons import Reason

APP = Path(__file__).parent / "routers" / "ray_app.py"
START_SECONDS = 240.0
ENVIRON = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "200",
           "RAY_memory_monitor_refresh_ms": "0"}
PATIENT: dict[str, Any] = {"head_timeout": 30.0, "first_token_timeout": 30.0, "stall_timeout": 15.0, "total_timeout": 60.0}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the proxy. Ray's sockets need a short path."""
    python = environment("ray-serve")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    try:
        with running([str(python), str(APP), str(port), str(folder)], tmp_path_factory.mktemp("ray") / "ray.log",
                     lambda: answers(f"{url}/v1/models"), seconds=START_SECONDS, environ=ENVIRON):
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(proxy: str, **fields: Any) -> CanaryRun:
    return measure(quick(proxy, stack="ray-serve", model="canary-model", **{"max_tokens": 12, **PATIENT, **fields}))


def test_a_stream_of_the_proxy_is_timed(proxy: str) -> None:
    ask(proxy)  # the first request warms the replicas up
    run = ask(proxy)
    assert delivered(run), run.message
    assert (run.stream.output_tokens, run.stream.finish_reason) == (12, "length")
    assert run.stream.ttft is not None
    assert run.stream.tpot is not None
    assert run.stream.ttft > 0.05, "the prefill deployment takes so long"
    assert 0.015 < run.stream.tpot < 0.5
    assert run.stream.request_id is not None


def test_tokens_that_ray_batches_do_not_change_the_time_per_token(proxy: str) -> None:
    """Serve LLM holds streamed tokens back for 50 ms: gaps come in bursts, and each burst is one delivery."""
    run = ask(proxy, headers={"x-batch": "0.1"}, max_tokens=24)
    assert run.stream.output_tokens == 24, run.message
    assert run.stream.tpot is not None
    assert 0.01 < run.stream.tpot < 0.5
    assert run.stream.max_gap is not None
    assert run.stream.max_gap > 0.05


def test_a_replica_that_dies_in_mid_stream_is_no_success(proxy: str) -> None:
    raised, told = (ask(proxy, headers={"x-fault": fault}) for fault in ("raise", "error"))
    assert raised.reason in (Reason.TRUNCATED, Reason.PROTOCOL_ERROR, Reason.ERROR_IN_STREAM), raised.message
    assert told.reason is Reason.ERROR_IN_STREAM
    assert "decode failed" in told.message


def test_a_model_that_is_not_there_is_the_clients_mistake(proxy: str) -> None:
    run = ask(proxy, extra_body={"x": 1}, api="chat", headers={"x-batch": "0"})
    assert delivered(run), run.message
    wrong = measure(quick(proxy, stack="ray-serve", model="other", **PATIENT))
    assert wrong.reason is Reason.HTTP_CLIENT_ERROR


def test_replicas_are_told_by_role_and_mapped_to_nodes(proxy: str) -> None:
    """What Serve's controller tells its REST API. An address of a pod stands for that of this machine."""
    with urllib.request.urlopen(f"{proxy}/v1/applications", timeout=30) as answer:
        told = json.loads(re.sub(rb'"node_ip": "[^"]+"', b'"node_ip": "10.0.0.7"', answer.read()))
    pods = list(replicas(told, application="llm", metrics_port=8080, places={"10.0.0.7": ("node-a", "ray-worker-0")}))
    assert sorted(pod.role for pod in pods) == ["decode", "prefill"]
    assert {pod.node for pod in pods} == {"node-a"}
    assert all(pod.ready and pod.metrics == "http://10.0.0.7:8080/metrics" for pod in pods)
    assert len({pod.life for pod in pods}) == 2
