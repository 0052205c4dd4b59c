"""The canary judged on every row of the llm-d recordings, through a double of the sidecar that is held against them: right result, right
reason, and never "disaggregated", since nothing that a client sees proves that KV moved."""

from __future__ import annotations

from typing import Any

import pytest
from canary_peers import quick
from doubles.llmd import FAULTS, LlmD, llm_d

from probes.canary.client import CanaryRun, measure
from probes.canary.pd.params import PdParams
from probes.canary.pd.watch import PdWatch, Sent
from probes.canary.status import Status
from probes.reasons import Outcome, outcome_of
from probes.result import Pd

SOON: dict[str, Any] = {"head_timeout": 1.5, "first_token_timeout": 1.5, "stall_timeout": 1.0, "total_timeout": 8.0}
CONNECTOR = {"nixlv2": "nixl"}


def ask(there: LlmD, connector: str, route: str = "pair", **fields: Any) -> CanaryRun:
    """One canary by the sidecar."""
    pair = {"prefill": f"http://{there.prefiller}"} if route == "pair" else {}
    return measure(quick(there.url, stack="llm-d", route=route, connector=CONNECTOR.get(connector, connector), model="canary-model",
                         max_tokens=8, **{**SOON, **pair, **fields}))


def proof(run: CanaryRun, connector: str) -> Pd:
    """What is said of disaggregation when no engine can be read."""
    watch = PdWatch(PdParams())
    watch.before()
    return watch.after(run.stream, Sent("pair", CONNECTOR.get(connector, connector), run.ttft_has_prefill, run.path_signs))


NIXL = [
    ("prefill port closed", Status.HTTP_5XX, "could not reach the prefill worker"),
    ("prefill accepts, never answers; client leaves at 4 s", Status.TIMEOUT_HEADER, "no response head"),
    ("prefill 500 (with Retry-After and x-inference-pod)", Status.HTTP_5XX, "prefill says 500"),
    ("prefill 400", Status.HTTP_4XX, "prefill says 400"),
    ("prefill 429", Status.SHED, "prefill says 429"),
    ("prefill 503", Status.SHED, "prefill says 503"),
    ("prefill 200, empty body", Status.HTTP_5XX, "could not read the prefill worker's reply"),
    ("prefill 200, html", Status.HTTP_5XX, "could not read the prefill worker's reply"),
    ("prefill 302", Status.PROTOCOL_ERROR, "redirect"),
    ("decode port closed", Status.HTTP_5XX, "could not reach its decode engine"),
    ("decode accepts, never answers; client leaves at 3 s", Status.TIMEOUT_HEADER, "no response head"),
    ("decode 500", Status.HTTP_5XX, "EngineCore encountered an issue"),
    ("decode closes before the first byte", Status.HTTP_5XX, "closed the connection before its answer"),
    ("decode FIN after 4 events", Status.TRUNCATED, "after 3 token events"),
    ("decode RST after 4 events", Status.TRUNCATED, "after 3 token events"),
    ("decode stalls after 4 events; client leaves at 3 s", Status.TIMEOUT_STALL, "after 3 token events"),
    ("error object inside a 200 stream", Status.ERROR_IN_STREAM, "InternalServerError"),
    ("prefill 503, --prefill-max-retries 2 --prefill-retry-backoff 100ms", Status.HTTP_5XX, "HTTP 503"),
    ("same flags, 503 then 200", Status.OK, ""),
    ("same flags, prefill 500: no retry", Status.HTTP_5XX, "HTTP 500"),
    ("same flags, prefill port closed: 3 dials", Status.HTTP_5XX, "could not reach the prefill worker"),
    ("prefill SYN never answered (full backlog)", Status.HTTP_5XX, "could not reach the prefill worker"),
    ("plain HTTP to a sidecar with --secure-proxy=true", Status.TLS_FAILED, "use https://"),
    ("sim failure injection on decode: server_error", Status.HTTP_5XX, "overloaded"),
]
SILENT_NIXL = ["prefill 200 without kv_transfer_params", "prefill 200, kv_transfer_params null", "prefill 200, kv_transfer_params {}",
               "prefill 200, do_remote_prefill false"]
SILENT = [(connector, case) for connector in ("sglang", "mooncake", "offloading")
          for case in ("prefill port closed", "prefill never answers", "prefill 500", "prefill 429")]
OTHERS = [
    ("shared-storage", "prefill port closed", Status.HTTP_5XX, "could not reach the prefill worker"),
    ("shared-storage", "prefill never answers; client leaves at 4 s", Status.TIMEOUT_HEADER, "no response head"),
    ("shared-storage", "prefill 500", Status.HTTP_5XX, "prefill says 500"),
    ("shared-storage", "prefill 429", Status.SHED, "prefill says 429"),
    ("shared-storage", "decode port closed", Status.HTTP_5XX, "could not reach its decode engine"),
    ("sglang", "decode port closed", Status.HTTP_5XX, "could not reach its decode engine"),
    ("mooncake", "decode port closed", Status.HTTP_5XX, "could not reach its decode engine"),
    ("mooncake", "bootstrap port closed", Status.HTTP_5XX, "no engine id"),
    ("mooncake", "bootstrap 500", Status.HTTP_5XX, "no engine id"),
    ("mooncake", "bootstrap without engine_id", Status.HTTP_5XX, "no engine id"),
    ("mooncake", "bootstrap never answers", Status.HTTP_5XX, "no engine id"),
]


