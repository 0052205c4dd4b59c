"""What is published of a fleet beside verdicts: what nodes are, what keeps probes off them, suspicion, coverage, pairs, devices."""

from __future__ import annotations

import itertools

from publishing import kv_verdict, measurement, series_of, value_of, with_devices

from exporter.publish.families import FAMILIES
from exporter.publish.pairs import LIMIT
from exporter.publish.publisher import Publisher
from exporter.publish.surveyed import Covered, Surveyed
from probes.reasons import Reason

DAY = 86400.0
NICS = [f"rdmap{i}" for i in range(8)]


def told(made: Publisher, name: str, label: str, **labels: str) -> dict[str, float]:
    """The values of one family by one label."""
    return {dict(found)[label]: value for found, value in series_of(made.commit(), name, **labels).items()}


class TestNodes:
    def test_what_a_node_is(self) -> None:
        made = Publisher("t")
        made.node_seen("a", 1.0)
        made.node_described("a", "i-1", "p5.48xlarge", "us-west-2a", None)
        assert value_of(made.commit(), "efapulse_node_info", node="a", instance_id="i-1", instance_type="p5.48xlarge", zone="us-west-2a",
                        placement_group="") == 1.0

    def test_a_name_that_another_instance_uses_has_one_info(self) -> None:
        made = Publisher("t")
        for instance in ("i-1", "i-2"):
            made.node_removed("a")
            made.node_seen("a", 1.0)
            made.node_described("a", instance, "p5.48xlarge", "z", "pg")
        assert told(made, "efapulse_node_info", "instance_id", node="a") == {"i-2": 1.0}

    def test_only_closed_gates_are_there_and_an_open_one_is_removed(self) -> None:
        made = Publisher("t")
        made.node_seen("a", 1.0)
        made.surveyed(Surveyed(10.0, {"a": ["efa_room", "age"]}))
        assert told(made, "efapulse_node_gate_closed", "gate", node="a") == {"efa_room": 1.0, "age": 1.0}
        made.surveyed(Surveyed(20.0, {"a": ["age"]}))
        assert told(made, "efapulse_node_gate_closed", "gate", node="a") == {"age": 1.0}
        made.surveyed(Surveyed(30.0))
        assert told(made, "efapulse_node_gate_closed", "gate", node="a") == {"age": 1.0}, "it was not looked at"
        made.surveyed(Surveyed(40.0, {"a": []}))
        assert told(made, "efapulse_node_gate_closed", "gate", node="a") == {}

    def test_a_node_that_left_has_no_series(self) -> None:
        made = Publisher("t")
        made.node_seen("a", 1.0)
        made.node_described("a", "i-1", None, None, None)
        made.run_finished(with_devices(kv_verdict(finished=1000.0), NICS, [1] * 8))
        made.surveyed(Surveyed(10.0, {"a": ["age"]}, suspicion={"a": 0.5}))
        made.node_removed("a")
        made.surveyed(Surveyed(11.0, {"a": ["age"]}, suspicion={}))
        page = made.commit()
        names = {name for name in ("info", "gate_closed", "suspicion_ratio", "devices_measured")
                 if series_of(page, f"efapulse_node_{name}", node="a")}
        assert names == set()
        assert series_of(page, "efapulse_pair_healthy") == {}


