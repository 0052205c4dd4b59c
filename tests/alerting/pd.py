"""Cases of the alerts of prefill/decode serving."""

from __future__ import annotations

from alerting.canaries import BROKEN
from alerting.case import Case, Check, Fired, Kind, Series, Suite, count, fired, follow, held, rising, series

LONG = 600
CHAT = {"target": "chat"}


def proofs(verdict: str, values: str, evidence: str = "counters", replica: str = "a") -> Series:
    return series("efapulse_pd_disaggregation_total", values, replica, target="chat", verdict=verdict, evidence=evidence)


def _not() -> Suite:
    said = (fired("75%", **CHAT),)

    def mix(no: float, yes: float, replica: str = "a") -> list[Series]:
        return [proofs("no", rising((0, no, LONG)), replica=replica), proofs("yes", rising((0, yes, LONG)), replica=replica)]

    return Suite("EfaPulsePdNotDisaggregated", [
        Case(Kind.FIRES, "three quarters of the proofs say no", mix(0.3, 0.1), [Check(3), Check(70, said), Check(120, said)]),
        Case(Kind.FIRES, "whatever evidence decided", [*mix(0.15, 0.1), proofs("no", rising((0, 0.15, LONG)), "provenance")],
            [Check(70, said)]),
        Case(Kind.NEAR_MISS, "half of the proofs", mix(0.2, 0.2), [Check(70), Check(200)]),
        Case(Kind.NEAR_MISS, "two misses at a restart", [proofs("no", held((0, 10), (2, LONG))), proofs("yes", held((0, LONG)))],
             [Check(30), Check(100)]),
        Case(Kind.NEAR_MISS, "unknown is no proof", [proofs("unknown", rising((0, 1, LONG)), "none"), *mix(0, 0)], [Check(100)]),
        Case(Kind.NEAR_MISS, "a broken fabric explains it", [*mix(0.3, 0.1), *BROKEN], [Check(100)]),
        Case(Kind.RESOLVES, "when KV moves again", [proofs("no", rising((0, 0.3, 100), (29.7, 0, 200))),
                                                    proofs("yes", rising((0, 0.1, 100), (9.9, 1, 200)))], [Check(95, said), Check(170)]),
        Case(Kind.RESTART, "counters begin again at 0", [proofs("no", rising((0, 0.3, 80), (0, 0.3, 80))),
                                                        proofs("yes", rising((0, 0.1, 80), (0, 0.1, 80)))], [Check(75, said)]),
        Case(Kind.RESTART, "a standby's zeros change nothing", [*mix(0.3, 0.1), *mix(0, 0, "b")], [Check(100, said)]),
        Case(Kind.MISSING, "not a PD target", [], [Check(100)]),
        Case(Kind.ZERO, "no proof at all", mix(0, 0), [Check(100)]),
    ])


def _unproven() -> Suite:
    """Steps of 5 minutes."""
    said = (fired("95%", **CHAT),)

    def mix(unknown: float, yes: float) -> list[Series]:
        return [proofs("unknown", rising((0, unknown, 100)), "none"), proofs("yes", rising((0, yes, 100)))]

    return Suite("EfaPulsePdUnproven", [
        Case(Kind.FIRES, "nearly all verdicts are unknown", mix(0.95, 0.05), [Check(15), Check(375, said)]),
        Case(Kind.NEAR_MISS, "one in ten is proven", mix(0.9, 0.1), [Check(375)]),
        Case(Kind.NEAR_MISS, "nine canaries say nothing", mix(0.12, 0), [Check(375)]),
        Case(Kind.NEAR_MISS, "not disaggregated is proven", [proofs("no", rising((0, 1, 100)))], [Check(375)]),
        Case(Kind.RESOLVES, "when the metrics are there", [
            proofs("unknown", rising((0, 0.95, 76), (71.25, 0, 80)), "none"), proofs("yes", rising((0, 0.05, 76), (4, 1, 80)))],
            [Check(375, said), Check(500)]),
        Case(Kind.RESTART, "counters begin again at 0", [
            proofs("unknown", rising((0, 0.95, 60), (0, 0.95, 60)), "none"), proofs("yes", rising((0, 0.05, 60), (0, 0.05, 60)))],
            [Check(290, said), Check(375, said)]),
        Case(Kind.MISSING, "not a PD target", [], [Check(375)]),
        Case(Kind.ZERO, "no verdict at all", mix(0, 0), [Check(375)]),
    ], every=5)


def _pure() -> Suite:
    labels = {**CHAT, "role": "decode"}
    said = (Fired(labels, "128"),)

    def impure(values: str, replica: str = "a") -> Series:
        return Series("efapulse_pd_impure_tokens_total", labels, values, replica)

    def asked(values: str, replica: str = "a") -> Series:
        return series("efapulse_canary_requests_total", values, replica, target="chat", route="router", prompt="short", result="ok")

    return Suite("EfaPulsePdRoleNotPure", [
        Case(Kind.FIRES, "twice the bound of tokens a canary", [impure(rising((0, 128, LONG))), asked(rising((0, 1, LONG)))],
             [Check(10), Check(80, said), Check(150, said)]),
        Case(Kind.NEAR_MISS, "the last block of each prompt", [impure(rising((0, 60, LONG))), asked(rising((0, 1, LONG)))],
             [Check(80), Check(200)]),
        Case(Kind.NEAR_MISS, "much, but of many canaries", [impure(rising((0, 300, LONG))), asked(rising((0, 5, LONG)))], [Check(100)]),
        Case(Kind.RESOLVES, "when the roles are right", [impure(rising((0, 128, 100), (12672, 0, 200))), asked(rising((0, 1, 300)))],
             [Check(95, said), Check(170)]),
        Case(Kind.RESTART, "counters begin again at 0", [impure(rising((0, 128, 90), (0, 128, 90))), asked(rising((0, 1, 90), (0, 1, 90)))],
             [Check(85, said), Check(88, said)]),
        Case(Kind.RESTART, "a standby's zeros change nothing", [
            impure(rising((0, 128, LONG))), asked(rising((0, 1, LONG))), impure(held((0, LONG)), "b"), asked(held((0, LONG)), "b")],
            [Check(100, said)]),
        Case(Kind.MISSING, "engines that do not tell", [asked(rising((0, 1, LONG)))], [Check(100)]),
        Case(Kind.ZERO, "no canary, no work", [impure(held((0, LONG))), asked(held((0, LONG)))], [Check(100)]),
    ])


