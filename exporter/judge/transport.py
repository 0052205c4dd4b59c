"""How a run's bytes travelled: one verdict from three independent witnesses (`exporter.judge.witnesses`).

Rules. Payload that went through the ranks' own TCP sockets was TCP, whatever logs say. Flat EFA counters while bytes moved between nodes
are conclusive for a fallback. A rise proves RDMA only on every node of the run, on the right counters, with the payload at least 5 times
the background before and after, and when the kernel says that TCP carried none of it. Witnesses that disagree, and bytes that nobody
accounts for, are `indeterminate`. A witness that is missing is unknown, never zero: taking counters, TCP bytes or a background away can
never make a verdict `efa_rdma`. Speed never decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from exporter.judge import witnesses
from exporter.judge.witnesses import CounterSays, Statement, TcpSays, size
from probes.efa.window import NoAnswer, WitnessAnswer
from probes.result import Result


class Transport(str, Enum):
    """The closed list of transports a run can be judged to have used."""

    EFA_RDMA = "efa_rdma"
    EFA_NO_RDMA = "efa_no_rdma"
    EFA_PARTIAL = "efa_partial"
    TCP = "tcp"
    INTRA_NODE = "intra_node"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True)
class TransportVerdict:
    """The transport, why in one sentence, and every statement it rests on. `expected`: the hardware can do no better."""

    transport: Transport
    why: str
    statements: tuple[Statement, ...] = ()
    expected: bool = False


def judge_transport(results: Sequence[Result], answers: Mapping[str, WitnessAnswer | NoAnswer | None] | None = None, *,
                    rdma_hardware: bool | None = None) -> TransportVerdict:
    """The transport of one run from its ranks' results and, by node, what the nodes' witnesses answered for the run's window.

    A rank's `payload_bytes` are those that had to leave or reach it in the window. `rdma_hardware` False (instance table) says that
    emulated RDMA is all the devices can do. Pure.
    """
    answers = answers or {}
    loads = witnesses.loads(results)
    tcp, tcp_said = witnesses.tcp_statements(results)
    counters, counters_said = witnesses.counter_statements(loads, answers)
    markers, markers_said = witnesses.marker_statements(results)
    shortages = witnesses.shortage_statements(results, answers)
    statements = (*counters_said, *tcp_said, *markers_said, *(each for each in shortages if each not in markers_said))
    moved = max((max(load.sent, load.received) for load in loads), default=0)
    whole = all(load.complete for load in loads)
    if moved < witnesses.MIN_PAYLOAD:
        told = any(load.complete for load in loads)
        why = f"only {size(moved)} moved, too little to prove anything" if told else "no rank says how much it moved"
        return TransportVerdict(Transport.INDETERMINATE, why, statements)
    if len({result.rank for result in results}) < results[0].world_size:
        transport, why = _with_ranks_missing(tcp, counters)
    elif len(loads) == 1:
        transport, why = _on_one_node(tcp, counters, markers, whole=whole)
    else:
        transport, why = _between_nodes(tcp, counters, markers, whole=whole)
    proven = transport in (Transport.EFA_RDMA, Transport.EFA_NO_RDMA)
    if proven and (doubt := witnesses.mismatch(loads)) is not None:
        return TransportVerdict(Transport.INDETERMINATE, doubt, statements)
    if proven and shortages:
        return TransportVerdict(Transport.EFA_PARTIAL, f"EFA, but {shortages[0].where}: {shortages[0].text}", statements)
    expected = transport is Transport.EFA_NO_RDMA and rdma_hardware is False
    if expected:
        why += "; these devices have no RDMA"
    return TransportVerdict(transport, f"{why}: {_figures(transport, counters_said, tcp_said, markers_said)}", statements, expected)


def _with_ranks_missing(tcp: TcpSays, counters: CounterSays) -> tuple[Transport, str]:
    """Some rank left no result: where it ran and what it moved is not known."""
    if tcp == "payload" and counters not in ("rdma", "send"):
        return Transport.TCP, "the payload went through the ranks' own TCP sockets"
    return Transport.INDETERMINATE, "not every rank left a result"


def _between_nodes(tcp: TcpSays, counters: CounterSays, markers: frozenset[str], *, whole: bool) -> tuple[Transport, str]:
    """Ranks on several nodes."""
    proven = counters in ("rdma", "send")
    if tcp == "payload":
        if proven:
            return Transport.INDETERMINATE, "both the ranks' TCP sockets and the EFA counters account for the payload"
        return Transport.TCP, "the payload went through the ranks' own TCP sockets"
    if counters == "flat":
        if tcp == "none":
            return Transport.INDETERMINATE, "bytes moved between nodes, and neither EFA counters nor the ranks' TCP sockets saw them"
        return Transport.TCP, "the EFA counters stayed flat while the payload moved"
    if tcp == "none":
        return _without_tcp(counters, markers, whole=whole)
    # From here on the sockets tell nothing, or saw a part only.
    if markers == {"tcp"} and counters in ("unknown", "background"):
        return Transport.TCP, "the engine's log says TCP and no witness says otherwise"
    if tcp == "some":
        return Transport.INDETERMINATE, "a part of the payload went through the ranks' TCP sockets"
    return Transport.INDETERMINATE, "the ranks' TCP bytes are not known" + ("" if proven else ", and the EFA counters prove nothing")


def _without_tcp(counters: CounterSays, markers: frozenset[str], *, whole: bool) -> tuple[Transport, str]:
    """Between nodes, and the kernel says that TCP carried none of it."""
    if counters in ("rdma", "send"):
        against = markers - {"efa", "efa_partial"} - ({"efa_no_rdma"} if counters == "send" else set())
        if against:
            return Transport.INDETERMINATE, f"the EFA counters prove EFA, and the engine's log says {' and '.join(sorted(against))}"
        if not whole:
            return Transport.INDETERMINATE, "not every rank told what it moved"
        if counters == "rdma":
            return Transport.EFA_RDMA, "the EFA RDMA counters of every node rose by the payload, and TCP carried none of it"
        return Transport.EFA_NO_RDMA, "EFA carried the payload by send and receive, not by RDMA"
    return Transport.INDETERMINATE, {
        "part": "TCP did not carry the payload, and the EFA counters rose by a part of it only",
        "background": "TCP did not carry the payload, and other traffic on the EFA devices hides whether they did",
        "supports": "the EFA counters rose by the payload, and what other traffic there was is not known",
    }.get(counters, "TCP did not carry the payload, and without the EFA counters of every node nothing is proven")


def _on_one_node(tcp: TcpSays, counters: CounterSays, markers: frozenset[str], *, whole: bool) -> tuple[Transport, str]:
    """All ranks on one node: nothing has to reach a NIC."""
    if counters in ("rdma", "send"):
        return Transport.INDETERMINATE, "the EFA counters rose by the payload although all ranks are on one node"
    if tcp == "payload":
        return Transport.TCP, "the payload went through the ranks' own TCP sockets, inside one node"
    if tcp == "none":
        # NCCL names the network it would use between nodes also when every channel is intra-node.
        against = markers - {"intra_node", "efa"} - ({"tcp", "other"} if "intra_node" in markers else set())
        if against:
            return Transport.INDETERMINATE, f"no TCP socket carried the payload, and the engine's log says {' and '.join(sorted(against))}"
        if not whole:
            return Transport.INDETERMINATE, "not every rank told what it moved"
        return Transport.INTRA_NODE, "all ranks are on one node, and neither TCP nor a NIC carried the payload"
    if markers == {"tcp"}:
        return Transport.TCP, "the engine's log says TCP and no witness says otherwise"
    if tcp == "some":
        return Transport.INDETERMINATE, "a part of the payload went through the ranks' TCP sockets"
    return Transport.INDETERMINATE, "the ranks' TCP bytes are not known"


def _figures(transport: Transport, counters: Sequence[Statement], tcp: Sequence[Statement], markers: Sequence[Statement]) -> str:
    """The statements a reader wants first, for the sentence of the verdict."""
    if transport is Transport.TCP:
        chosen = [each for each in tcp if each.says == "payload"][:1] or [each for each in counters if each.says == "flat"][:1]
        chosen = chosen or [each for each in markers if each.says == "tcp"][:1]
    elif transport is Transport.INTRA_NODE:
        chosen = list(tcp[:1])
    elif transport is Transport.INDETERMINATE:
        chosen = [*counters[:2], *tcp[:1]]
    else:
        chosen = list(counters[:2])
    return "; ".join(f"{each.where}: {each.text}" for each in chosen) or "no witness spoke"