class TestSuspicion:
    def test_only_suspects_and_those_cleared_a_short_while_ago(self) -> None:
        made = Publisher("t", node_interval=DAY)
        for node in ("a", "b", "c"):
            made.node_seen(node, 1.0)
        made.surveyed(Surveyed(10.0, suspicion={"a": 0.9, "b": 0.4}))
        assert told(made, "efapulse_node_suspicion_ratio", "node") == {"a": 0.9, "b": 0.4}
        made.surveyed(Surveyed(20.0, suspicion={"a": 1.0}))
        assert told(made, "efapulse_node_suspicion_ratio", "node") == {"a": 1.0, "b": 0.0}
        made.surveyed(Surveyed(20.0 + DAY, suspicion={"a": 1.0}))
        assert told(made, "efapulse_node_suspicion_ratio", "node") == {"a": 1.0}

    def test_one_that_is_suspected_again_is_not_forgotten_by_its_first_clearing(self) -> None:
        made = Publisher("t", node_interval=DAY)
        made.node_seen("a", 1.0)
        for at, suspicion in ((10.0, {"a": 0.9}), (20.0, {}), (30.0, {"a": 0.8}), (20.0 + DAY, {"a": 0.7})):
            made.surveyed(Surveyed(at, suspicion=suspicion))
        assert told(made, "efapulse_node_suspicion_ratio", "node") == {"a": 0.7}

    def test_findings_are_as_many_as_there_are_now(self) -> None:
        made = Publisher("t")
        made.surveyed(Surveyed(1.0, findings={("node", "nccl"): 2, ("group", "nccl"): 0, ("node", "nixl"): 1}))
        assert told(made, "efapulse_findings", "kind", probe="nccl") == {"node": 2.0, "group": 0.0}
        made.surveyed(Surveyed(2.0, findings={("node", "nccl"): 0}))
        assert told(made, "efapulse_findings", "kind", probe="nccl") == {"node": 0.0}
        assert told(made, "efapulse_findings", "kind", probe="nixl") == {}


class TestCoverage:
    def test_ratio_nodes_and_age(self) -> None:
        made = Publisher("t")
        made.surveyed(Surveyed(1.0, coverage=[Covered("nccl", "same_leaf", 8, 6, 2, 500.0)]))
        where = {"probe": "nccl", "stratum": "same_leaf"}
        page = made.commit()
        assert value_of(page, "efapulse_coverage_ratio", **where) == 0.75
        assert value_of(page, "efapulse_coverage_oldest_measurement_timestamp_seconds", **where) == 500.0
        assert told(made, "efapulse_coverage_nodes", "state", **where) == {"measured": 6.0, "waiting": 2.0, "left_out": 2.0}

    def test_where_no_node_counts_there_is_no_ratio(self) -> None:
        made = Publisher("t")
        made.surveyed(Surveyed(1.0, coverage=[Covered("nccl", "all", 0, 0, 3, None)]))
        page = made.commit()
        assert series_of(page, "efapulse_coverage_ratio") == {}
        assert series_of(page, "efapulse_coverage_oldest_measurement_timestamp_seconds") == {}
        assert told(made, "efapulse_coverage_nodes", "state", probe="nccl")["left_out"] == 3.0

    def test_a_probe_that_is_gone_leaves_nothing(self) -> None:
        made = Publisher("t")
        made.surveyed(Surveyed(1.0, coverage=[Covered("nccl", "all", 4, 4, 0, 1.0), Covered("nixl", "all", 4, 4, 0, 1.0)]))
        made.surveyed(Surveyed(2.0, coverage=[Covered("nixl", "all", 4, 4, 0, 1.0)]))
        assert told(made, "efapulse_coverage_ratio", "probe") == {"nixl": 1.0}


