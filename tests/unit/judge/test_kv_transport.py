"""The transport of a production pair's KV from the EFA counters of both nodes: what is proven, what is not, what it would take."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.judge.judge import judge
from exporter.judge.kv_transport import judge_kv_transport
from exporter.judge.transport import Transport
from exporter.runs import Run, RunSpec
from exporter.witness import witnessed
from probes.efa.window import CounterWindow, DeviceDelta, NoAnswer, WitnessAnswer
from probes.reasons import Reason
from probes.result import Pd, PdPod, Result

KV = 2_000_000_000
NAMES = ("tx_bytes", "rx_bytes", "send_bytes", "recv_bytes", "rdma_write_bytes", "rdma_write_recv_bytes", "rdma_read_bytes",
         "rdma_read_resp_bytes")


def window(start: float, end: float, *, resets: int = 0, **counters: int) -> CounterWindow:
    again = ("tx_bytes",) * min(resets, 1)
    return CounterWindow(start, end, {"rdmap0s31": DeviceDelta({name: counters.get(name, 0) for name in NAMES}, again)})


def answer(node: str, *, background: int | None = 0, resets: int = 0, **counters: int) -> WitnessAnswer:
    """A witness whose counters rose by these in the window, and by `background` bytes of sends in the equal windows beside it."""
    beside = None if background is None else window(0, 10, send_bytes=background, recv_bytes=background, tx_bytes=background,
                                                    rx_bytes=background)
    return WitnessAnswer(node, window(10, 20, resets=resets, **counters), beside, beside)


def pulled(source: str = "p", sink: str = "d", moved: int = KV, background: int | None = 0, resets: int = 0) -> dict[str, WitnessAnswer]:
    """Decode read the KV out of prefill's memory."""
    return {source: answer(source, background=background, rdma_read_resp_bytes=moved, tx_bytes=moved),
            sink: answer(sink, background=background, resets=resets, rdma_read_bytes=moved, rx_bytes=moved)}


def flat(background: int | None = 0) -> dict[str, WitnessAnswer]:
    return {"p": answer("p", background=background), "d": answer("d", background=background)}


def pd(prefill: str | None = "p", decode: str | None = "d", **more: object) -> Pd:
    return Pd.model_validate({"route": "pair", "disaggregation": "yes", "evidence": "counters", "kv_bytes": KV,
                              "prefill": PdPod(role="prefill", pod="p-0", node=prefill),
                              "decode": PdPod(role="decode", pod="d-0", node=decode), **more})


def transport(section: Pd, answers: Mapping[str, WitnessAnswer | NoAnswer | None]) -> Transport | None:
    found = judge_kv_transport(section, answers)
    return found.transport if found is not None else None


def test_counters_that_follow_the_kv_on_both_nodes() -> None:
    assert transport(pd(), pulled()) is Transport.EFA_RDMA


def test_a_push_shows_in_the_write_counters() -> None:
    pushed = {"p": answer("p", rdma_write_bytes=KV, tx_bytes=KV), "d": answer("d", rdma_write_recv_bytes=KV, rx_bytes=KV)}
    assert transport(pd(), pushed) is Transport.EFA_RDMA


def test_sends_are_emulation() -> None:
    sent = {"p": answer("p", send_bytes=KV, tx_bytes=KV), "d": answer("d", recv_bytes=KV, rx_bytes=KV)}
    assert transport(pd(), sent) is Transport.EFA_NO_RDMA


def test_flat_on_both_nodes_is_tcp_however_fast_it_was() -> None:
    """TCP at full speed is still TCP."""
    assert transport(pd(kv_transfer=0.05, kv_bytes_per_second=4e10), flat()) is Transport.TCP


def test_slow_efa_is_not_tcp() -> None:
    assert transport(pd(kv_transfer=200.0, kv_bytes_per_second=1e7), pulled()) is Transport.EFA_RDMA


def test_background_traffic_hides_it_and_what_it_would_take_is_said() -> None:
    found = judge_kv_transport(pd(), {"p": answer("p", background=KV, send_bytes=2 * KV, tx_bytes=2 * KV),
                                      "d": answer("d", background=KV, recv_bytes=2 * KV, rx_bytes=2 * KV)})
    assert found is not None
    assert found.transport is Transport.INDETERMINATE
    assert "10 GB of KV are needed, 5.0 times this prompt" in found.why


