"""Evidence to verdict: the fault rows of the public reports and of the llm-d wire, one by one, and what may never be said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.canary.pd.evidence import Evidence, Side
from probes.canary.pd.judge import judge
from probes.canary.pd.reading import Change

PROMPT = 4096


def pod(role: str, engine: str = "vllm", /, **grew: float) -> Change:
    return Change(role, f"{role}-0", engine, grew, dict.fromkeys(grew, 1e12))


def vllm(*, external: float = 0.0, local: float = 0.0, prefilled: float = PROMPT, requests: float = 1.0, **more: Any) -> Evidence:
    """A pair of vLLM pods of a version with by_source; P worked on `prefilled` prompt tokens."""
    extra = more.pop("decode", {})
    decode = pod("decode", prompt_external=external, prompt_local=local, prompt_cached=0.0, requests=requests,
                 prompt_tokens=external + local, failed_transfers=0.0, **extra)
    prefill = pod("prefill", prompt_tokens=prefilled, requests=1.0 if prefilled else 0.0, generation_tokens=1.0)
    return replace(Evidence("pair", delivered=True, prompt_tokens=PROMPT, connector="nixl", prefill=Side((prefill,)),
                            decode=Side((decode,))), **more)


def sglang(*, sent: float | None = None, came: float | None = None, requests: float = 1.0, role: str | None = "decode",
           **more: Any) -> Evidence:
    arrived = {"decode_transfers": came} if came is not None else {}
    decode = pod("decode", "sglang", prompt_tokens=PROMPT, requests=requests, **arrived)
    prefill = pod("prefill", "sglang", prompt_tokens=PROMPT, requests=1.0, **({"kv_bytes": sent} if sent is not None else {}))
    return replace(Evidence("pair", delivered=True, prompt_tokens=PROMPT, connector="sglang", prefill=Side((prefill,)),
                            decode=Side((replace(decode, engine_role=role),))), **more)


def router(*, mode: str, of: Evidence | None = None) -> Evidence:
    """The same behind smg, whose counter of this mode grew."""
    side = Side((pod("router", "smg", **{f"router_{mode}": 1.0}),))
    return replace(of or vllm(external=PROMPT - 1, local=1), route="router", router=side)


def llm_d(*, decided: str | None = None, silent_decode: bool = True, prefilled: float = PROMPT, **more: Any) -> Evidence:
    """Behind the gateway of llm-d over engines like the simulator's, which have no metric of a transfer."""
    decode = Change("decode", "decode-0", "vllm", silent=silent_decode, missing=("vllm:prompt_tokens_by_source_total",))
    prefill = pod("prefill", prompt_tokens=prefilled, requests=1.0 if prefilled else 0.0)
    epp = Side((pod("epp", "epp", **{decided: 1.0}),)) if decided else Side()
    return replace(Evidence("router", delivered=True, prompt_tokens=PROMPT, connector="nixl", prefill=Side((prefill,)),
                            decode=Side((decode,)), epp=epp), **more)


def unread(of: Evidence, why: str = "no whole answer in time") -> Evidence:
    return replace(of, decode=Side(tuple(replace(one, grew={}, problem=why) for one in of.decode.changes)))


