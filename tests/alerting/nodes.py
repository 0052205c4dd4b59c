"""Cases of the alerts of nodes, pairs and the fabric."""

from __future__ import annotations

from collections.abc import Sequence

from alerting.case import Case, Check, Fired, Kind, Series, Suite, count, fired, follow, held, rising, series

LONG = 400
A = {"node": "a", "probe": "nccl"}


def healthy(node: str, probe: str, values: str) -> Series:
    return series("efapulse_node_healthy", values, node=node, probe=probe)


def many(bad: int, of: int, probe: str = "nccl") -> list[Series]:
    """So many nodes, some bad from minute 10 on. Node `a` is not among them."""
    return [healthy(f"n{i}", probe, held((1, 10), (0 if i < bad else 1, LONG))) for i in range(of)]


def muted(says: str, wrong: Sequence[Series], *more: Series, at: int = 100) -> Case:
    """Something is wrong, and something below explains it."""
    return Case(Kind.NEAR_MISS, says, [*wrong, *more], [Check(15), Check(at)])


def _fabric() -> Suite:
    said = fired(probe="nccl")
    cases = follow("efapulse_findings", "1", "0", labels={"kind": "group", "probe": "nccl"}, said=said, wait=5, near=[
        Case(Kind.NEAR_MISS, "a finding of a single node is none of the fabric",
             [series("efapulse_findings", held((1, LONG)), kind="node", probe="nccl")], [Check(100)]),
        Case(Kind.NEAR_MISS, "fewer than half of the nodes are bad", many(3, 8), [Check(100)]),
        Case(Kind.NEAR_MISS, "half of two nodes is no fabric", many(1, 2), [Check(100)]),
        Case(Kind.NEAR_MISS, "for a shorter time than `for`",
             [series("efapulse_findings", held((1, 4), (0, LONG)), kind="group", probe="nccl")], [Check(3), Check(6), Check(30)])])
    cases.append(Case(Kind.FIRES, "half of the nodes are bad", many(4, 8), [Check(9), Check(14), Check(16, (said,))]))
    cases.append(Case(Kind.FIRES, "only the lowest broken layer", [*many(4, 8), *many(8, 8, "mooncake"), *many(6, 8, "uccl-ep")],
                      [Check(16, (said,))]))
    cases.append(Case(Kind.FIRES, "KV engines of one layer both", [*many(8, 8, "mooncake"), *many(8, 8, "nixl")],
                      [Check(16, (fired(probe="mooncake"), fired(probe="nixl")))]))
    cases.append(Case(Kind.ZERO, "no node is measured by this probe", [], [Check(30)]))
    return Suite("EfaPulseFabricBroken", cases)


def _preflight() -> Suite:
    labels = {"node": "a", "probe": "node"}
    wrong = [healthy("a", "node", held((0, LONG)))]
    return Suite("EfaPulseNodePreflightFailed", follow(
        "efapulse_node_healthy", "0", "1", labels=labels, said=Fired(labels), wait=5, near=[
            Case(Kind.NEAR_MISS, "another probe of the node fails", [healthy("a", "nccl", held((0, LONG)))], [Check(100)]),
            muted("the preflight of most nodes fails: that is the fabric's alert", wrong, *many(7, 8, "node"))]))


def fallback(node: str = "a", transport: str = "tcp", required: bool = True, blamed: bool = True) -> list[Series]:
    found = [series("efapulse_node_transport", held((0, 10), (1, LONG)), node=node, probe="nccl", transport=transport),
             healthy(node, "nccl", held((1, 10), (0 if blamed else 1, LONG)))]
    if required:
        found.append(series("efapulse_transport_fallback_total", held((0, 10), (1, LONG)), node=node, probe="nccl", transport=transport))
    return found


def _fallback() -> Suite:
    labels = {**A, "transport": "tcp"}
    beside = [healthy("a", "nccl", held((0, LONG))), series("efapulse_transport_fallback_total", held((3, LONG)), **labels)]
    cases = follow("efapulse_node_transport", "1", "0", labels=labels, said=Fired(labels), wait=2, more=beside, near=[
        Case(Kind.NEAR_MISS, "TCP where no EFA is asked for is what it is", fallback(required=False), [Check(100)]),
        Case(Kind.NEAR_MISS, "the partner that only shared the run is not blamed", fallback(blamed=False), [Check(100)]),
        Case(Kind.NEAR_MISS, "fewer NICs than allocated is no fallback", fallback(transport="efa_partial"), [Check(100)]),
        muted("the preflight says why", fallback(), healthy("a", "node", held((0, LONG)))),
        muted("the fabric is broken", fallback(), *many(6, 8))])
    emulated = fallback(transport="efa_no_rdma")
    cases.append(Case(Kind.FIRES, "EFA by send/receive emulation", emulated,
        [Check(9), Check(13, (Fired({**A, "transport": "efa_no_rdma"}),))]))
    return Suite("EfaPulseTransportFallback", cases)