def test_a_small_background_does_not() -> None:
    both = {"p": answer("p", background=KV // 20, rdma_read_resp_bytes=KV, send_bytes=KV // 20, tx_bytes=KV + KV // 20),
            "d": answer("d", background=KV // 20, rdma_read_bytes=KV, recv_bytes=KV // 20, rx_bytes=KV + KV // 20)}
    assert transport(pd(), both) is Transport.EFA_RDMA


def test_flat_beside_background_is_not_called_flat() -> None:
    """Somebody else's traffic rises the counters while our KV went by TCP: nothing is proven."""
    busy = {"p": answer("p", background=KV, send_bytes=KV, tx_bytes=KV), "d": answer("d", background=KV, recv_bytes=KV, rx_bytes=KV)}
    assert transport(pd(), busy) is Transport.INDETERMINATE


def test_a_reset_in_the_middle_is_unknown() -> None:
    assert transport(pd(), pulled(resets=1)) is Transport.INDETERMINATE


@pytest.mark.parametrize("missing", [None, NoAnswer("the witness on node d is not ready")])
def test_one_witness_alone_proves_nothing(missing: NoAnswer | None) -> None:
    assert transport(pd(), {**pulled(), "d": missing}) is Transport.INDETERMINATE
    assert transport(pd(), {**flat(), "d": missing}) is Transport.INDETERMINATE


def test_one_flat_node_contradicts_the_other() -> None:
    found = judge_kv_transport(pd(), {**pulled(), "d": answer("d")})
    assert found is not None
    assert found.transport is Transport.INDETERMINATE
    assert "one node's EFA counters stayed flat" in found.why


def test_an_unknown_background_only_supports() -> None:
    assert transport(pd(), pulled(background=None)) is Transport.INDETERMINATE


def test_the_witness_of_another_node_is_not_taken() -> None:
    assert transport(pd(), {"p": answer("x", rdma_read_resp_bytes=KV, tx_bytes=KV), "d": pulled()["d"]}) is Transport.INDETERMINATE


@pytest.mark.parametrize("verdict", ["no", "unknown", None])
def test_where_no_kv_moved_flat_counters_are_no_fallback(verdict: str | None) -> None:
    assert transport(pd(disaggregation=verdict), flat()) is Transport.INDETERMINATE


def test_kv_that_is_too_small_or_not_known() -> None:
    assert transport(pd(kv_bytes=1000), flat()) is Transport.INDETERMINATE
    assert transport(pd(kv_bytes=None), flat()) is Transport.INDETERMINATE


def test_learned_kv_stands_in_for_counted_kv() -> None:
    assert transport(pd(kv_bytes=None, expected_kv_bytes=KV), pulled()) is Transport.EFA_RDMA
    assert transport(pd(kv_bytes=None, expected_kv_bytes=2 << 20), flat()) is Transport.INDETERMINATE, "a guess needs a margin"


def test_both_pods_on_one_node() -> None:
    assert transport(pd(decode="p"), {"p": answer("p")}) is Transport.INTRA_NODE
    assert transport(pd(decode="p"), {"p": answer("p", rdma_read_bytes=KV, rdma_read_resp_bytes=KV, tx_bytes=KV, rx_bytes=KV)}) is (
        Transport.INDETERMINATE)


def test_nothing_to_judge() -> None:
    assert judge_kv_transport(pd(prefill=None), pulled()) is None
    assert judge_kv_transport(pd(), {}) is None
    assert judge_kv_transport(Pd(route="router"), pulled()) is None


@given(st.sampled_from(["p", "d"]), st.sampled_from(["reset", "gone", "background", "other"]), st.integers(0, 3 * KV))
def test_taking_a_witness_away_never_proves_efa(node: str, how: str, noise: int) -> None:
    answers: dict[str, WitnessAnswer | NoAnswer | None] = dict(pulled(background=noise))
    good = answers[node]
    assert isinstance(good, WitnessAnswer)
    answers[node] = {"reset": WitnessAnswer(node, window(10, 20, resets=1, tx_bytes=KV), good.before, good.after), "gone": None,
                     "background": WitnessAnswer(node, good.window, None, None), "other": NoAnswer("later")}[how]
    assert transport(pd(), answers) in (Transport.INDETERMINATE, None)


# in the verdict of a run


def canary(section: Pd) -> Run:
    result = Result.model_validate({"run_id": "r", "probe": "canary", "target": "chat", "node": "exporter", "started": 9.0,
                                    "finished": 21.0, "measure": {"start": 10.0, "end": 20.0}, "reason": Reason.OK, "pd": section})
    return Run(RunSpec("r", "canary", "chat", ("exporter",), "any", 60.0), (result,), 9.0, 21.0)


def test_the_verdict_of_a_canary_keeps_its_proofs_apart() -> None:
    verdict = judge(canary(pd()), answers=flat())
    assert (verdict.reason, verdict.transport) == (Reason.OK, Transport.TCP), "delivery is one thing, transport another"
    assert {proof.name: proof.holds for proof in verdict.proofs} == {"transport": True, "disaggregation": True}
    assert {proof.name: proof.holds for proof in judge(canary(pd(disaggregation="no"))).proofs} == {"disaggregation": False}


def test_the_witnesses_of_the_pods_nodes_are_the_ones_to_ask() -> None:
    assert witnessed(canary(pd()).results[0]) == ("p", "d")
    assert witnessed(canary(pd(disaggregation="no")).results[0]) == ()
    assert witnessed(canary(pd(decode="p")).results[0]) == ("p",)
    assert witnessed(canary(Pd(route="router")).results[0]) == ()
