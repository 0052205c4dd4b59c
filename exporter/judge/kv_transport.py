"""How the KV of a production prefill/decode pair travelled, by the EFA counters of both nodes over a canary of known KV size.

The witness of the pods' own TCP sockets is not ours to have, so less is said here than of a probe: flat counters on both nodes while KV
moved are a fallback, a rise by the KV on both, at least 5 times the background before and after, is EFA, and everything between is
indeterminate, with what a canary would need to be sure. Speed decides nothing: TCP at full speed is tcp, slow EFA is not.
"""

from __future__ import annotations

from exporter.judge import witnesses
from exporter.judge.transport import Transport, TransportVerdict
from exporter.judge.witnesses import Answers, Load, Statement, size
from probes.efa.window import WitnessAnswer
from probes.result import Pd

FLAT_EXPECTED = 4 * witnesses.MIN_PAYLOAD
"""KV that is only expected from earlier requests must be this large before flat counters mean anything."""


def judge_kv_transport(pd: Pd, answers: Answers) -> TransportVerdict | None:
    """The transport of one canary's KV; None where there was nothing to judge: no pair of known nodes, or nobody was asked. Pure."""
    if pd.prefill is None or pd.decode is None or pd.prefill.node is None or pd.decode.node is None or not answers:
        return None
    counted = pd.kv_bytes is not None
    moved = pd.kv_bytes if pd.kv_bytes is not None else pd.expected_kv_bytes
    if pd.disaggregation != "yes":
        return TransportVerdict(Transport.INDETERMINATE, "no KV is known to have moved, so no counter had to rise")
    if moved is None or moved < (witnesses.MIN_PAYLOAD if counted else FLAT_EXPECTED):
        known = "is not known" if moved is None else f"is only {size(moved)}"
        return TransportVerdict(Transport.INDETERMINATE, f"the KV of this request {known}: a longer prompt is needed")
    source, sink = pd.prefill.node, pd.decode.node
    if source == sink:
        return _on_one_node(source, moved, answers)
    loads = [Load(source, moved, 0, complete=True), Load(sink, 0, moved, complete=True)]
    _, statements = witnesses.counter_statements(loads, answers)
    says = {statement.says for statement in statements}
    transport, why = _between(says)
    if transport is Transport.INDETERMINATE and says & {"background", "part", "unknown", "supports"}:
        why += _needed(moved, statements)
    figures = "; ".join(f"{statement.where}: {statement.text}" for statement in statements)
    return TransportVerdict(transport, f"{why}: {figures}", tuple(statements))


def _between(says: set[str]) -> tuple[Transport, str]:
    if says == {"flat"}:
        return Transport.TCP, "the EFA counters of both nodes stayed flat while the KV moved"
    if "flat" in says:
        return Transport.INDETERMINATE, "one node's EFA counters stayed flat and the other's did not"
    if says == {"rdma"}:
        return Transport.EFA_RDMA, "the EFA RDMA counters of both nodes rose by the KV"
    if says <= {"rdma", "send"}:
        return Transport.EFA_NO_RDMA, "EFA carried the KV by send and receive, not by RDMA"
    if "background" in says:
        return Transport.INDETERMINATE, "other traffic on the EFA devices hides whether they carried the KV"
    if "part" in says:
        return Transport.INDETERMINATE, "the EFA counters rose by a part of the KV only"
    if "supports" in says and "unknown" not in says:
        return Transport.INDETERMINATE, "the EFA counters rose by the KV, and what other traffic there was is not known"
    return Transport.INDETERMINATE, "without the EFA counters of both nodes nothing is proven"


def _needed(moved: int, statements: list[Statement]) -> str:
    """What it would take to be sure: KV so many times the background."""
    background = max((value for one in statements for name, value in one.numbers.items()
                      if name.startswith("background") and value is not None), default=0.0)
    wanted = witnesses.BACKGROUND * background
    return f" (to be sure {size(wanted)} of KV are needed, {wanted / moved:.1f} times this prompt)" if wanted > moved else ""


def _on_one_node(node: str, moved: int, answers: Answers) -> TransportVerdict:
    """Both pods on one node: nothing has to reach a NIC."""
    answer = answers.get(node)
    _, statements = witnesses.counter_statements([Load(node, moved, moved, complete=True)], answers)
    if isinstance(answer, WitnessAnswer) and {one.says for one in statements} == {"flat"}:
        return TransportVerdict(Transport.INTRA_NODE, f"both pods are on {node}, and its EFA counters stayed flat", tuple(statements))
    return TransportVerdict(Transport.INDETERMINATE, f"both pods are on {node}: whether its NICs carried the KV is not proven",
                            tuple(statements))
