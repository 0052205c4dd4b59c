"""The canary as a worker: `python -m probes run` under its supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from canary_peers import QUICK

from probes.canary.scenario import Scenario
from probes.canary.simulated import SimulatedEndpoint
from probes.contract import WorkerEnv
from probes.reasons import Outcome, Reason
from probes.result import Phase, Result, decode

pytestmark = pytest.mark.usefixtures("no_process_left")


def run_worker(tmp_path: Path, spec: dict[str, Any], deadline: float = 60.0) -> Result:
    path = tmp_path / "result"
    env = WorkerEnv(run_id="canary-1", probe="canary", target="simulated", node="here", deadline=deadline, spec=spec, result_path=path)
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env={**os.environ, **env.to_environ()}, capture_output=True, timeout=90,
                          check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return decode(path.read_bytes())


def test_a_good_answer_makes_a_good_result(tmp_path: Path) -> None:
    with SimulatedEndpoint(scenario=Scenario(ttft=0.2, gap=0.05)) as endpoint:
        result = run_worker(tmp_path, {"url": endpoint.url, "model": "simulated-pd", "max_tokens": 6, **QUICK})
    assert result.stream is not None
    assert (result.stream.token_events, result.stream.output_tokens, result.stream.http_status) == (6, 6, 200)
    assert result.reason in (Reason.OK, Reason.DISTURBED), result.message
    assert result.stream.status == result.reason.value
    assert {Phase.SETUP, Phase.MEASURE} <= set(result.phases)
    assert (result.shape["api"], result.shape["prompt"], result.shape["max_tokens"]) == ("chat", "short", 6)
    assert result.versions["server"] == "efa-pulse-simulated-pd"
    assert "alpha" not in json.dumps(result.model_dump(mode="json"))  # answers leave as a hash only
    assert result.stream.answer_sha256 is not None


@pytest.mark.parametrize(("fault", "outcome", "reason"), [
    ("error_in_stream", Outcome.FAILED, Reason.ERROR_IN_STREAM),
    ("http_429", Outcome.UNKNOWN, Reason.SHED),
    ("short", Outcome.DEGRADED, Reason.WRONG_LENGTH),
])
def test_a_failure_keeps_its_reason_and_message(tmp_path: Path, fault: str, outcome: Outcome, reason: Reason) -> None:
    with SimulatedEndpoint(scenario=Scenario.model_validate({"ttft": 0.02, "fault": fault})) as endpoint:
        result = run_worker(tmp_path, {"url": endpoint.url, "model": "simulated-pd", "max_tokens": 6, **QUICK})
    assert (result.outcome, result.reason) == (outcome, reason)
    assert result.message
    assert result.stream is not None


@pytest.mark.parametrize(("spec", "says"), [
    ({"model": "m"}, "url"),
    ({"url": "http://h", "model": "m", "colour": 1}, "colour"),
    ({"url": "http://h", "model": "m", "key_file": "/nowhere/key"}, "/nowhere/key"),
    ({"url": "http://h", "model": "m", "total_timeout": 300}, "raise its deadline"),
])
def test_parameters_that_cannot_be_used_are_unknown_not_failed(tmp_path: Path, spec: dict[str, Any], says: str) -> None:
    result = run_worker(tmp_path, spec)
    assert (result.outcome, result.reason) == (Outcome.UNKNOWN, Reason.BAD_SPEC)
    assert says in result.message


def test_the_longest_answer_fits_the_result(tmp_path: Path) -> None:
    with SimulatedEndpoint(scenario=Scenario(ttft=0.1, gap=0.004)) as endpoint:
        result = run_worker(tmp_path, {"url": endpoint.url, "model": "simulated-pd", "max_tokens": 256, **QUICK})
    assert result.stream is not None
    assert result.stream.output_tokens == 256
    assert (tmp_path / "result").stat().st_size <= 4096