def _bad() -> Suite:
    wrong = [healthy("a", "nccl", held((1, 10), (0, LONG)))]
    cases = follow("efapulse_node_healthy", "0", "1", labels=A, said=Fired(A), wait=5, near=[
        Case(Kind.NEAR_MISS, "an unknown run does not change the verdict", [
            healthy("a", "nccl", held((1, LONG))),
            series("efapulse_node_last_outcome", held((1, LONG)), node="a", probe="nccl", outcome="unknown")], [Check(100)]),
        muted("the preflight of the node fails", wrong, healthy("a", "node", held((0, LONG)))),
        muted("half of the fabric is bad", wrong, *many(6, 8)),
        muted("a fallback of the same probe says more", fallback())])
    kv = [healthy("a", "mooncake", held((0, LONG)))]
    cases.append(Case(
        Kind.NEAR_MISS, "NCCL below explains KV and UCCL-EP", [*kv, healthy("a", "uccl-ep", held((0, LONG))), *wrong],
        [Check(30, (Fired(A),))]))
    cases.append(Case(Kind.FIRES, "of KV alone, with good NCCL below, and of one node only", [
        *kv, healthy("a", "nccl", held((1, LONG))), healthy("b", "mooncake", held((1, LONG)))],
        [Check(6, (fired(node="a", probe="mooncake"),))]))
    cases.append(Case(Kind.FIRES, "a broken fabric of KV does not hide what NCCL below says of a node", [
        *wrong, *many(6, 8, "mooncake"), *many(0, 8)], [Check(16, (Fired(A),))]))
    return Suite("EfaPulseNodeBad", cases)


def _suspect() -> Suite:
    labels = {"node": "a"}
    wrong = [series("efapulse_node_suspicion_ratio", held((0.5, LONG)), node="a")]
    return Suite("EfaPulseNodeSuspect", follow(
        "efapulse_node_suspicion_ratio", "0.5", "0", labels=labels, said=fired("50%", node="a"), wait=60, near=[
            Case(Kind.NEAR_MISS, "chance explains it better", [series("efapulse_node_suspicion_ratio", held((0.39, LONG)), node="a")],
                 [Check(200)]),
            Case(Kind.NEAR_MISS, "settled within the hour", [series("efapulse_node_suspicion_ratio", held((0.9, 55), (0, 50)), node="a")],
                 [Check(50), Check(61), Check(90)]),
            muted("the node is known to be bad", wrong, healthy("a", "nixl", held((0, LONG)))),
            muted("the fabric is broken", wrong, *many(6, 8))]))


def _pair() -> Suite:
    labels = {"node": "a", "peer": "b", "probe": "nixl"}
    wrong = [series("efapulse_pair_healthy", held((0, LONG)), **labels)]
    return Suite("EfaPulsePairBad", follow(
        "efapulse_pair_healthy", "0", "1", labels=labels, said=Fired(labels), wait=30,
        more=[healthy("a", "nixl", held((1, LONG))), healthy("b", "nixl", held((1, LONG)))], near=[
            Case(Kind.NEAR_MISS, "replaced by a newer pair within half an hour",
                 [series("efapulse_pair_healthy", held((0, 28), ("stale", 30)), **labels)], [Check(27), Check(45), Check(57)]),
            muted("its first node is bad", wrong, healthy("a", "nixl", held((0, LONG)))),
            muted("its second node is bad", wrong, healthy("b", "nixl", held((0, LONG)))),
            muted("the preflight of its first node fails", wrong, healthy("a", "nixl", held((1, LONG))),
                healthy("a", "node", held((0, LONG)))),
            muted("the fabric is broken", wrong, healthy("a", "nixl", held((1, LONG))), *many(6, 8))]))


def _share() -> Suite:
    labels = {"node": "a", "device": "rdmap85s0"}
    wrong = [series("efapulse_nic_share_ratio", held((0.1, LONG)), **labels)]
    cases = follow("efapulse_nic_share_ratio", "0.2", "0.98", labels=labels, said=Fired(labels, "20%"), wait=60, near=[
        Case(Kind.NEAR_MISS, "half of the average is not below it", [series("efapulse_nic_share_ratio", held((0.5, LONG)), **labels)],
             [Check(100)]),
        Case(Kind.NEAR_MISS, "one run was uneven and the next was not",
             [series("efapulse_nic_share_ratio", held((0.2, 45), (0.95, 100)), **labels)], [Check(44), Check(61), Check(100)]),
        muted("the preflight misses a device", wrong, healthy("a", "node", held((0, LONG))))])
    return Suite("EfaPulseNicShareLow", cases)


