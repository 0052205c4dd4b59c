"""The double of the llm-d sidecar is held against recordings of the real one, row by row, so that the canary's tests stand on it."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from doubles.client import Got, chat, post
from doubles.llmd import FAULTS, LlmD, llm_d, recorded, rows
from doubles.sidecar import HEADER

CONNECTORS = ("nixlv2", "shared-storage", "sglang", "mooncake", "offloading")
NIXL_ROWS = [row for row in rows("faults_nixlv2") if row["case"] in FAULTS and "SYN" not in row["case"]]
OTHER_ROWS = [row for row in rows("faults_other_connectors") if row["case"] in FAULTS]


def route(there: LlmD) -> list[tuple[str, str]]:
    return [(HEADER, there.prefiller)]


def check(row: dict[str, Any], got: Got, there: LlmD) -> None:
    """Status, named headers, the begin of the body, the number of events, the end mark, how it ended, and what each leg was answered."""
    assert got.status == row["status"]
    for line in row["headers"] or []:
        name, _, value = line.partition(": ")
        assert (name.lower(), value) in got.headers
    if row["events"] is not None:
        assert len(got.events) + got.done == row["events"]  # the recorder counted the end mark
        assert got.done == bool(row["done"])
    elif row["body"] is not None:
        known = re.split(r"\.\.\.|\\\\\\u|127\.0\.0\.1|\\\\u|'", row["body"].removesuffix("..."))[0]
        assert got.body.decode().replace(" ", "").startswith(known.replace(" ", "")[:40])
    ends = {"client_disconnect": "left", "eof": "eof", None: "complete"}
    assert got.ended == ends.get(row["end"], "complete")
    until = time.monotonic() + 2
    while there.legs() != (row["prefill"], row["decode"]) and time.monotonic() < until:
        time.sleep(0.005)  # a leg beside the answer may come a moment later
    assert there.legs() == (row["prefill"], row["decode"])


@pytest.mark.parametrize("row", NIXL_ROWS, ids=lambda row: row["case"])
def test_a_fault_looks_as_recorded_with_nixlv2(row: dict[str, Any]) -> None:
    if "secure-proxy" in row["case"]:
        row = {**row, "end": None}  # the recorder's reset after the answer is not part of the answer
    with llm_d("nixlv2") as there:
        FAULTS[row["case"]](there)
        check(row, post(there.sidecar.house.port, chat(), route(there), seconds=1.5), there)


@pytest.mark.parametrize("row", OTHER_ROWS, ids=lambda row: f"{row['connector']}: {row['case']}")
def test_a_fault_looks_as_recorded_with_other_connectors(row: dict[str, Any]) -> None:
    with llm_d(row["connector"]) as there:
        if row["connector"] != "shared-storage" and row["case"] == "decode port closed":
            there.prefill.behaviour.fault = "hang"  # the recording was read while the prefill leg still ran
        FAULTS[row["case"]](there)
        check(row, post(there.sidecar.house.port, chat(), route(there), seconds=1.5), there)


@pytest.mark.parametrize("row", recorded("header_values")["rows"], ids=lambda row: f"{row['value']!r}{row.get('ssrf_protection', '')}")
def test_odd_header_values_are_taken_as_recorded(row: dict[str, Any]) -> None:
    protected = row.get("ssrf_protection", False)
    with llm_d("nixlv2", allowed=frozenset({"127.0.0.1", "prefill-0"}) if protected else None) as there:
        live, dead = there.prefiller, "127.0.0.1:1"
        value = row["value"].partition(" (")[0].replace("127.0.0.1:18100", live).replace(":18100", f":{live.rpartition(':')[2]}")
        value = value.replace("127.0.0.1:18555", dead).replace("127.0.0.1:18101", dead)
        lines = {"two header lines: live, dead": [live, dead], "two header lines: dead, live": [dead, live]}.get(row["value"], [value])
        got = post(there.sidecar.house.port, chat(), [(HEADER, one) for one in lines], seconds=2.0)
        assert got.status == row["status"]
        assert there.legs() == (row["prefill"], row["decode"])
        if "Forbidden" in row.get("body", ""):
            assert got.body.decode() == row["body"]


@pytest.mark.parametrize("connector", [c for c in CONNECTORS if c != "nixlv2"])
def test_the_legs_are_those_of_the_recording(connector: str) -> None:
    """Which legs there are, what each is asked, and whether the second waits for the first."""
    want = recorded(f"legs_{connector.replace('-', '_')}")
    body = json.loads(want["client"]["request_body"])
    with llm_d(connector) as there:
        there.prefill.behaviour.ttft = 0.4
        got = post(there.sidecar.house.port, body, route(there))
        assert got.done
        legs = {"prefill": there.prefill.seen[0], "decode": there.decode.seen[0]}
        for leg in want["legs"]:
            if leg["leg"] == "bootstrap":
                assert there.bootstrap.house.seen[0].target == "/query"
                continue
            assert _ids_aside(legs[leg["leg"]].json()) == _ids_aside(json.loads(leg["request_body"]))
            for line in leg["x_headers"]:
                name, _, value = line.partition(": ")
                assert legs[leg["leg"]].get(name) == value
            assert legs[leg["leg"]].get(HEADER) is None
        serial = want["client"]["t_head_ms"] > 500
        apart = legs["decode"].at - legs["prefill"].at
        assert (apart > 0.35) is serial


@pytest.mark.parametrize("row", recorded("leg_token_fields")["rows"], ids=lambda row: row["connector"])
def test_token_fields_are_changed_as_recorded(row: dict[str, Any]) -> None:
    changes = {"max_tokens": 6, "max_completion_tokens": 6, "min_tokens": 6, "seed": 9007199254740993,
               "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    names = ("max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options", "seed", "cache_hit_threshold")
    with llm_d(row["connector"]) as there:
        post(there.sidecar.house.port, chat(**changes), route(there))
        for leg, engine in (("prefill_leg", there.prefill), ("decode_leg", there.decode)):
            assert {name: value for name, value in engine.seen[0].json().items() if name in names} == row[leg]


def test_without_the_header_the_bytes_stay_as_they_are() -> None:
    body = (b'{"stream": true, "max_tokens": 2, "model": "canary-model", "temperature": 1.0, '
            b'"messages": [{"role": "user", "content": "<&>"}]}')
    with llm_d() as there:
        post(there.sidecar.house.port, body, [])
        assert there.decode.seen[0].body == body
        post(there.sidecar.house.port, body, route(there))
        assert b'"temperature":1}' in there.decode.seen[1].body
        assert b"\\u003c\\u0026\\u003e" in there.decode.seen[1].body


def test_nixlv2_gives_both_legs_one_new_id_beside_the_clients() -> None:
    with llm_d() as there:
        post(there.sidecar.house.port, chat(), [*route(there), ("X-Request-Id", "mine"), ("Authorization", "Bearer k")])
        prefill, decode = there.prefill.seen[0], there.decode.seen[0]
        assert prefill.all("x-request-id") == decode.all("x-request-id")
        assert prefill.all("x-request-id")[0] == "mine"
        assert prefill.get("authorization") == decode.get("authorization") == "Bearer k"


def test_cached_tokens_are_those_of_the_prefill_engine() -> None:
    long = " ".join(f"word{number}" for number in range(40))
    body = chat(messages=[{"role": "user", "content": long}])
    with llm_d() as there:
        assert _cached(post(there.sidecar.house.port, body, [])) == 0
        assert _cached(post(there.sidecar.house.port, body, [])) == 32
        assert _cached(post(there.sidecar.house.port, body, route(there))) == 0, "the decode engine had 32"
        there.decode.behaviour.details = False
        assert _cached(post(there.sidecar.house.port, body, route(there))) == 32, "the decode engine said nothing"


def test_shared_storage_that_tries_decode_first_doubles_every_header() -> None:
    with llm_d("shared-storage") as there:
        got = post(there.sidecar.house.port, chat(cache_hit_threshold=0.5), route(there))
        assert there.legs() == ([200], [200, 200])
        assert [name for name, _ in got.headers].count("content-type") == 2


def test_chunked_decode_gives_one_event_for_so_many_tokens() -> None:
    with llm_d(chunk_size=4) as there:
        got = post(there.sidecar.house.port, chat(), route(there))
        assert len(there.decode.seen) == 2
        assert [json.loads(event).get("object") for event in got.events] == ["chat.completion", "chat.completion", None]
        assert got.done


@pytest.mark.parametrize(("connector", "stays"), [("nixlv2", False), ("shared-storage", False), ("sglang", True), ("mooncake", True),
                                                  ("offloading", True)])
def test_a_prefill_leg_outlives_a_client_only_with_concurrent_connectors(connector: str, stays: bool) -> None:
    with llm_d(connector) as there:
        there.prefill.behaviour.ttft = there.decode.behaviour.ttft = 0.5
        there.decode.behaviour.fault = "hang"
        post(there.sidecar.house.port, chat(), route(there), seconds=0.15)
        there.sidecar.house.town.do(_wait(0.6))
        assert there.prefill.seen[0].status == (200 if stays else None)


def test_a_killed_sidecar_cuts_the_stream() -> None:
    with llm_d() as there:
        there.decode.behaviour.fault = "stall"
        import threading
        threading.Timer(0.2, there.sidecar.house.kill).start()
        got = post(there.sidecar.house.port, chat(), route(there))
        assert (got.status, got.ended, got.done) == (200, "eof", False)


def test_the_rest_of_the_api_is_the_decode_engines() -> None:
    from urllib.request import urlopen
    with llm_d() as there:
        assert json.load(urlopen(f"{there.url}/v1/models", timeout=5))["data"][0]["id"] == "canary-model"
        there.decode.house.close()
        assert urlopen(f"{there.url}/health", timeout=5).status == 200


async def _wait(seconds: float) -> None:
    import asyncio
    await asyncio.sleep(seconds)


def _cached(got: Got) -> Any:
    usage = next(json.loads(event)["usage"] for event in reversed(got.events) if b'"usage":{' in event.replace(b" ", b""))
    return usage["prompt_tokens_details"]["cached_tokens"]


_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _ids_aside(body: dict[str, Any]) -> str:
    """A body as text, without what is made anew for each request."""
    body = {name: value for name, value in body.items() if name not in ("bootstrap_room", "bootstrap_port")}
    return re.sub(r"http://127\.0\.0\.1:\d+", "BOOTSTRAP", _RANDOM.sub("ID", json.dumps(body, sort_keys=True)))