class TestPairs:
    def healthy(self, made: Publisher, probe: str = "mooncake") -> dict[tuple[str, str], float]:
        found = series_of(made.commit(), "efapulse_pair_healthy", probe=probe)
        return {(dict(labels)["node"], dict(labels)["peer"]): value for labels, value in found.items()}

    def test_the_latest_pair_of_each_node(self) -> None:
        made = Publisher("t")
        for at, nodes in enumerate((("a", "b"), ("c", "d"), ("a", "c"))):
            made.run_finished(kv_verdict(nodes, finished=1000.0 + at))
        assert self.healthy(made) == {("a", "b"): 1.0, ("c", "d"): 1.0, ("a", "c"): 1.0}, "b and d have no newer pair"
        made.run_finished(kv_verdict(("d", "b"), finished=1004.0))
        assert self.healthy(made) == {("a", "c"): 1.0, ("d", "b"): 1.0}

    def test_every_pair_of_a_suspect(self) -> None:
        made = Publisher("t", node_interval=DAY)
        made.surveyed(Surveyed(1000.0, suspicion={"a": 0.5}))
        for at, peer in enumerate("bcd"):
            made.run_finished(kv_verdict(("a", peer), reason=Reason.BELOW_FLOOR, finished=1000.0 + at))
        for at, nodes in enumerate((("b", "c"), ("d", "e"))):
            made.run_finished(kv_verdict(nodes, finished=1010.0 + at))
        assert self.healthy(made) == {("a", "b"): 0.0, ("a", "c"): 0.0, ("a", "d"): 0.0, ("b", "c"): 1.0, ("d", "e"): 1.0}
        made.surveyed(Surveyed(1020.0, suspicion={}))
        assert self.healthy(made) == {("a", "d"): 0.0, ("b", "c"): 1.0, ("d", "e"): 1.0}

    def test_an_unknown_run_says_nothing(self) -> None:
        made = Publisher("t")
        made.run_finished(kv_verdict(finished=1000.0))
        made.run_finished(kv_verdict(reason=Reason.PREEMPTED, finished=2000.0))
        assert self.healthy(made) == {("a", "b"): 1.0}

    def test_bandwidth_at_the_largest_size_and_none_of_a_failed_run(self) -> None:
        made = Publisher("t")
        made.run_finished(kv_verdict(measurements=[measurement(rates=(1e9, 2e9, 3e9))], finished=1000.0))
        assert list(series_of(made.commit(), "efapulse_pair_bandwidth_bytes_per_second", node="a", peer="b").values()) == [3e9]
        made.run_finished(kv_verdict(measurements=[measurement()], reason=Reason.TCP_FALLBACK, finished=2000.0))
        assert series_of(made.commit(), "efapulse_pair_bandwidth_bytes_per_second") == {}
        assert self.healthy(made) == {("a", "b"): 0.0}

    def test_one_node_is_no_pair(self) -> None:
        made = Publisher("t")
        made.run_finished(kv_verdict(("a", "a")))
        made.run_finished(kv_verdict(("a",), "node", transport=None, measurements=[]))
        assert series_of(made.commit(), "efapulse_pair_healthy") == {}

    def test_the_cap_keeps_suspects_and_the_newest(self) -> None:
        made = Publisher("t", max_series=1_000_000)
        made.surveyed(Surveyed(0.0, suspicion={"n0": 0.9}))
        for i in range(LIMIT + 100):
            made.run_finished(kv_verdict((f"n{2 * i}", f"n{2 * i + 1}"), measurements=[], finished=1000.0 + i))
        shown = self.healthy(made)
        assert len(shown) == LIMIT
        assert ("n0", "n1") in shown
        assert ("n2", "n3") not in shown
        assert (f"n{2 * LIMIT + 198}", f"n{2 * LIMIT + 199}") in shown


class TestDevices:
    def test_distinct_devices_of_the_last_interval(self) -> None:
        made = Publisher("t", node_interval=DAY)
        for at, (devices, gpus) in enumerate(((NICS[:1], ["g0"]), (NICS[1:2], ["g1"]), (NICS[:1], ["g1"]))):
            made.run_finished(with_devices(kv_verdict(probe="nccl", finished=1000.0 + at), devices, gpus=gpus))
        assert told(made, "efapulse_node_devices_measured", "kind", node="a", probe="nccl") == {"efa": 2.0, "gpu": 2.0}
        made.surveyed(Surveyed(1001.5 + DAY))
        assert told(made, "efapulse_node_devices_measured", "kind", node="a", probe="nccl") == {"efa": 1.0, "gpu": 1.0}
        made.surveyed(Surveyed(2000.0 + DAY))
        assert told(made, "efapulse_node_devices_measured", "kind", node="a", probe="nccl") == {}

    def test_a_run_that_could_not_measure_used_none(self) -> None:
        made = Publisher("t")
        made.run_finished(with_devices(kv_verdict(reason=Reason.PREEMPTED), NICS))
        assert told(made, "efapulse_node_devices_measured", "kind", node="a") == {}

    def test_the_share_of_a_weak_device_in_what_its_own_rank_counted(self) -> None:
        made = Publisher("t")
        made.run_finished(with_devices(kv_verdict(), NICS, [100] * 5 + [20] + [100] * 2))
        shares = told(made, "efapulse_nic_share_ratio", "device", node="a")
        assert len(shares) == 4
        assert min(shares, key=lambda device: shares[device]) == NICS[5]
        assert shares[NICS[5]] == 20 / 90

    def test_witnesses_count_where_the_rank_did_not(self) -> None:
        made = Publisher("t")
        made.run_finished(kv_verdict(), {"a": {"x": 30.0, "y": 90.0, "z": 60.0}})
        assert told(made, "efapulse_nic_share_ratio", "device", node="a") == {"x": 0.5, "y": 1.5, "z": 1.0}
        assert told(made, "efapulse_nic_share_ratio", "device", node="b") == {}

    def test_a_run_over_one_device_of_many_says_nothing_of_the_others(self) -> None:
        made = Publisher("t")
        made.run_finished(kv_verdict(), {"a": {"x": 90.0, "y": 0.0, "z": 0.0}})
        made.run_finished(with_devices(kv_verdict(finished=2000.0), NICS[:1]), {"a": {NICS[0]: 90.0, "y": 90.0}})
        assert told(made, "efapulse_nic_share_ratio", "device", node="a") == {}

    def test_devices_that_the_worker_had_count_also_when_most_of_them_were_silent(self) -> None:
        made = Publisher("t")
        made.run_finished(with_devices(kv_verdict(), ["x", "y", "z"]), {"a": {"w": 1e9, "x": 90.0, "y": 0.0, "z": 0.0}})
        assert told(made, "efapulse_nic_share_ratio", "device", node="a") == {"x": 3.0, "y": 0.0, "z": 0.0}

    def test_devices_of_a_healthy_node_do_not_take_turns(self) -> None:
        pages = []
        for noise in itertools.permutations((1000, 1001, 1002, 1003, 1004, 1005)):
            made = Publisher("t")
            made.run_finished(with_devices(kv_verdict(), NICS[:6], noise))
            pages.append(set(told(made, "efapulse_nic_share_ratio", "device", node="a")))
        assert all(page == pages[0] for page in pages)