@pytest.mark.parametrize(("case", "status", "says"), NIXL, ids=[row[0] for row in NIXL])
def test_a_fault_with_nixlv2_has_its_own_result(case: str, status: Status, says: str) -> None:
    with llm_d("nixlv2") as there:
        FAULTS[case](there)
        run = ask(there, "nixlv2")
    seen = "ok" if run.stream.status == "disturbed" else run.stream.status  # a busy machine says nothing about the answer
    assert (seen, says in run.message) == (status.value, True), run.message
    assert proof(run, "nixlv2").disaggregation != "yes"


@pytest.mark.parametrize(("connector", "case", "status", "says"), OTHERS, ids=[f"{row[0]}: {row[1]}" for row in OTHERS])
def test_a_fault_with_another_connector_has_its_own_result(connector: str, case: str, status: Status, says: str) -> None:
    with llm_d(connector) as there:
        FAULTS[case](there)
        run = ask(there, connector)
    assert (run.stream.status, says in run.message) == (status.value, True), run.message
    assert proof(run, connector).disaggregation != "yes"


@pytest.mark.parametrize(("connector", "case"), [*(("nixlv2", case) for case in SILENT_NIXL), *SILENT])
def test_an_answer_that_decode_made_alone_is_delivered_and_never_called_disaggregated(connector: str, case: str) -> None:
    """The client sees a normal 200. No sign in it tells this from a transfer, so nothing may be claimed."""
    with llm_d(connector) as there:
        FAULTS[case](there)
        run = ask(there, connector)
    assert run.stream.status in ("ok", "disturbed")
    assert outcome_of(run.reason) in (Outcome.OK, Outcome.UNKNOWN)
    said = proof(run, connector)
    assert (said.disaggregation, said.evidence) in (("unknown", "none"), ("unknown", "router_mode"))


@pytest.mark.parametrize("connector", ["nixlv2", "shared-storage", "sglang", "mooncake", "offloading"])
def test_a_good_pair_reaches_both_engines_and_still_proves_nothing(connector: str) -> None:
    with llm_d(connector) as there:
        run = ask(there, connector)
        assert run.stream.status in ("ok", "disturbed"), run.message
        assert there.legs() == ([200], [200])
    assert proof(run, connector).disaggregation == "unknown"
    assert run.ttft_has_prefill is (connector in ("nixlv2", "shared-storage"))


def test_no_routing_header_is_the_baseline_on_the_same_decode_pod() -> None:
    with llm_d() as there:
        run = ask(there, "nixlv2", "baseline")
        assert run.stream.status in ("ok", "disturbed")
        assert there.legs() == ([], [200])


def test_the_header_is_one_host_with_its_port_and_there_is_no_request_id() -> None:
    with llm_d() as there:
        ask(there, "nixlv2")
        request = there.sidecar.house.seen[-1]
        assert request.all("x-prefiller-host-port") == [there.prefiller]
        assert request.get("x-request-id") is None
        assert "min_tokens" not in request.json()


def test_the_sidecars_own_id_is_a_sign_of_the_path_only() -> None:
    with llm_d() as there:
        there.decode.behaviour.ids_from_request = True
        run = ask(there, "nixlv2")
        assert run.path_signs == ("an id made by an llm-d sidecar: its prefill leg was answered",)
        there.prefill.behaviour.drop_handle = True
        silent = ask(there, "nixlv2")
        assert silent.path_signs == run.path_signs, "a prefill without KV shows the very same"
    assert proof(silent, "nixlv2").disaggregation != "yes"


def test_cached_tokens_of_the_prefill_engine_are_no_proof() -> None:
    with llm_d() as there:
        there.decode.behaviour.details = False
        run = ask(there, "nixlv2")
    assert run.stream.cached_tokens == 0
    assert proof(run, "nixlv2").disaggregation != "yes"


def test_a_prefill_worker_outside_the_pool_is_refused_by_name() -> None:
    with llm_d(allowed=frozenset({"10.0.0.9"})) as there:
        run = ask(there, "nixlv2")
    assert run.stream.status == "http_4xx"
    assert "not in the InferencePool" in run.message


def test_chunked_decode_has_no_time_per_token() -> None:
    with llm_d(chunk_size=4) as there:
        run = ask(there, "nixlv2")
    assert run.stream.status in ("ok", "disturbed"), run.message
    assert run.stream.itl == []


def test_headers_that_come_twice_are_taken() -> None:
    with llm_d("shared-storage") as there:
        run = ask(there, "shared-storage", extra_body={"cache_hit_threshold": 0.5})
    assert run.stream.status in ("ok", "disturbed"), run.message
    assert [name for name, _ in run.headers].count("content-type") == 2


def test_a_canary_that_gives_up_closes_both_legs_of_a_serial_connector() -> None:
    with llm_d() as there:
        FAULTS["decode stalls after 4 events; client leaves at 3 s"](there)
        assert ask(there, "nixlv2").stream.status == "timeout_stall"
        there.sidecar.house.town.do(_wait(0.2))
        assert there.decode.seen[0].left_at is not None


async def _wait(seconds: float) -> None:
    import asyncio
    await asyncio.sleep(seconds)
