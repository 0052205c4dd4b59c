"""Engine pages as meters: generations of names, Ray's spelling, constant zero, resets, and pages that hold anything."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from engine_pages import vllm
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.pd.engines import CatalogError, catalog, load, plain
from probes.canary.pd.exposition import LINES_LIMIT, SAMPLES_LIMIT, read
from probes.canary.pd.reading import Change, Reading, change, read_page


def test_a_page_of_vllm_gives_its_meters_in_base_units() -> None:
    page = read_page(vllm(), "decode", "decode-0")
    assert (page.engine, page.problem, page.missing, page.silent, page.block_tokens) == ("vllm", None, (), False, 128)
    assert {name: page.values[name] for name in ("prompt_external", "prompt_local", "kv_bytes", "kv_seconds", "requests")} == {
        "prompt_external": 455, "prompt_local": 1, "kv_bytes": 1048576, "kv_seconds": 0.006, "requests": 1}
    assert (page.values["running"], page.values["kv_usage"]) == (3, 0.5), "requests add up over engines, a share does not"


def test_the_growth_between_two_pages() -> None:
    grown = change(read_page(vllm(), "decode", "d"), read_page(vllm(external=911, prompt=912, requests=2, moved=2097152), "decode", "d"))
    assert {name: grown.grew[name] for name in ("prompt_external", "prompt_tokens", "requests", "kv_bytes")} == {
        "prompt_external": 456, "prompt_tokens": 456, "requests": 1, "kv_bytes": 1048576}
    assert grown.now["running"] == 3
    assert grown.usable


@pytest.mark.parametrize("after", [vllm(prompt=10), vllm(started=1.7e9 + 30, prompt=900),
                                   vllm().replace("vllm:prompt_tokens_total", "vllm:x")],
                         ids=["a counter fell", "the process is another one", "a counter vanished"])
def test_counters_that_started_again_are_not_used(after: str) -> None:
    found = change(read_page(vllm(), "decode", "d"), read_page(after, "decode", "d"))
    assert found.reset
    assert not found.usable
    assert found.grew == {}


def test_a_counter_that_was_absent_before_its_first_event_starts_at_zero() -> None:
    """llm-d-inference-sim has no counters before the first request."""
    before = read_page("vllm:num_requests_running 0\n", "prefill", "p")
    after = read_page('vllm:num_requests_running 0\nvllm:prompt_tokens_total{model_name="m"} 40\n', "prefill", "p")
    assert change(before, after).grew["prompt_tokens"] == 40


def test_a_constant_zero_of_a_transfer_meter_is_no_data() -> None:
    page = read_page(vllm(moved=0, seconds=0), "decode", "d")
    assert "kv_bytes" not in page.values
    assert "kv_seconds" not in page.values
    grown = change(page, read_page(vllm(moved=512), "decode", "d"))
    assert grown.grew["kv_bytes"] == 512, "the first transfer there is counted from zero"


SGLANG_NEW = """
sglang:num_running_reqs{engine_type="prefill",model_name="m",tp_rank="0"} 1
sglang:kv_transfer_total_mb_bucket{engine_type="prefill",le="1.0"} 0
sglang:kv_transfer_total_mb_sum{engine_type="prefill"} 3.5
sglang:kv_transfer_total_mb_count{engine_type="prefill"} 2
sglang:kv_transfer_latency_ms_sum{engine_type="prefill"} 40
sglang:kv_transfer_latency_ms_count{engine_type="prefill"} 2
sglang:num_prefill_bootstrap_queue_reqs{engine_type="prefill"} 0
"""
SGLANG_OLD = """
sglang:num_running_reqs{engine_type="prefill",model_name="m",tp_rank="0"} 1
sglang:kv_transfer_total_mb{engine_type="prefill"} 1.5
sglang:kv_transfer_latency_ms{engine_type="prefill"} 20
sglang:num_prefill_prealloc_queue_reqs{engine_type="prefill"} 0
"""


def test_sglang_since_0_5_10_has_histograms() -> None:
    page = read_page(SGLANG_NEW, "prefill", "p")
    assert (page.engine, page.engine_role, page.silent) == ("sglang", "prefill", False)
    assert page.values["kv_bytes"] == 3.5 * 2**20
    assert page.values["kv_seconds"] == pytest.approx(0.04)


def test_sglang_before_has_gauges_of_the_last_transfer() -> None:
    before = read_page(SGLANG_OLD, "prefill", "p")
    same, other = change(before, read_page(SGLANG_OLD, "prefill", "p")), change(before, read_page(
        SGLANG_OLD.replace("total_mb{engine_type=\"prefill\"} 1.5", "total_mb{engine_type=\"prefill\"} 2.0"), "prefill", "p"))
    assert "kv_bytes" not in same.grew, "a gauge that stays may be another transfer of that size, or none"
    assert other.grew["kv_bytes"] == 2 * 2**20


def test_ray_spells_the_names_of_vllm_in_its_own_way_and_leaves_zeros_out() -> None:
    page = 'ray_vllm_prompt_tokens_by_source_total{source="local_compute",ReplicaId="r"} 5\nray_vllm_nixl_num_failed_transfers 1\n'
    reading = read_page(page, "decode", "r")
    assert (reading.engine, reading.ray) == ("vllm", True)
    assert reading.values["failed_transfers"] == 1, "Ray's counters may lack _total"
    grown = change(reading, read_page(page.replace("} 5", "} 9"), "decode", "r"))
    assert (grown.grew["prompt_external"], grown.grew["prompt_local"]) == (0, 4)
    assert plain("ray_vllm:time_to_first_token_seconds_sum") == "vllm:time_to_first_token_seconds_sum"


def test_an_engine_without_any_expected_name_is_silent_and_says_which() -> None:
    page = read_page("vllm:prompt_tokens_total 5\nvllm:num_requests_running 0\n", "decode", "d")
    assert page.silent
    assert "vllm:prompt_tokens_by_source_total" in page.missing


def test_a_page_of_something_else_is_a_problem() -> None:
    assert "none of the engines" in (read_page("go_goroutines 7\n<html>login</html>\n", "decode", "d").problem or "")
    assert "none of the engines" in (read_page("", "decode", "d").problem or "")


def test_the_recorded_pages_of_llm_d_are_read(samples: Path) -> None:
    prefill = read_page((samples / "metrics_sim_prefill.txt").read_text(), "prefill", "p")
    decode = read_page((samples / "metrics_sim_decode.txt").read_text(), "decode", "d")
    epp = read_page((samples / "metrics_epp.txt").read_text(), "epp", "e")
    assert (prefill.engine, prefill.silent, prefill.values["requests"]) == ("vllm", False, 5)
    assert (decode.engine, decode.silent, decode.values["prompt_tokens"]) == ("vllm", True, 860)
    assert (epp.engine, epp.values["decided_pd"], epp.values["decided_decode_only"], epp.values["failed_picks"]) == ("epp", 14, 7, 1)


def recorded(samples: Path, role: str, before: str, after: str) -> Change:
    pages = [read_page((samples / f"vllm_{role}_{moment}.txt").read_text(), role, role) for moment in (before, after)]
    return change(*pages)


def test_the_recorded_pages_of_vllm_around_a_disaggregated_request(samples: Path) -> None:
    decode, prefill = recorded(samples, "decode", "idle", "after_pd"), recorded(samples, "prefill", "idle", "after_pd")
    assert decode.usable
    assert {name: decode.grew[name] for name in ("prompt_external", "prompt_local", "kv_bytes", "kv_transfers", "requests")} == {
        "prompt_external": 326, "prompt_local": 0, "kv_bytes": 11 * 32 * 2048, "kv_transfers": 1, "requests": 1}
    assert decode.block_tokens == 32
    assert (prefill.grew["prompt_tokens"], prefill.grew["generation_tokens"], prefill.grew["requests"]) == (326, 1, 1)


def test_the_recorded_pages_of_vllm_around_a_recompute(samples: Path) -> None:
    decode = recorded(samples, "decode", "after_pd", "after_recompute")
    assert (decode.grew["prompt_external"], decode.grew["prompt_local"], decode.grew["kv_bytes"]) == (0, 326, 0)
    assert (decode.grew["external_queries"], decode.grew["external_hits"]) == (326, 0)
    prefill = recorded(samples, "prefill", "after_pd", "after_recompute")
    assert (prefill.grew["prompt_tokens"], prefill.usable) == (0, True)


def test_the_recorded_pages_of_vllm_around_a_failed_transfer(samples: Path) -> None:
    """The queue time of the request that failed is negative by hours: a sum that falls, and no restart. Hits count what was matched."""
    decode = recorded(samples, "decode", "after_recompute", "after_failed_transfer")
    assert decode.usable
    assert (decode.grew["failed_transfers"], decode.grew["request_errors"], decode.grew["external_hits"]) == (1, 1, 326)
    assert decode.grew["kv_bytes"] == 0
    assert "queue_seconds" not in decode.grew


def test_the_recorded_pages_of_smg(samples: Path) -> None:
    router = recorded(samples, "router", "idle", "after_router")
    assert (router.engine, router.grew["router_nixl"], router.grew["router_requests"]) == ("smg", 2, 2)


def test_the_modes_of_smg_are_kept_apart() -> None:
    page = 'smg_pd_kv_connector_mode_total{mode="nixl"} 3\nsmg_pd_kv_connector_mode_total{mode="passthrough"} 2\n'
    reading = read_page(page, "router", "smg")
    assert (reading.engine, reading.values["router_nixl"], reading.values["router_passthrough"]) == ("smg", 3, 2)


# pages that hold anything


@pytest.mark.parametrize("line", [
    'vllm:prompt_tokens_total{a="x\\"}",b="1,2"} 7', 'vllm:prompt_tokens_total{ a = "x" , } 7 1700000000000',
    "vllm:prompt_tokens_total 7 # {run_id=\"x\"} 1.0", "vllm:prompt_tokens_total\t7", 'vllm:prompt_tokens_total{a="\u2028"} 7'])
def test_odd_but_legal_lines_are_read(line: str) -> None:
    found = read(f"{line}\n", lambda name: name == "vllm:prompt_tokens_total")
    assert [sample.value for sample in found.samples] == [7]


@pytest.mark.parametrize("line", [
    "vllm:prompt_tokens_total", "vllm:prompt_tokens_total NaN", "vllm:prompt_tokens_total +Inf", "vllm:prompt_tokens_total 1e300",
    'vllm:prompt_tokens_total{a="x} 7', "vllm:prompt_tokens_total{a=x} 7", 'vllm:prompt_tokens_total{a="b"', "vllm:prompt_tokens_total x",
    "vllm:prompt_tokens_total{" + 'a="b",' * 5000 + "} 1"])
def test_unusable_lines_cost_nothing_else(line: str) -> None:
    found = read(f"{line}\nvllm:prompt_tokens_total 8\n", lambda name: name == "vllm:prompt_tokens_total")
    assert [sample.value for sample in found.samples] == [8]
    assert found.broken == 1


def test_endless_series_are_cut() -> None:
    page = "".join(f'vllm:prompt_tokens_total{{i="{i}"}} 1\n' for i in range(SAMPLES_LIMIT + 5))
    found = read(page, lambda _: True)
    assert (len(found.samples), found.cut) == (SAMPLES_LIMIT, True)


@pytest.mark.parametrize("page", [
    "vllm:prompt_tokens_total 1\n" * (SAMPLES_LIMIT + 1),
    "vllm:prompt_tokens_total 1\n" + "\n" * LINES_LIMIT,
], ids=["series", "lines"])
def test_a_page_of_which_only_a_part_is_read_gives_no_figures(page: str) -> None:
    reading = read_page(page, "decode", "d0")
    assert reading.problem == "the page has more lines or series than are read"
    assert not reading.values


def test_a_line_made_to_waste_time_does_not() -> None:
    line = "vllm:prompt_tokens_total{" + 'a="' + "\\" * 16_000
    began = time.monotonic()
    read("\n".join([line] * 200), lambda _: True)
    assert time.monotonic() - began < 2


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    page = read_page(text, "decode", "d")
    change(page, read_page(vllm(), "decode", "d"))
    change(read_page(vllm(), "decode", "d"), read_page(vllm()[:100] + text, "decode", "d"))


# the catalog


def test_the_catalog_is_whole() -> None:
    found = catalog()
    assert found.engine_of({"vllm"}) == "vllm"
    assert found.engine_of({"process", "python"}) is None
    assert found.expected_of("vllm", "mixed") == found.expected_of("vllm", "decode")
    assert all(sources for sources in found.meters.values())


@pytest.mark.parametrize(("row", "complaint"), [
    ({"series": "x"}, "needs series, engine and kind"),
    ({"series": "x", "engine": "vllm", "kind": "guess"}, "kind 'guess'"),
    ({"series": "x", "engine": "vllm", "kind": "counter", "label": "a"}, "label is for the kinds"),
    ({"series": "x", "engine": "vllm", "kind": "counter", "sum": 1}, "needs series, engine and kind"),
])
def test_a_wrong_row_is_named(row: dict[str, object], complaint: str) -> None:
    with pytest.raises(CatalogError, match=f"meters.m: .*{complaint}"):
        load({"engines": {}, "meters": {"m": [row]}})


def test_an_expected_meter_must_exist() -> None:
    with pytest.raises(CatalogError, match=r"engines.vllm.expected.decode: no such meter or role: nope"):
        load({"engines": {"vllm": {"prefix": ["vllm"], "expected": {"decode": ["nope"]}}}, "meters": {}})


@pytest.fixture(scope="module")
def samples() -> Path:
    return Path(__file__).parents[3] / "fixtures" / "engines"


def test_a_page_that_was_not_read_is_a_problem_of_the_change() -> None:
    lost = Reading("decode", "d", problem="HTTP 500")
    assert change(read_page(vllm(), "decode", "d"), lost).problem == "HTTP 500"
    assert change(lost, read_page(vllm(), "decode", "d")).problem == "HTTP 500"
    assert json.dumps(sorted(catalog().meters)), "names are plain text"
