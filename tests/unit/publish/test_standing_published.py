"""How nodes stand to baseline, peers and hardware, within the 40 series of a node."""

from __future__ import annotations

import itertools

from publishing import kv_verdict, samples, series_of, text_of

from exporter.publish import families_baseline as f
from exporter.publish.nodes import Ratio, Standing
from exporter.publish.publisher import Publisher
from probes.reasons import Reason

PROBES = ("mooncake", "nixl", "nccl", "uccl-ep")


def standing(*probes: str, changed: bool = True) -> Standing:
    ratios = tuple(Ratio(family, (probe, "write", "16777216", "dram", "goodput"), 0.9)
                   for probe in probes for family in f.RATIOS.values())
    return Standing(ratios, {(probe, kind): True for probe in probes for kind in f.CHANGES} if changed else {})


def crowded() -> Publisher:
    made = Publisher("t")
    made.node_seen("a", 1.0, PROBES)
    made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None))
    for probe, (reason, transport) in itertools.product(PROBES, [(Reason.OK, "efa_rdma"), (Reason.TCP_FALLBACK, "tcp")]):
        made.run_finished(kv_verdict(probe=probe, reason=reason, transport=transport))
    return made


def of_node(made: Publisher, node: str = "a") -> list[str]:
    return [name for name, labels in samples(text_of(made.commit().classic)) if ("node", node) in labels and "pair" not in name]


def test_a_node_with_everything_still_has_at_most_40_series_and_shows_its_changes() -> None:
    made = crowded()
    made.compared({"a": standing("mooncake", "nixl")})
    names = of_node(made)
    assert len(names) <= 40
    assert names.count("efapulse_node_change") == 4


def test_a_node_with_the_default_probes_shows_every_ratio_and_every_bandwidth() -> None:
    made = Publisher("t")
    made.node_seen("a", 1.0, ["mooncake", "nixl"])
    made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None))
    for probe in ("mooncake", "nixl"):
        made.run_finished(kv_verdict(probe=probe))
    made.compared({"a": standing("mooncake", "nixl", changed=False)})
    names = of_node(made)
    assert len(names) <= 40
    assert [names.count(family.name) for family in f.RATIOS.values()] == [2, 2, 2]
    assert names.count("efapulse_node_bandwidth_bytes_per_second") == 8


def test_what_is_no_longer_told_is_gone() -> None:
    made = Publisher("t")
    made.node_seen("a", 1.0)
    made.compared({"a": standing("nixl")})
    assert len(series_of(made.commit(), f.TO_BASELINE.name)) == 1
    made.compared({"a": Standing()})
    assert [series_of(made.commit(), family.name) for family in (*f.RATIOS.values(), f.CHANGE)] == [{}, {}, {}, {}]


def test_a_node_that_nobody_has_seen_is_left_out() -> None:
    made = Publisher("t")
    made.compared({"ghost": standing("nixl")})
    assert series_of(made.commit(), f.TO_BASELINE.name) == {}
