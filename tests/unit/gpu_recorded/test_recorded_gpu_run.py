"""The recorded run on two GPUs: every claim held, and the judge reads the same transport from its evidence as its makers intended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.judge.transport import judge_transport
from probes.nccl import parse_file
from probes.result import LIMIT, Result, encode
from probes.uccl_ep.parse import parse_file as parse_ep

FIXTURES = Path(__file__).parents[2] / "fixtures" / "gpu"
LOGS = FIXTURES / "logs"
CASES: dict[str, Any] = json.loads((FIXTURES / "results.json").read_text())["cases"]


def outcomes(value: Any) -> list[dict[str, Any]]:
    """Every recorded outcome of a case, however deep."""
    if not isinstance(value, dict):
        return []
    return ([value] if "results" in value else []) + [found for inner in value.values() for found in outcomes(inner)]


def results(*path: str) -> list[Result]:
    value: Any = CASES
    for key in path:
        value = value[key]
    return [Result.model_validate(document) for document in value["results"]]


@pytest.mark.parametrize("case", CASES)
def test_every_claim_held(case: str) -> None:
    assert [claim for claim, truth in CASES[case]["holds"] if not truth] == []


@pytest.mark.parametrize("case", CASES)
def test_every_document_is_valid_and_fits_a_termination_message(case: str) -> None:
    for outcome in outcomes(CASES[case]):
        assert outcome["left_over"] == []
        for document in outcome["results"]:
            assert len(encode(Result.model_validate(document))) <= LIMIT


@pytest.mark.parametrize(("path", "transport"), [
    (("socket", "socket"), "tcp"), (("socket", "nvlink"), "intra_node"), (("engine", "nvlink"), "intra_node"),
    (("engine", "socket"), "tcp"), (("rails", "rails"), "intra_node"), (("rails", "one worker, all GPUs"), "intra_node"),
    (("operations",), "intra_node"),
    (("uccl", "driver"), "intra_node"), (("uccl", "upstream"), "intra_node"), (("mooncake",), "tcp"), (("nixl",), "tcp")])
def test_the_transport_is_judged_from_the_evidence(path: tuple[str, ...], transport: str) -> None:
    verdict = judge_transport(results(*path))
    assert verdict.transport.value == transport, verdict.why


def test_tcp_bytes_are_the_payload_within_a_thousandth() -> None:
    for result in results("socket", "socket"):
        assert result.evidence is not None
        assert result.evidence.tcp_bytes is not None
        assert result.evidence.payload_bytes is not None
        for seen, moved in zip(result.evidence.tcp_bytes, result.evidence.payload_bytes, strict=True):
            assert seen / moved == pytest.approx(1.0, abs=1e-3)


def test_the_log_of_the_engine_reads_as_it_did_there() -> None:
    run = parse_file(LOGS / "nccl_tests_engine.log")
    assert run.reason.value == "ok", run.message
    assert {row["bytes"] for row in run.rows()} == {1 << 20, 256 << 20}


def test_the_log_of_the_upstream_bench_reads_as_it_did_there() -> None:
    run = parse_ep(LOGS / "uccl_intranode.log")
    assert (run.reason.value, run.unfinished) == ("ok", 0)