ROWS: list[tuple[str, Evidence, str | None, str, str]] = [
    # what it is, the evidence, verdict, deciding evidence, a word of the reason
    ("true disaggregation", vllm(external=PROMPT - 1, local=1), "yes", "counters", "4095 from prefill"),
    ("true disaggregation, block by block", vllm(external=3968, local=128), "yes", "counters", "from prefill"),
    ("with bytes that moved", vllm(external=PROMPT, decode={"kv_bytes": 1e9}), "yes", "counters", "from prefill"),
    ("vllm #26896, dropped kv params: decode prefills again", vllm(local=PROMPT), "no", "counters", "4096 computed itself"),
    ("vllm #27083, handshake id mismatch", vllm(local=PROMPT, decode={"kv_bytes": 0.0}), "no", "counters", "computed itself"),
    ("llm-d #1189, no PD header made: queries grow, hits do not", vllm(local=PROMPT, prefilled=0), "no", "counters", "computed itself"),
    ("vllm-project/router PR #2, P answers 400 and D serves alone", vllm(local=PROMPT, prefilled=0), "no", "counters", "computed itself"),
    ("llm-d-router #2427, prefill runs on decode", llm_d(prefilled=0, decided="decided_pd"), "no", "counters", "prefill never had it"),
    ("passthrough router", router(mode="passthrough", of=vllm(local=PROMPT)), "no", "counters", "computed itself"),
    ("passthrough router, metrics of decode unreadable", router(mode="passthrough", of=unread(vllm(local=PROMPT))), "no", "router_mode",
     "passthrough"),
    ("smg over nixl", router(mode="nixl"), "yes", "counters", "from prefill"),
    ("smg says nixl and decode cannot be read", router(mode="nixl", of=unread(vllm(external=PROMPT))), "unknown", "router_mode",
     "a path and no proof"),
    ("smg says nixl and decode recomputed", router(mode="nixl", of=vllm(local=PROMPT)), "no", "counters", "computed itself"),
    ("P gave no handle", vllm(local=PROMPT, handover="missing"), "no", "counters", "computed itself"),
    ("P gave no handle and nothing can be read", unread(vllm(handover="missing")), "no", "router_mode", "offered no KV"),
    ("dead prefill: no answer came", vllm(delivered=False, prefilled=0), "unknown", "none", "no answer"),
    ("orphan prefill: no answer came", vllm(delivered=False), "unknown", "none", "no answer"),
    ("stale handle moves KV, the wrong one: integrity sees it", vllm(external=PROMPT), "yes", "counters", "from prefill"),
    ("vllm #52617, full hit and wrong text: integrity sees it", vllm(external=PROMPT), "yes", "counters", "from prefill"),
    ("failed transfer beside whole external tokens", vllm(external=PROMPT, decode={"failed_bootstraps": 0.0}), "yes", "counters", ""),
    ("half of the prompt came", vllm(external=2048, local=2048), "unknown", "none", "a part only"),
    ("transfer engine counted before and counts nothing now", vllm(external=PROMPT, decode={"kv_bytes": 0.0}), "unknown", "none",
     "counted none"),
    ("not in these counters at all", vllm(), "unknown", "none", "another pod served it, or they come later"),
    ("decode restarted", replace(vllm(), decode=Side((Change("decode", "decode-0", "vllm", reset=True),))), "unknown", "none",
     "started again"),
    ("decode page unreadable", unread(vllm(external=PROMPT)), "unknown", "none", "no whole answer in time"),
    ("expected names all missing", llm_d(), "unknown", "none", "none of the metrics expected"),
    ("somebody else's transfers beside our recompute", vllm(external=3 * PROMPT, local=PROMPT, requests=4), "unknown", "none",
     "other traffic"),
    ("our transfer beside somebody else's", vllm(external=4 * PROMPT, local=4, requests=4), "yes", "counters", "beside other traffic"),
    ("recompute beside somebody's small transfers", vllm(external=100, local=PROMPT, requests=4), "no", "counters", "computed itself"),
    ("not all decode pods are known",
     replace(vllm(local=PROMPT), decode=Side(vllm(local=PROMPT).decode.changes, complete=False)), "unknown",
     "none", "not every decode pod"),
    ("the prompt was in decode's own cache", replace(vllm(), decode=Side((pod("decode", prompt_external=0, prompt_local=16,
                                                                              prompt_cached=4080, requests=1, prompt_tokens=PROMPT),))),
     "unknown", "none", "not new"),
    # vLLM 0.11 to 0.15: hits and bytes
    ("hits and bytes",
     replace(vllm(), decode=Side((pod("decode", external_hits=PROMPT, external_queries=PROMPT, kv_bytes=1e9, requests=1),))),
     "yes", "counters", "bytes moved"),
    ("hits without bytes", replace(vllm(), decode=Side((pod("decode", external_hits=PROMPT, external_queries=PROMPT, requests=1),))),
     "unknown", "none", "no bytes"),
    ("queries without hits", replace(vllm(), decode=Side((pod("decode", external_hits=0, external_queries=PROMPT, requests=1),))), "no",
     "counters", "0 were matched"),
    ("vLLM before 0.11", replace(vllm(), decode=Side((pod("decode", prompt_tokens=PROMPT, requests=1),))), "unknown", "none",
     "do not tell"),
    # SGLang
    ("SGLang, prefill sent KV", sglang(sent=1e9), "yes", "counters", "prefill sent"),
    ("SGLang, decode counted the arrival", sglang(came=1), "yes", "counters", "KV arrived"),
    ("sglang #16832, constant zero", sglang(), "unknown", "none", "no data"),
    ("SGLang, counted before, nothing now", sglang(sent=0), "no", "counters", "counted none"),
    ("SGLang behind other traffic", sglang(sent=1e9, requests=5), "unknown", "none", "other traffic"),
    ("SGLang behind other traffic, every request had its KV", sglang(came=5, requests=5), "yes", "counters", "for 5 that it finished"),
    ("a unified SGLang server where decode should be", sglang(role="unified"), "no", "counters", "prefill and decode alike"),
    ("faked transfers (host 2.2.2.2)", replace(sglang(), decode=Side((pod("decode", "sglang", fake_outputs=1, requests=1),))), "no",
     "counters", "faked"),
    # llm-d wire, section 4: 200 with normal text although decode did the prefill; nothing there may say yes
    ("4.1 P without kv params", llm_d(decided="decided_pd"), "unknown", "router_mode", "a path and no proof"),
    ("4.1 the same with real engines", vllm(local=PROMPT, route="router"), "no", "counters", "computed itself"),
    ("4.2 concurrent connectors, P refused", llm_d(prefilled=0), "no", "counters", "prefill never had it"),
    ("4.2 concurrent connectors, P hung after its work", llm_d(connector="mooncake"), "unknown", "none", "none of the metrics"),
    ("4.3 shared storage: no trace of a transfer", llm_d(connector="shared-storage"), "unknown", "none", "none of the metrics"),
    ("4.4 empty header: decode only", llm_d(prefilled=0, route="pair"), "no", "counters", "prefill never had it"),
    ("4.5 the picker chose decode only", llm_d(decided="decided_decode_only", prefilled=0), "no", "counters", "prefill never had it"),
    ("4.5 the picker chose decode only, P unreadable", replace(llm_d(decided="decided_decode_only"), prefill=Side()), "no", "router_mode",
     "decode only"),
    ("a client's own header survives a decode-only decision", replace(llm_d(decided="decided_decode_only"), route="pair"), "unknown",
     "none", "none of the metrics"),
    ("every sign of the path", llm_d(decided="decided_pd", path_signs=("an id of version 1", "prompt_tokens_details")), "unknown",
     "router_mode", "a path and no proof"),
    ("a short prompt that decode may serve alone", vllm(local=PROMPT, required=False), None, "counters", "not required"),
    ("a short prompt that was disaggregated all the same", vllm(external=PROMPT, required=False), "yes", "counters", "from prefill"),
    # provenance
    ("provenance: moved", unread(vllm(provenance="moved")), "yes", "provenance", "A's"),
    ("provenance: recomputed", unread(vllm(provenance="recomputed")), "no", "provenance", "computed the prompt itself"),
    ("provenance: neither", unread(vllm(provenance="neither")), "unknown", "none", "no whole answer"),
    ("provenance is stronger than counters", vllm(local=PROMPT, provenance="moved"), "yes", "provenance", "A's"),
    # baseline
    ("the baseline is not judged", vllm(local=PROMPT, route="baseline", prefilled=0), None, "none", "not to be"),
    ("a baseline that is disaggregated itself", vllm(external=PROMPT, route="baseline"), None, "counters", "disaggregated itself"),
    # nothing at all
    ("no pages are known", Evidence("router", delivered=True, prompt_tokens=PROMPT), "unknown", "none", "no metrics page"),
    ("no usage came", vllm(external=PROMPT, prompt_tokens=None), "unknown", "none", "unknown tokens"),
    ("a prompt too short to find", vllm(external=8, prompt_tokens=8), "unknown", "none", "cannot be found"),
    ("less than a block with a connector of whole blocks",
     replace(vllm(local=64, prompt_tokens=64, connector="mooncake", prefilled=64),
             decode=Side((replace(pod("decode", prompt_external=0, prompt_local=64, requests=1, prompt_tokens=64), block_tokens=128),))),
     "unknown", "none", "less than one block"),
    ("less than a block with nixl, which moves it",
     replace(vllm(local=64, prompt_tokens=64, prefilled=64),
             decode=Side((replace(pod("decode", prompt_external=0, prompt_local=64, requests=1, prompt_tokens=64), block_tokens=128),))),
     "no", "counters", "computed itself"),
]


