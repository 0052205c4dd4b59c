"""The transport verdict as a table of cases, and what must hold for any evidence whatever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.judge.transport import Transport, TransportVerdict, judge_transport
from probes.efa.window import CounterWindow, DeviceDelta, NoAnswer, WitnessAnswer
from probes.result import Evidence, Marker, Result, Window

P = 512 << 20
"""Payload of the runs below, bytes."""
RAILS = ("rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0")
ZERO = dict.fromkeys(("tx_bytes", "rx_bytes", "send_bytes", "recv_bytes", "rdma_write_bytes", "rdma_write_recv_bytes",
                      "rdma_read_bytes", "rdma_read_resp_bytes"), 0)
EFA = Marker(id="mc_efa_installed", says="efa", text="EFA transport installed successfully")
TCP = Marker(id="mc_tcp_listen", says="tcp", text="TcpTransport: listen on port 1")
P2P = Marker(id="nccl_p2p_channel", says="intra_node", text="via P2P/CUMEM")
INFO = Marker(id="ofi_init", says="info", text="aws-ofi-nccl 1.21.1")


def rank(number: int, node: str, payload: tuple[int, int] | None, tcp: tuple[int, int] | None, *markers: Marker, world: int = 2,
         **more: Any) -> Result:
    evidence = Evidence(stack="mooncake", payload_bytes=payload, tcp_bytes=tcp, markers=list(markers), **more)
    return Result.model_validate({"run_id": "r", "probe": "mooncake", "target": "a--b", "rank": number, "world_size": world, "node": node,
                                  "started": 1.0, "finished": 9.0, "reason": "ok", "evidence": evidence})


def window(per_device: dict[str, int], *, seconds: float = 3.0, without: tuple[str, ...] = (), devices: tuple[str, ...] = RAILS,
           **device: Any) -> CounterWindow:
    counters = {name: value for name, value in {**ZERO, **per_device}.items() if name not in without}
    return CounterWindow(100.0, 100.0 + seconds, {name: DeviceDelta(counters, **device) for name in devices})


def answer(node: str, moved: int = P, *, out: str = "", into: str = "", background: int = 0, without: tuple[str, ...] = (),
           **device: Any) -> WitnessAnswer:
    """A witness whose counters `out` and `into` rose by `moved`, spread over the rails, over a background of so many bytes a window."""
    rise: dict[str, int] = {}
    quiet: dict[str, int] = {}
    for counter, wire in ((out, "tx_bytes"), (into, "rx_bytes")):
        if counter:
            rise[counter] = rise[wire] = (moved + background) // 4
    if background:
        quiet = {"rdma_write_bytes": background // 4, "tx_bytes": background // 4, "rdma_write_recv_bytes": background // 4,
                 "rx_bytes": background // 4}
        rise = {name: max(rise.get(name, 0), quiet.get(name, 0)) for name in {*rise, *quiet}}
    return WitnessAnswer(node, window(rise, without=without, **device), window(quiet, without=without), window(quiet, without=without))


def push(tcp: tuple[tuple[int, int] | None, tuple[int, int] | None] = ((900, 900), (900, 900)),
         markers: tuple[Marker, ...] = (EFA,), **more: Any) -> list[Result]:
    return [rank(0, "a", (P, 0), tcp[0], *markers, **more), rank(1, "b", (0, P), tcp[1], *markers, **more)]


PUSH = {"a": answer("a", out="rdma_write_bytes"), "b": answer("b", into="rdma_write_recv_bytes")}
PULL = {"a": answer("a", into="rdma_read_bytes"), "b": answer("b", out="rdma_read_resp_bytes")}
SENT = {"a": answer("a", out="send_bytes"), "b": answer("b", into="recv_bytes")}
FLAT = {"a": answer("a"), "b": answer("b")}
OVER_TCP = ((P + 9000, 800), (800, P + 9000))
UNSAMPLED = (None, None)


@dataclass(frozen=True)
class Case:
    name: str
    results: list[Result]
    answers: dict[str, WitnessAnswer | NoAnswer | None]
    transport: Transport
    why: str


def pull() -> list[Result]:
    return [rank(0, "a", (0, P), (900, 900), EFA), rank(1, "b", (P, 0), (900, 900), EFA)]


CASES = [
    # proven RDMA
    Case("push by RDMA write", push(), dict(PUSH), Transport.EFA_RDMA, "every node rose by the payload"),
    Case("pull by RDMA read", pull(), dict(PULL), Transport.EFA_RDMA, "every node"),
    Case("RDMA without any log", push(markers=()), dict(PUSH), Transport.EFA_RDMA, "every node"),
    Case("RDMA over a small background", push(), {"a": answer("a", out="rdma_write_bytes", background=P // 10),
                                                 "b": answer("b", into="rdma_write_recv_bytes", background=P // 10)},
         Transport.EFA_RDMA, "every node"),
    Case("p4d: a write done by reads of the target, no write counters",
         push(), {"a": answer("a", out="rdma_read_resp_bytes", without=("rdma_write_bytes", "rdma_write_recv_bytes")),
                  "b": answer("b", into="rdma_read_bytes", without=("rdma_write_bytes", "rdma_write_recv_bytes"))},
         Transport.EFA_RDMA, "every node"),
    # not proven
    Case("no witness at all", push(), {}, Transport.INDETERMINATE, "without the EFA counters of every node"),
    Case("witness on one node only", push(), {"a": PUSH["a"]}, Transport.INDETERMINATE, "without the EFA counters of every node"),
    Case("the other witness did not answer", push(), {"a": PUSH["a"], "b": NoAnswer("witness b:9479: Connection refused")},
         Transport.INDETERMINATE, "Connection refused"),
    Case("background as large as the payload", push(), {"a": answer("a", out="rdma_write_bytes", background=P),
                                                       "b": answer("b", into="rdma_write_recv_bytes", background=P)},
         Transport.INDETERMINATE, "other traffic"),
    Case("no background after", push(), {node: replace(each, after=None) for node, each in PUSH.items()}, Transport.INDETERMINATE,
         "what other traffic there was is not known"),
    Case("a burst in the window alone", push(), {"a": answer("a", 6 * P, out="rdma_write_bytes"), "b": PUSH["b"]}, Transport.INDETERMINATE,
         "other traffic"),
    Case("a third of the payload", push(), {"a": answer("a", P // 3, out="rdma_write_bytes"), "b": PUSH["b"]}, Transport.INDETERMINATE,
         "a part of it only"),
    Case("the wrong direction rose", push(), {"a": answer("a", into="rdma_write_recv_bytes"), "b": PUSH["b"]}, Transport.INDETERMINATE,
         "neither EFA counters"),
    Case("a device was reset", push(), {"a": answer("a", out="rdma_write_bytes", resets=("rdma_write_bytes",)), "b": PUSH["b"]},
         Transport.INDETERMINATE, "reset or not there"),
    Case("a device vanished for a while", push(), {"a": answer("a", out="rdma_write_bytes", coverage=0.8), "b": PUSH["b"]},
         Transport.INDETERMINATE, "reset or not there"),
    Case("missing counters are not zero", push(), {node: answer(node, without=tuple(ZERO)) for node in ("a", "b")},
         Transport.INDETERMINATE, "without the EFA counters"),
    Case("the witness sees no device", push(), {node: WitnessAnswer(node, window({}, devices=())) for node in ("a", "b")},
         Transport.INDETERMINATE, "sees no EFA device"),
    Case("TCP not sampled", push(UNSAMPLED), dict(PUSH), Transport.INDETERMINATE, "TCP bytes are not known"),
    Case("TCP sampled on one rank only", push(((900, 900), None)), dict(PUSH), Transport.INDETERMINATE, "TCP bytes are not known"),
    Case("a rank is missing", push()[:1], dict(PUSH), Transport.INDETERMINATE, "not"),
    Case("a rank left no evidence", [push()[0], rank(1, "b", None, (900, 900))], dict(PUSH), Transport.INDETERMINATE, "not known"),
    Case("too little moved", [rank(0, "a", (4096, 0), (5000, 0)), rank(1, "b", (0, 4096), (0, 5000))], dict(FLAT), Transport.INDETERMINATE,
         "too little"),
    Case("nobody says what moved", [rank(0, "a", None, (5000, 0)), rank(1, "b", None, None)], dict(FLAT), Transport.INDETERMINATE,
         "no rank says"),
    Case("no result", [], {}, Transport.INDETERMINATE, "no rank says"),
    # EFA, worse than it should be
    Case("send and receive only", push(), dict(SENT), Transport.EFA_NO_RDMA, "not by RDMA"),
    Case("mostly send and receive", push(), {"a": WitnessAnswer("a", window({"send_bytes": P // 6, "rdma_write_bytes": P // 12,
                                                                             "tx_bytes": P // 4}), window({}), window({})),
                                             "b": PUSH["b"]}, Transport.EFA_NO_RDMA, "not by RDMA"),
    Case("fewer NICs than allocated", push(nics_seen=3, nics_allocated=4), dict(PUSH), Transport.EFA_PARTIAL, "3 of 4 allocated NICs"),
    Case("a NIC disabled by the engine", push(markers=(EFA, Marker(id="mc_efa_disabled", says="efa_partial", text="Disable device x"))),
         dict(PUSH), Transport.EFA_PARTIAL, "Disable device x"),
    Case("a rail that carried little", push(devices=list(RAILS)),
         {"a": WitnessAnswer("a", CounterWindow(100, 103, {name: DeviceDelta({**ZERO, "tx_bytes": carried, "rdma_write_bytes": carried})
                                                           for name, carried in zip(RAILS, (P // 3, P // 3, P // 3, 1000), strict=True)}),
                             window({}), window({})), "b": PUSH["b"]}, Transport.EFA_PARTIAL, "rdmap82s0 carried 1 kB"),
    Case("fewer NICs, nothing proven", push(nics_seen=3, nics_allocated=4), {}, Transport.INDETERMINATE, "without the EFA counters"),
    # TCP
    Case("Mooncake over TCP, its log says so", push(OVER_TCP, (TCP,)), {}, Transport.TCP, "own TCP sockets"),
    Case("TCP bytes decide whatever the log says", push(OVER_TCP, (EFA,)), {}, Transport.TCP, "own TCP sockets"),
    Case("TCP and flat counters", push(OVER_TCP, ()), dict(FLAT), Transport.TCP, "own TCP sockets"),
    Case("TCP under foreign RDMA traffic", push(OVER_TCP), {"a": answer("a", background=P), "b": answer("b", background=P)}, Transport.TCP,
         "own TCP sockets"),
    Case("TCP seen by the receiver only", push(((900, 900), (800, P))), {}, Transport.TCP, "rank 1 on b"),
    Case("one of four ranks over TCP", [rank(0, "a", (P, 0), (0, 0), world=4), rank(1, "b", (0, P), (0, 0), world=4),
                                       rank(2, "a", (P, 0), (P, 0), world=4), rank(3, "b", (0, P), (0, P), world=4)], {}, Transport.TCP,
         "rank 2 on a"),
    Case("flat counters, sockets not sampled", push(UNSAMPLED, ()), dict(FLAT), Transport.TCP, "stayed flat"),
    Case("flat counters, the log says EFA", push(UNSAMPLED), dict(FLAT), Transport.TCP, "stayed flat"),
    Case("flat on one node is conclusive", push(UNSAMPLED, ()), {"a": FLAT["a"]}, Transport.TCP, "stayed flat"),
    Case("flat data counters of an old driver without wire counters", push(UNSAMPLED, ()),
         {node: answer(node, without=("tx_bytes", "rx_bytes")) for node in ("a", "b")}, Transport.TCP, "stayed flat"),
    Case("flat, and half of it seen on TCP", push(((P // 2, 0), (0, P // 2)), ()), dict(FLAT), Transport.TCP, "stayed flat"),
    Case("only the log, and it says TCP", push(UNSAMPLED, (TCP, INFO)), {}, Transport.TCP, "log says TCP"),
    Case("half of it seen on TCP, the log says TCP", push(((P // 2, 0), (0, P // 2)), (TCP,)), {}, Transport.TCP, "log says TCP"),
    # disagreement
    Case("TCP bytes and counters both account for it", push(OVER_TCP), dict(PUSH), Transport.INDETERMINATE, "both"),
    Case("counters prove EFA, the log says TCP", push(markers=(EFA, TCP)), dict(PUSH), Transport.INDETERMINATE, "log says tcp"),
    Case("counters prove EFA, the log says NVLink", push(markers=(P2P,)), dict(PUSH), Transport.INDETERMINATE, "log says intra_node"),
    Case("nobody saw the bytes", push(), dict(FLAT), Transport.INDETERMINATE, "neither EFA counters"),
    Case("only the log, and it says both", push(UNSAMPLED, (TCP, EFA)), {}, Transport.INDETERMINATE, "not known"),
    Case("only the log, and it says EFA", push(UNSAMPLED), {}, Transport.INDETERMINATE, "not known"),
    Case("half of it seen on TCP", push(((P // 2, 0), (0, P // 2))), {}, Transport.INDETERMINATE, "a part of the payload"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_between_nodes(case: Case) -> None:
    verdict = judge_transport(case.results, case.answers)
    assert (verdict.transport, case.why in verdict.why) == (case.transport, True), verdict


ONE = [
    Case("shared memory", [rank(0, "a", (P, 0), (2280, 270)), rank(1, "a", (0, P), (270, 2280))], {}, Transport.INTRA_NODE, "neither TCP"),
    Case("NVLink, NCCL names the network it would use", [rank(0, "a", (P, P), (900, 900), TCP, P2P), rank(1, "a", (P, P), (900, 900), P2P)],
         {}, Transport.INTRA_NODE, "neither TCP"),
    Case("shared memory under libfabric's efa", [rank(0, "a", (P, 0), (9, 9), EFA), rank(1, "a", (0, P), (9, 9), EFA)], {"a": FLAT["a"]},
         Transport.INTRA_NODE, "neither TCP"),
    Case("loopback TCP", [rank(0, "a", (P, 0), (P, 0), TCP), rank(1, "a", (0, P), (0, P), TCP)], {}, Transport.TCP, "inside one node"),
    Case("the log says TCP, the kernel not", [rank(0, "a", (P, 0), (9, 9), TCP), rank(1, "a", (0, P), (9, 9))], {},
         Transport.INDETERMINATE, "log says tcp"),
    Case("the NICs moved it", [rank(0, "a", (P, 0), (9, 9)), rank(1, "a", (0, P), (9, 9))],
         {"a": answer("a", out="rdma_write_bytes", into="rdma_write_recv_bytes")}, Transport.INDETERMINATE, "one node"),
    Case("sockets not sampled", [rank(0, "a", (P, 0), None), rank(1, "a", (0, P), None)], {}, Transport.INDETERMINATE, "not known"),
    Case("sockets not sampled, the log says TCP", [rank(0, "a", (P, 0), None, TCP), rank(1, "a", (0, P), None, TCP)], {}, Transport.TCP,
         "log says TCP"),
    Case("a rank is missing", [rank(0, "a", (P, 0), (9, 9))], {}, Transport.INDETERMINATE, "not every rank"),
    Case("a rank missing, TCP on the other", [rank(0, "a", (P, 0), (P, 9))], {"a": FLAT["a"]}, Transport.TCP, "own TCP sockets"),
    Case("a rank missing, flat counters", [rank(0, "a", (P, 0), (9, 9))], {"a": FLAT["a"]}, Transport.INDETERMINATE, "not every"),
    Case("one process", [rank(0, "a", (P, P), (9, 9), world=1)], {}, Transport.INTRA_NODE, "neither TCP"),
    Case("a part by sockets", [rank(0, "a", (P, 0), (P // 3, 9)), rank(1, "a", (0, P), (9, 9))], {}, Transport.INDETERMINATE, "a part"),
]


@pytest.mark.parametrize("case", ONE, ids=lambda case: case.name)
def test_on_one_node(case: Case) -> None:
    verdict = judge_transport(case.results, case.answers)
    assert (verdict.transport, case.why in verdict.why) == (case.transport, True), verdict


def test_every_witness_is_shown_with_its_figures() -> None:
    verdict = judge_transport(push(OVER_TCP, (TCP,)), {"a": PUSH["a"], "b": NoAnswer("gone")})
    shown = {(each.witness, each.where): each for each in verdict.statements}
    assert shown["counters", "a"].numbers["payload_out"] == P
    assert shown["counters", "a"].numbers["rdma_out"] == P
    assert shown["counters", "a"].numbers["background_out"] == 0
    assert shown["counters", "b"].text == "gone"
    assert shown["tcp", "rank 0 on a"].numbers == {"payload_sent": P, "payload_received": 0, "tcp_sent": P + 9000, "tcp_received": 800}
    assert shown["markers", "rank 1 on b"].text == "mc_tcp_listen: TcpTransport: listen on port 1"


def test_send_and_receive_is_expected_where_the_hardware_has_nothing_better() -> None:
    verdict = judge_transport(push(), SENT, rdma_hardware=False)
    assert (verdict.transport, verdict.expected) == (Transport.EFA_NO_RDMA, True)
    assert judge_transport(push(), SENT, rdma_hardware=None).expected is False
    assert judge_transport(push(), PUSH, rdma_hardware=False).expected is False


def test_backgrounds_of_another_length_are_scaled() -> None:
    """A background of P/8 in a window of a third of the length is 3P/8 in the run's window: more than a fifth of the payload."""
    short = window({"rdma_write_bytes": P // 32, "tx_bytes": P // 32}, seconds=1.0)
    answers = {"a": replace(PUSH["a"], before=short, after=window({}, seconds=1.0)), "b": PUSH["b"]}
    assert judge_transport(push(), answers).transport is Transport.INDETERMINATE
    same = replace(short, end=short.start + 3.0)
    answers = {"a": replace(PUSH["a"], before=same, after=window({})), "b": PUSH["b"]}
    assert judge_transport(push(), answers).transport is Transport.EFA_RDMA


def with_side(answer: WitnessAnswer, side: str, value: CounterWindow | None) -> WitnessAnswer:
    """The answer with `window`, `before` or `after` exchanged."""
    changed: Any = {side: value}
    return replace(answer, **changed)


def test_the_larger_background_counts() -> None:
    loud = window({"rdma_write_bytes": P // 8, "tx_bytes": P // 8})
    for side in ("before", "after"):
        answers = {"a": with_side(PUSH["a"], side, loud), "b": PUSH["b"]}
        assert judge_transport(push(), answers).transport is Transport.INDETERMINATE, side


@pytest.mark.parametrize(("start", "end", "holds"), [
    (100.0, 103.0, True), (100.5, 102.5, True), (99.9995, 103.0, True), (99.0, 102.0, False), (101.0, 104.0, False), (90.0, 95.0, False)])
def test_a_window_that_does_not_hold_the_measured_time_proves_nothing(start: float, end: float, holds: bool) -> None:
    measure = {"measure": Window(start=start, end=end)}
    for ranks, answers, known in ((push(), PUSH, Transport.EFA_RDMA), (push(UNSAMPLED), FLAT, Transport.TCP)):
        found = judge_transport([result.model_copy(update=measure) for result in ranks], dict(answers))
        assert found.transport is (known if holds else Transport.INDETERMINATE)
        assert holds is not any("did not watch" in one.text for one in found.statements)


# --- what holds for any evidence ---------------------------------------------------------------------------------------------------------

counts = st.sampled_from([0, 1000, P // 20, P // 6, P // 3, P // 2, (9 * P) // 10, P, 2 * P, 9 * P])
maybe = st.one_of(st.none(), st.tuples(counts, counts))
marker = st.sampled_from([EFA, TCP, P2P, INFO, Marker(id="mc_efa_disabled", says="efa_partial", text="x"),
                          Marker(id="o", says="other", text="x")])


@st.composite
def windows(draw: st.DrawFn) -> CounterWindow:
    names = draw(st.lists(st.sampled_from(sorted(ZERO)), unique=True, max_size=8))
    counters = {name: draw(counts) // 2 for name in names}
    return CounterWindow(0.0, draw(st.sampled_from([1.0, 3.0])), {
        name: DeviceDelta(counters, resets=tuple(draw(st.sampled_from([(), (), (), ("tx_bytes",)]))),
                          coverage=draw(st.sampled_from([1.0, 1.0, 1.0, 0.5]))) for name in RAILS[: draw(st.integers(0, 2))]})


@st.composite
def near_proof(draw: st.DrawFn) -> tuple[list[Result], dict[str, WitnessAnswer | NoAnswer | None]]:
    """A run that is proven RDMA, with a few things changed: far more telling than evidence made of nothing but chance."""
    results, answers = push(), dict[str, WitnessAnswer | NoAnswer | None](PUSH)
    for _ in range(draw(st.integers(0, 3))):
        node = draw(st.sampled_from(["a", "b"]))
        index = 0 if node == "a" else 1
        change = draw(st.sampled_from(["window", "before", "after", "tcp", "payload", "markers", "background", "none"]))
        current = answers[node]
        if change in ("window", "before", "after") and isinstance(current, WitnessAnswer):
            answers[node] = with_side(current, change, draw(windows()))
        elif change == "tcp":
            results[index] = with_evidence(results[index], tcp_bytes=draw(maybe))
        elif change == "payload":
            results[index] = with_evidence(results[index], payload_bytes=draw(maybe))
        elif change == "markers":
            results[index] = with_evidence(results[index], markers=draw(st.lists(marker, max_size=3)))
        elif change == "background":
            answers[node] = answer(node, out="rdma_write_bytes", into="rdma_write_recv_bytes", background=draw(counts))
        elif change == "none":
            answers[node] = draw(st.sampled_from([None, NoAnswer("gone")]))
    return results, answers


def with_evidence(result: Result, **changes: Any) -> Result:
    assert result.evidence is not None
    return result.model_copy(update={"evidence": result.evidence.model_copy(update=changes)})


def judged(results: list[Result], answers: dict[str, WitnessAnswer | NoAnswer | None]) -> TransportVerdict:
    return judge_transport(results, answers)


@settings(max_examples=300, deadline=None)
@given(near_proof(), st.data())
def test_taking_evidence_away_never_makes_a_run_proven(
        run: tuple[list[Result], dict[str, WitnessAnswer | NoAnswer | None]], data: st.DataObject) -> None:
    results, answers = run
    before = judged(results, answers).transport
    index, node = data.draw(st.sampled_from([(0, "a"), (1, "b")]))
    poorer, less = list(results), dict(answers)
    kind = data.draw(st.sampled_from(["tcp", "payload", "rank", "witness", "before", "after", "counter", "evidence"]))
    current = less[node]
    if kind == "tcp":
        poorer[index] = with_evidence(results[index], tcp_bytes=None)
    elif kind == "payload":
        poorer[index] = with_evidence(results[index], payload_bytes=None)
    elif kind == "rank":
        del poorer[index]
    elif kind == "evidence":
        poorer[index] = results[index].model_copy(update={"evidence": None})
    elif kind == "witness":
        less.pop(node)
    elif isinstance(current, WitnessAnswer) and kind in ("before", "after"):
        less[node] = with_side(current, kind, None)
    elif isinstance(current, WitnessAnswer):
        gone = data.draw(st.sampled_from(sorted(ZERO)))
        less[node] = replace(current, window=CounterWindow(current.window.start, current.window.end, {
            name: replace(each, counters={key: value for key, value in each.counters.items() if key != gone})
            for name, each in current.window.devices.items()}))
    after = judged(poorer, less).transport
    assert after is not Transport.EFA_RDMA or before is Transport.EFA_RDMA or (kind == "counter" and before is not Transport.TCP)
    if kind == "counter" and after is Transport.EFA_RDMA:
        assert before in (Transport.EFA_RDMA, Transport.INDETERMINATE), "a counter that contradicts may be missing, never one that proves"


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 20 * P), st.sampled_from([OVER_TCP, UNSAMPLED]), st.sampled_from([(), (TCP,), (EFA,)]))
def test_foreign_traffic_before_during_and_after_never_turns_tcp_into_rdma(
        background: int, tcp: Any, markers: tuple[Marker, ...]) -> None:
    results = push(tcp, markers)
    assert judged(results, dict(FLAT)).transport is Transport.TCP
    noisy = {node: answer(node, 0, out="rdma_write_bytes", into="rdma_write_recv_bytes", background=background) for node in ("a", "b")}
    assert judged(results, dict(noisy)).transport in (Transport.TCP, Transport.INDETERMINATE)


@settings(max_examples=300, deadline=None)
@given(near_proof())
def test_nothing_is_proven_without_witnesses_on_every_node_and_sockets_of_every_rank(
        run: tuple[list[Result], dict[str, WitnessAnswer | NoAnswer | None]]) -> None:
    results, answers = run
    verdict = judged(results, answers)
    if verdict.transport in (Transport.EFA_RDMA, Transport.EFA_NO_RDMA, Transport.EFA_PARTIAL):
        assert all(isinstance(answers.get(node), WitnessAnswer) for node in ("a", "b"))
        for each in results:
            assert each.evidence is not None
            assert each.evidence.tcp_bytes is not None
            assert each.evidence.payload_bytes is not None
            sent, received = each.evidence.payload_bytes
            assert each.evidence.tcp_bytes[0] <= 0.1 * sent or sent < 1 << 20
            assert each.evidence.tcp_bytes[1] <= 0.1 * received or received < 1 << 20
    assert verdict.why


@settings(max_examples=200, deadline=None)
@given(near_proof())
def test_the_order_of_ranks_does_not_matter(run: tuple[list[Result], dict[str, WitnessAnswer | NoAnswer | None]]) -> None:
    results, answers = run
    assert judged(results, answers).transport is judged(results[::-1], answers).transport


def test_a_witness_of_another_node_proves_nothing() -> None:
    answers = {"a": PUSH["a"], "b": replace(PUSH["b"], node="c")}
    verdict = judge_transport(push(), answers)
    assert verdict.transport is Transport.INDETERMINATE
    assert any("of node c" in each.text for each in verdict.statements)


@pytest.mark.parametrize(("received", "says"), [
    (0, "the ranks on b tell no payload"), (P // 4, "536.9 MB were sent and 134.2 MB received"),
])
def test_ranks_whose_payloads_do_not_fit_together_prove_nothing(received: int, says: str) -> None:
    results = [rank(0, "a", (P, 0), (900, 900), EFA), rank(1, "b", (0, received), (900, 900), EFA)]
    verdict = judge_transport(results, {"a": PUSH["a"], "b": answer("b", received, into="rdma_write_recv_bytes")})
    assert verdict.transport is Transport.INDETERMINATE
    assert says in verdict.why