def _slower() -> Suite:
    labels = {**CHAT, "measure": "ttft"}
    wrong = [series("efapulse_pd_to_baseline_ratio", held((5, LONG)), **labels)]
    return Suite("EfaPulsePdSlowerThanBaseline", follow(
        "efapulse_pd_to_baseline_ratio", "1.5", "1.1", labels=labels, said=Fired(labels, "1.5"), wait=30, near=[
            Case(Kind.NEAR_MISS, "1.3 times is what may be", [series("efapulse_pd_to_baseline_ratio", held((1.3, LONG)), **labels)],
                 [Check(100)]),
            Case(Kind.NEAR_MISS, "speed is better when it is higher", [
                series("efapulse_pd_to_baseline_ratio", held((2, LONG)), target="chat", measure="output_tokens_per_second")], [Check(100)]),
            Case(Kind.NEAR_MISS, "a spike of load", [series("efapulse_pd_to_baseline_ratio", held((4, 25), (1.1, 60)), **labels)],
                 [Check(24), Check(32), Check(60)]),
            Case(Kind.NEAR_MISS, "a broken fabric explains it", [*wrong, *BROKEN], [Check(100)])]))


def _transport() -> Suite:
    labels = {**CHAT, "transport": "tcp"}
    wrong = [series("efapulse_pd_transport", held((1, LONG)), **labels)]
    cases = follow("efapulse_pd_transport", "1", "0", labels=labels, said=Fired(labels), wait=5, near=[
        Case(Kind.NEAR_MISS, "EFA RDMA, and fewer NICs than allocated", [
            series("efapulse_pd_transport", held((1, LONG)), target="chat", transport=name) for name in ("efa_rdma", "efa_partial")],
            [Check(100)]),
        Case(Kind.NEAR_MISS, "one pair that was replaced at once", [series("efapulse_pd_transport", held((1, 4), (0, 60)), **labels)],
             [Check(3), Check(10)]),
        Case(Kind.NEAR_MISS, "a broken fabric explains it", [*wrong, *BROKEN], [Check(100)])])
    return Suite("EfaPulsePdTransportFallback", cases)


def _transfers() -> Suite:
    expired = series("efapulse_pd_expired_transfers_total", held((0, LONG)), **CHAT)
    cases = count("efapulse_pd_failed_transfers_total", labels=CHAT, said=Fired(CHAT), over=60, wait=5, fast=0.5, slow=0.07,
                  others=[expired])
    cases += [
        Case(Kind.FIRES, "failed and expired together", [
            series("efapulse_pd_failed_transfers_total", rising((0, 0.05, LONG)), **CHAT),
            series("efapulse_pd_expired_transfers_total", rising((0, 0.05, LONG)), **CHAT)], [Check(20), Check(80, (Fired(CHAT),))]),
        Case(Kind.NEAR_MISS, "a broken fabric explains it", [
            series("efapulse_pd_failed_transfers_total", rising((0, 1, LONG)), **CHAT), expired, *BROKEN], [Check(80)])]
    return Suite("EfaPulsePdTransfersFail", cases)


def _misconfigured() -> Suite:
    labels = {**CHAT, "finding": "cross_zone"}
    return Suite("EfaPulsePdMisconfigured", follow(
        "efapulse_pd_findings", "1", "0", labels=labels, said=Fired(labels), wait=15, near=[
            Case(Kind.NEAR_MISS, "a roll-out", [series("efapulse_pd_findings", held((1, 14), (0, 60)), **labels)],
                [Check(13), Check(16), Check(60)]),
        ]))


def _visited() -> Suite:
    labels = {**CHAT, "role": "prefill"}
    return Suite("EfaPulsePdPodsNotVisited", follow(
        "efapulse_pd_pod_coverage_ratio", "0.5", "1", labels=labels, said=Fired(labels, "50%"), wait=120, near=[
            Case(Kind.NEAR_MISS, "four of five", [series("efapulse_pd_pod_coverage_ratio", held((0.8, LONG)), **labels)], [Check(200)]),
            Case(Kind.NEAR_MISS, "new pods were visited within two hours",
                 [series("efapulse_pd_pod_coverage_ratio", held((0.5, 110), (1, 100)), **labels)], [Check(109), Check(122), Check(200)]),
            Case(Kind.NEAR_MISS, "paused", [series("efapulse_pd_pod_coverage_ratio", held((0.1, LONG)), **labels),
                                            series("efapulse_paused", held((1, LONG)))], [Check(200)])]))


SUITES: tuple[Suite, ...] = (_not(), _unproven(), _pure(), _slower(), _transport(), _transfers(), _misconfigured(), _visited())