@pytest.mark.parametrize(("evidence", "verdict", "by", "word"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_verdict_of_each_row(evidence: Evidence, verdict: str | None, by: str, word: str) -> None:
    found = judge(evidence)
    assert (found.verdict, found.evidence) == (verdict, by), found
    assert word in found.why


def test_a_failed_transfer_and_whole_external_tokens_contradict_each_other() -> None:
    evidence = vllm(external=PROMPT)
    decode = evidence.decode.changes[0]
    failed = replace(evidence, decode=Side((replace(decode, grew={**decode.grew, "failed_transfers": 1.0}),)))
    assert judge(failed).verdict == "unknown"


def test_counters_that_contradict_each_other_are_shown_both() -> None:
    """A shared store fed decode: its counters say external, and the prefill side never saw the prompt."""
    found = judge(vllm(external=PROMPT, prefilled=0))
    assert found.verdict == "unknown"
    assert "from prefill" in found.why
    assert "never had it" in found.why


def test_other_traffic_is_seen_in_requests_and_in_tokens() -> None:
    assert vllm(external=PROMPT).others() == 0
    assert vllm(external=PROMPT, requests=3).others() == 2
    assert vllm(external=2 * PROMPT).others() == 1
    assert Evidence("pair", delivered=True, prompt_tokens=PROMPT).others() is None


amounts = st.one_of(st.none(), st.sampled_from([0.0, 1.0, PROMPT / 2, float(PROMPT), 10.0 * PROMPT]))
PATH = ("router_nixl", "decided_pd")


@given(st.dictionaries(st.sampled_from(("prompt_tokens", "requests", "external_queries", "generation_tokens")), amounts),
       st.sampled_from(PATH), st.sampled_from(("router", "pair")), st.sampled_from(("given", None)), st.booleans())
def test_without_a_counter_of_a_transfer_nothing_says_yes(grew: dict[str, float | None], mode: str, route: Any, handover: Any,
                                                          silent: bool) -> None:
    """Whatever the path says: without external tokens, hits, bytes or arrivals on the engines it is never disaggregated."""
    told = {name: value for name, value in grew.items() if value is not None}
    evidence = Evidence(route, delivered=True, prompt_tokens=PROMPT, handover=handover, path_signs=("a sign",),
                        prefill=Side((pod("prefill", "vllm", **told),)),
                        decode=Side((replace(pod("decode", "vllm", **told), silent=silent),)),
                        router=Side((pod("router", "smg", **{mode: 1.0}),)), epp=Side((pod("epp", "epp", **{mode: 1.0}),)))
    assert judge(evidence).verdict != "yes"


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(16, 100_000), st.integers(1, 5))
def test_a_prompt_computed_on_decode_is_never_called_disaggregated(external: float, local: float, prompt: int, requests: int) -> None:
    evidence = replace(vllm(external=external, local=local, requests=requests, prefilled=prompt), prompt_tokens=prompt)
    if judge(evidence).verdict == "yes":
        assert external >= 0.9 * prompt
        assert local < 0.5 * prompt or external + local <= prompt * 1.05 + 8


@pytest.mark.parametrize("without", ["prefill", "decode", "router", "epp"])
def test_taking_evidence_away_never_makes_a_yes(without: str) -> None:
    """Losing pages makes a verdict weaker, never stronger; only two that contradicted each other may leave one that speaks."""
    for name, evidence, verdict, *_ in ROWS:
        if verdict != "yes":
            assert judge(replace(evidence, **{without: Side()})).verdict != "yes", name  # type: ignore[arg-type]
