"""The verdict on what real engines counted: pages recorded before and after one request each (`tests/fixtures/engines/README.md`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.canary.pd.params import KvShape, Page, PdParams
from probes.canary.pd.watch import PdWatch, Sent
from probes.result import Pd, Stream

RECORDED = Path(__file__).parents[3] / "fixtures" / "engines"
PROMPT, BLOCK = 326, 32
SHAPE = KvShape(layers=4, kv_heads=2, head_dim=64)


def seen(before: str, after: str, stream: Stream, sent: Sent, *, router: bool = False) -> Pd:
    """What the product says of the time between two recorded moments."""
    roles = ("prefill", "decode", *(["router"] if router else []))
    pages = tuple(Page.model_validate({"url": f"http://10.0.0.1/{role}", "role": role, "pod": f"{role}-0"}) for role in roles)
    moment = before

    def get(url: str, _seconds: float, _insecure: bool) -> str:
        return (RECORDED / f"vllm_{url.rpartition('/')[2]}_{moment}.txt").read_text()

    watch = PdWatch(PdParams(pages=pages, shape=SHAPE, settle=0.0), get=get)
    watch.before()
    moment = after
    return watch.after(stream, sent)


def answered(prompt: int = PROMPT) -> Stream:
    return Stream(status="ok", token_events=6, prompt_tokens=prompt, ttft=1.0)


def test_a_request_with_its_hand_over_was_disaggregated() -> None:
    pd = seen("idle", "after_pd", answered(), Sent("pair", "nixl"))
    assert (pd.disaggregation, pd.evidence) == ("yes", "counters"), pd.why
    assert (pd.kv_bytes, pd.formula_kv_bytes, pd.block_tokens) == (720_896, 720_896, BLOCK)
    assert (pd.failed_transfers, pd.others, pd.impure_tokens) == (0, 0, (0, 0))
    assert pd.kv_bytes_per_second is not None


def test_a_request_without_one_was_computed_on_decode() -> None:
    pd = seen("after_pd", "after_recompute", answered(), Sent("router", "nixl"))
    assert (pd.disaggregation, pd.evidence) == ("no", "counters"), pd.why
    assert not pd.kv_bytes
    assert pd.impure_tokens is not None
    assert pd.impure_tokens[1] == PROMPT - 1


def test_a_transfer_that_failed_is_counted_and_proves_nothing() -> None:
    failed = Stream(status="error_in_stream", token_events=0, http_status=200)
    pd = seen("after_recompute", "after_failed_transfer", failed, Sent("pair", "nixl"))
    assert (pd.disaggregation, pd.evidence) == ("unknown", "none"), pd.why
    assert pd.failed_transfers == 1
    assert not pd.kv_bytes


def test_two_requests_in_one_window_are_not_taken_for_one() -> None:
    pd = seen("after_failed_transfer", "after_router", answered(320), Sent("router", "nixl"))
    assert pd.others is not None
    assert pd.others >= 1
    assert pd.disaggregation in ("yes", "unknown"), pd.why
    assert pd.kv_bytes is None, "bytes of two requests are nobody's"


@pytest.mark.parametrize("moment", ["idle", "after_pd"])
def test_between_two_looks_at_the_same_counters_nothing_happened(moment: str) -> None:
    pd = seen(moment, moment, answered(), Sent("router", "nixl"))
    assert pd.disaggregation == "unknown", pd.why  # a wrong list of pages is no fault of the router
    assert "it is not in these counters" in pd.why