class TestBudget:
    def test_a_node_with_everything_at_once_has_at_most_40_series_and_bandwidth(self) -> None:
        made = Publisher("t")
        probes = ("mooncake", "nixl", "nccl", "uccl-ep")
        made.node_seen("a", 1.0, probes)
        made.node_described("a", "i-1", "p5.48xlarge", "z", "pg")
        made.run_finished(kv_verdict(("a",), "node", measurements=[], transport=None))
        for probe, (reason, transport) in itertools.product(probes, [(Reason.TCP_FALLBACK, "tcp"), (Reason.OK, "efa_rdma")]):
            run = kv_verdict(probe=probe, reason=reason, transport=transport)
            made.run_finished(with_devices(run, NICS, [1] * 8, ["g0", "g1"]))
        made.surveyed(Surveyed(10.0, {"a": ["age", "disk", "busy"]}, suspicion={"a": 0.5}))
        page = made.commit()
        mine = {name: count for name, count in (
            (family.name, len(series_of(page, family.name, node="a"))) for family in FAMILIES if "pair" not in family.name) if count}
        assert sum(mine.values()) <= 40
        assert mine["efapulse_node_gate_closed"] == 2
        assert mine["efapulse_node_bandwidth_bytes_per_second"] >= 3


def test_a_fleet_gate_starts_open() -> None:
    made = Publisher("t")
    assert told(made, "efapulse_gate_closed", "gate") == {"paused": 0.0, "quiet": 0.0, "stale_inventory": 0.0, "standby": 0.0}
    made.surveyed(Surveyed(1.0, held={"quiet": True}))
    assert told(made, "efapulse_gate_closed", "gate")["quiet"] == 1.0


def test_the_cluster_connection() -> None:
    made = Publisher("t", cluster=True)
    made.cluster_followed("no answer", 900.0, {"GET": 5, "POST": 2})
    made.cluster_followed("", 910.0, {"GET": 8, "POST": 2})
    page = made.commit()
    assert value_of(page, "efapulse_cluster_trouble") == 0.0
    assert value_of(page, "efapulse_inventory_complete_timestamp_seconds") == 910.0
    assert told(made, "efapulse_api_requests_total", "method") == {"GET": 8.0, "POST": 2.0, "PUT": 0.0, "PATCH": 0.0, "DELETE": 0.0}


def test_without_a_cluster_there_is_nothing_of_one() -> None:
    page = Publisher("t").commit()
    assert [series_of(page, f"efapulse_{name}") for name in ("cluster_trouble", "api_requests_total")] == [{}, {}]