def _regression() -> Suite:
    labels = {**A, "kind": "step"}
    wrong = [series("efapulse_node_change", held((1, LONG)), **labels)]
    return Suite("EfaPulseNodeRegression", follow(
        "efapulse_node_change", "1", "0", labels=labels, said=Fired(labels), wait=10, more=[healthy("a", "nccl", held((1, LONG)))], near=[
            Case(Kind.NEAR_MISS, "slower than its peers, but no change has been found", [
                series("efapulse_node_to_baseline_ratio", held((0.86, LONG)), node="a", probe="nccl", operation="all_reduce",
                       bytes="1073741824", memory="gpu", kind="busbw")], [Check(100)]),
            Case(Kind.NEAR_MISS, "over again at once", [series("efapulse_node_change", held((1, 8), (0, 60)), **labels)],
                [Check(7), Check(30)]),
            muted("the node is bad by its verdict", wrong, healthy("a", "nccl", held((0, LONG)))),
            muted("the preflight fails", wrong, healthy("a", "nccl", held((1, LONG))), healthy("a", "node", held((0, LONG))))]))


def _slower() -> Suite:
    labels = {"probe": "mooncake", "operation": "write", "bytes": "16777216", "memory": "dram", "kind": "goodput",
              "instance_type": "p5.48xlarge", "stratum": "same_leaf"}
    wrong = [series("efapulse_baseline_level_ratio", held((0.5, LONG)), **labels)]
    return Suite("EfaPulseFleetSlower", follow(
        "efapulse_baseline_level_ratio", "0.8", "1", labels=labels, said=Fired(labels, "80%"), wait=60, near=[
            Case(Kind.NEAR_MISS, "the usual spread", [series("efapulse_baseline_level_ratio", held((0.86, LONG)), **labels)], [Check(200)]),
            muted("the fabric is broken", wrong, *many(6, 8, "mooncake"))]))


def _never() -> Suite:
    """Time in promtool begins at 0, so a node is first seen in minute 0 and is 26 h old after 1560 minutes: 156 steps of 10."""
    seen = [series("efapulse_node_first_seen_timestamp_seconds", held((0, 300)), node="a")]
    day = 1560

    def measured(step: int) -> Series:
        return series("efapulse_node_last_measured_timestamp_seconds", held(("_", step), (90000, 100)), node="a", probe="node")

    def said(text: str) -> tuple[Fired, ...]:
        return (fired(text, node="a"),)

    return Suite("EfaPulseNodeNeverMeasured", [
        Case(Kind.FIRES, "a day and a margin after it joined", seen, [Check(day - 10), Check(day + 30, said("1d 2h 30m 0s"))]),
        Case(Kind.NEAR_MISS, "measured once, by whatever probe", [*seen, measured(150)], [Check(day + 30), Check(1900)]),
        Case(Kind.NEAR_MISS, "a closed gate says why", [*seen, series("efapulse_node_gate_closed", held((1, 300)), node="a",
                                                                      gate="excluded")],
             [Check(day + 30)]),
        Case(Kind.RESOLVES, "with its first measurement", [*seen, measured(161)], [Check(day + 40, said("1d 2h 40m 0s")), Check(day + 60)]),
        Case(Kind.RESTART, "the journal keeps since when the node is there", [
            series("efapulse_node_first_seen_timestamp_seconds", held((0, 150), ("stale", 20)), node="a"),
            series("efapulse_node_first_seen_timestamp_seconds", held(("_", 150), (0, 50)), "b", node="a")],
            [Check(day + 30, said("1d 2h 30m 0s"))]),
        Case(Kind.MISSING, "the node left", [series("efapulse_node_first_seen_timestamp_seconds", held((0, 159), ("stale", 50)), node="a")],
             [Check(1650)]),
    ], every=10)


def _corruption() -> Suite:
    labels = {"probe": "mooncake"}
    own = {**labels, "outcome": "failed", "reason": "wrong_content"}
    cases = count("efapulse_runs_total", labels=own, said=Fired(labels), over=36, wait=0, fast=0.1, slow=0, every=10)
    cases += [
        Case(Kind.NEAR_MISS, "a failed transfer is not a wrong one", [
            series("efapulse_runs_total", rising((0, 1, 60)), probe="mooncake", outcome="failed", reason="transfer_failed")], [Check(100)]),
        Case(Kind.NEAR_MISS, "canaries have an alert of their own", [
            series("efapulse_runs_total", rising((0, 1, 60)), probe="canary", outcome="failed", reason="wrong_content")], [Check(100)]),
        Case(Kind.FIRES, "at once, after a single run, and also when the fabric is broken", [
            series("efapulse_runs_total", held((0, 5), (1, LONG)), **own), *many(7, 8)], [Check(40), Check(50, (Fired(labels),))])]
    return Suite("EfaPulseDataCorruption", cases, every=10)


SUITES = (_fabric(), _preflight(), _fallback(), _bad(), _suspect(), _pair(), _share(), _regression(), _slower(), _never(), _corruption())
