"""Baselines: what good runs teach, what they ask of the next one, how nodes stand, what survives."""

from __future__ import annotations

import copy
import functools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from usual import DAY, HALF, NEW, OLD, T, book, ended, fleet, rounds, tell

from exporter.judge.baseline import MOST_NORMS, NODE, NORM, Baselines, NodeStanding, figures_of, headline
from exporter.judge.change import FIRST
from exporter.judge.norm import software_of
from probes.reasons import Reason

RATE = 60e9
NODES = fleet()
ALIKE = dict.fromkeys(NODES, RATE)


def ratio(standing: NodeStanding, to: str, probe: str = "mooncake") -> float | None:
    return next((one.value for one in standing.ratios if one.to == to and one.probe == probe), None)


def taught(count: int = 40, **options: object) -> Baselines:
    made = book(**options)
    assert all(verdict.reason is Reason.OK for verdict in rounds(made, NODES, ALIKE, count))
    return made


@functools.cache
def week() -> Baselines:
    return taught(5 * 48)


def learned() -> Baselines:
    """Eight equal nodes after five days."""
    return copy.deepcopy(week())


LATER = T + 7 * DAY


class TestLimits:
    def test_until_enough_runs_are_known_a_slow_run_is_ok(self) -> None:
        made = book(samples=20)
        run = ended(("n0", "n1"), {"write": RATE}, T)
        for index in range(19):
            tell(made, NODES, ended(("n0", "n1"), {"write": RATE}, T + index))
        assert made.limits(run, NODES) == {}
        assert tell(made, NODES, ended(("n0", "n1"), {"write": RATE / 3}, T + 20)).reason is Reason.OK

    def test_then_it_is_below_baseline_and_says_where_that_comes_from(self) -> None:
        verdict = tell(taught(), NODES, ended(("n0", "n1"), {"write": 0.8 * RATE}, LATER))
        assert verdict.reason is Reason.BELOW_BASELINE
        assert verdict.outcome.value == "degraded"
        proof = next(proof for proof in verdict.proofs if proof.name == "speed")
        assert proof.holds is False
        assert "baseline: 15% below 60.06 GB/s, the median of" in proof.says
        assert "p5.48xlarge, same_leaf, software" in verdict.comparisons[0].source
        assert verdict.comparisons[0].basis == "baseline"

    def test_a_run_within_the_margin_is_ok(self) -> None:
        assert tell(taught(), NODES, ended(("n0", "n1"), {"write": 0.87 * RATE}, LATER)).reason is Reason.OK

    def test_figures_that_differ_much_by_themselves_have_a_wider_margin(self) -> None:
        made = book()
        for index in range(60):
            tell(made, NODES, ended(("n0", "n1"), {"write": RATE * (1 + 0.1 * math.sin(index))}, T + index * HALF))
        assert tell(made, NODES, ended(("n0", "n1"), {"write": 0.75 * RATE}, T + DAY * 2)).reason is Reason.OK

    @pytest.mark.parametrize("other", [{"size": 1 << 20}, {"batch": 16}, {"probe": "nixl"}, {"versions": NEW}, {"memory": "gpu"}])
    def test_another_kind_of_run_has_a_baseline_of_its_own(self, other: dict[str, Any]) -> None:
        assert taught().limits(ended(("n0", "n1"), {"write": RATE}, LATER, **other), NODES) == {}

    def test_so_have_another_distance_operation_and_instance_type(self) -> None:
        near, far = (ended(names, {"write": RATE}, LATER) for names in (("n0", "n1"), ("n0", "n7")))
        made = taught()
        assert {norm.key.stratum for norm in made.norms.values()} == {"same_leaf", "same_spine"}
        assert made.limits(near, NODES)
        assert made.limits(far, NODES)
        assert made.limits(ended(("n0", "n1"), {"read": RATE}, LATER), NODES) == {}
        assert made.limits(near, fleet(kind="p5en.48xlarge")) == {}

    def test_without_baselines_nothing_is_asked_and_nothing_learned(self) -> None:
        made = taught(enabled=False)
        assert (made.norms, made.nodes) == ({}, {})

    def test_a_run_of_a_node_that_nobody_knows_is_left_alone(self) -> None:
        made = taught()
        run = ended(("n0", "stranger"), {"write": 1e9}, LATER)
        assert made.limits(run, NODES) == {}
        assert tell(made, NODES, run).reason is Reason.OK


class TestTeaching:
    @pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.OK])
    def test_only_good_runs_teach(self, reason: Reason) -> None:
        made = taught()
        before = {key.id: norm.dump() for key, norm in made.norms.items()}
        samples = {node: probes["mooncake"].tracker.samples for node, probes in made.nodes.items()}
        tell(made, NODES, ended(("n0", "n1"), {"write": 0.95 * RATE}, LATER, reason=reason))
        assert {key.id: norm.dump() for key, norm in made.norms.items()} == before
        assert {node: probes["mooncake"].tracker.samples for node, probes in made.nodes.items()} == samples

    def test_a_run_below_the_baseline_does_not_teach_it(self) -> None:
        made = taught()
        for index in range(500):
            tell(made, NODES, ended(("n0", "n1"), {"write": 0.7 * RATE}, LATER + index * HALF))
        norm = next(norm for norm in made.norms.values() if norm.key.stratum == "same_leaf")
        assert norm.sketch.centre == pytest.approx(RATE, rel=0.005)

    @given(st.floats(1e6, 1e17))
    @settings(deadline=None, max_examples=30)
    def test_one_wild_value_does_not_move_the_baseline(self, wild: float) -> None:
        made = learned()
        tell(made, NODES, ended(("n0", "n1"), {"write": wild}, T + DAY))
        assert all(norm.sketch.centre == pytest.approx(RATE, rel=0.006) for norm in made.norms.values() if norm.sketch.samples(T) > 5)

    def test_the_order_of_the_runs_of_a_round_makes_no_difference_to_a_baseline(self) -> None:
        runs = [ended((f"n{index}", f"n{index + 1}"), {"write": RATE * (1 + index / 100)}, T) for index in range(0, 8, 2)]
        one, other = book(), book()
        for made, order in ((one, runs), (other, runs[::-1])):
            for run in order:
                tell(made, NODES, run)
        assert {key: norm.dump()["sketch"] for key, norm in one.norms.items()} == {
            key: norm.dump()["sketch"] for key, norm in other.norms.items()}

    def test_what_ranks_measured_alike_counts_by_the_slowest(self) -> None:
        run = ended(("n0", "n1"), {"write": RATE}, T)
        both = (run.results[0], run.results[1].model_copy(update={"measurements": [
            run.results[0].measurements[0].model_copy(update={"bandwidth": [RATE / 2]})]}))
        assert list(figures_of(both).values()) == [RATE / 2]

    def test_the_main_figure_is_the_largest_size_of_the_first_operation(self) -> None:
        assert headline([("write", 8, "dram", "goodput"), ("read", 1, "dram", "goodput"), ("read", 4, "dram", "goodput")]) == (
            "read", 4, "dram", "goodput")

    def test_the_number_of_baselines_is_bounded(self) -> None:
        made = book()
        for index in range(MOST_NORMS + 50):
            tell(made, NODES, ended(("n0", "n1"), {"write": RATE}, T + index, size=1 + index))
        assert len(made.norms) == MOST_NORMS
        assert min(norm.key.bytes for norm in made.norms.values()) == 51


class TestStanding:
    def test_before_anything_is_learned_a_node_stands_to_its_hardware_only(self) -> None:
        made = book()
        tell(made, NODES, ended(("n0", "n1"), {"write": RATE}, T))
        standing = made.standing("i-0", T)
        assert [one.to for one in standing.ratios] == ["ceiling"]
        assert ratio(standing, "ceiling") == pytest.approx(RATE / 400e9)

    def test_a_slow_node_stands_below_its_baseline_and_its_peers_and_its_partners_do_not(self) -> None:
        made = learned()
        rounds(made, NODES, {**ALIKE, "n3": 0.9 * RATE}, 7, start=LATER)
        now = LATER + 7 * HALF
        assert ratio(made.standing("i-3", now), "baseline") == pytest.approx(0.9, abs=0.01)
        assert ratio(made.standing("i-3", now), "peers") == pytest.approx(0.9, abs=0.01)
        for other in ("i-0", "i-1", "i-5"):
            assert ratio(made.standing(other, now), "baseline") == pytest.approx(1.0, abs=0.01)
            assert ratio(made.standing(other, now), "peers") == pytest.approx(1.0, abs=0.01)

    def test_peers_are_told_already_in_the_second_round(self) -> None:
        made = book(samples=10_000)
        rounds(made, NODES, {**ALIKE, "n3": 0.8 * RATE}, 6)
        standing = made.standing("i-3", T + 6 * HALF)
        assert ratio(standing, "baseline") is None
        assert ratio(standing, "peers") == pytest.approx(0.8, abs=0.02)

    def test_a_degraded_run_counts_for_the_ratio(self) -> None:
        made = learned()
        for partner in ("n1", "n2", "n4"):
            assert tell(made, NODES, ended(("n3", partner), {"write": RATE / 2}, LATER)).outcome.value == "degraded"
        assert ratio(made.standing("i-3", LATER), "baseline") == pytest.approx(0.5, abs=0.01)


class TestChanges:
    def test_a_node_that_became_slower_is_named_and_nobody_else(self) -> None:
        made = learned()
        assert made.found == []
        rounds(made, NODES, {**ALIKE, "n3": 0.92 * RATE}, 12, start=LATER)
        assert [(change.node, change.probe, change.kind) for change in made.found] == [("i-3", "mooncake", "step")]
        assert made.found[0].size == pytest.approx(-0.08, abs=0.04)
        now = LATER + 12 * HALF
        assert made.standing("i-3", now).changes == {("mooncake", "step"): True}
        assert made.standing("i-4", now).changes == {}

    def test_when_it_recovers_the_change_is_shown_as_over_for_the_interval(self) -> None:
        made = learned()
        rounds(made, NODES, {**ALIKE, "n3": 0.9 * RATE}, 12, start=LATER)
        rounds(made, NODES, ALIKE, 48, start=LATER + DAY)
        now = LATER + 2 * DAY
        assert made.standing("i-3", now).changes == {("mooncake", "step"): False}
        assert made.standing("i-3", now + 2 * DAY).changes == {}

    def test_when_all_become_slower_nobody_is_named_and_the_level_says_so(self) -> None:
        made = learned()
        rounds(made, NODES, dict.fromkeys(NODES, 0.9 * RATE), 2 * 48, start=LATER)
        assert made.found == []
        assert [level for _, level in made.heads()] == pytest.approx([0.9, 0.9], abs=0.02)

    def test_the_partner_of_a_changed_node_keeps_its_baseline(self) -> None:
        made = learned()
        rounds(made, NODES, {**ALIKE, "n3": 0.9 * RATE}, 10 * 48, start=LATER)
        assert [change.node for change in made.found] == ["i-3"]
        norm = next(iter(made.norms.values()))
        assert norm.sketch.centre == pytest.approx(RATE, rel=0.005)

    def test_a_slow_node_from_the_start_is_normal_for_itself_and_shown_against_its_peers(self) -> None:
        made = book()
        rounds(made, NODES, {**ALIKE, "n3": 0.93 * RATE}, 5 * 48)
        assert made.found == []
        assert ratio(made.standing("i-3", T + 5 * DAY), "peers") == pytest.approx(0.93, abs=0.01)


class TestUpgrades:
    def test_an_upgrade_accuses_nobody_and_keeps_what_was_before_visible(self) -> None:
        made = learned()
        assert all(verdict.reason is Reason.OK
                   for verdict in rounds(made, NODES, dict.fromkeys(NODES, 0.7 * RATE), 2 * 48, start=LATER, versions=NEW))
        assert made.found == []
        new = software_of(ended(("n0", "n1"), {"write": 1.0}, T, versions=NEW).results)[0]
        after = [norm for norm in made.norms.values() if norm.key.software == new]
        assert after
        for norm in after:
            assert norm.before is not None
            assert norm.sketch.centre / norm.before.centre == pytest.approx(0.7, abs=0.01)
            assert "libfabric 1.22" in norm.before.says
        tracker = made.nodes["i-0"]["mooncake"].tracker
        assert tracker.before is not None
        assert tracker.before.value == pytest.approx(RATE, rel=0.01)

    def test_the_frozen_reference_does_not_move_while_other_nodes_go_on_with_the_old_software(self) -> None:
        made = learned()
        tell(made, NODES, ended(("n0", "n1"), {"write": RATE}, LATER, versions=NEW))
        frozen = [norm.before for norm in made.norms.values() if norm.before is not None]
        rounds(made, NODES, dict.fromkeys(NODES, 1.05 * RATE), 48, start=LATER)
        assert [norm.before for norm in made.norms.values() if norm.before is not None] == frozen

    def test_a_pair_of_old_and_new_has_a_baseline_of_its_own(self) -> None:
        mixed = ended(("n0", "n1"), {"write": RATE}, T, versions={"n0": OLD, "n1": NEW})
        fingerprint, says = software_of(mixed.results)
        assert fingerprint.count("+") == 1
        assert "1.22" in says
        assert "1.23" in says
        assert taught().limits(mixed, NODES) == {}

    def test_after_it_has_learned_the_new_level_a_step_is_found_again(self) -> None:
        made = learned()
        rounds(made, NODES, dict.fromkeys(NODES, 0.9 * RATE), 3 * 48, start=LATER, versions=NEW)
        rounds(made, NODES, {**dict.fromkeys(NODES, 0.9 * RATE), "n2": 0.8 * RATE}, 12, start=LATER + 3 * DAY, versions=NEW)
        assert [change.node for change in made.found] == ["i-2"]


class TestJournal:
    def kept(self, made: Baselines) -> dict[str, dict[str, Any]]:
        records, _ = made.changed_records()
        loaded: dict[str, dict[str, Any]] = json.loads(json.dumps(records))
        return loaded

    def again(self, records: dict[str, dict[str, Any]]) -> tuple[Baselines, list[str]]:
        made = book()
        problems = made.load(((key[len(NODE):], record) for key, record in records.items() if key.startswith(NODE)),
                             ((key[len(NORM):], record) for key, record in records.items() if key.startswith(NORM)))
        return made, problems

    def test_a_new_leader_goes_on_as_if_nothing_had_been(self) -> None:
        made = learned()
        back, problems = self.again(self.kept(made))
        assert problems == []
        slow = {**ALIKE, "n3": 0.92 * RATE}
        for each in (made, back):
            rounds(each, NODES, slow, 12, start=LATER)
        assert [(change.node, change.kind, round(change.size, 4)) for change in back.found] == [
            (change.node, change.kind, round(change.size, 4)) for change in made.found]
        assert [back.standing(f"i-{index}", LATER + DAY / 2) == made.standing(f"i-{index}", LATER + DAY / 2) or
                ratio(back.standing(f"i-{index}", LATER + DAY / 2), "baseline") ==
                pytest.approx(ratio(made.standing(f"i-{index}", LATER + DAY / 2), "baseline") or 0, rel=1e-3)
                for index in range(8)] == [True] * 8

    def test_a_standing_change_and_ratios_are_there_at_once(self) -> None:
        made = learned()
        rounds(made, NODES, {**ALIKE, "n3": 0.92 * RATE}, 12, start=LATER)
        back, _ = self.again(self.kept(made))
        standing = back.standing("i-3", LATER + 12 * HALF)
        assert standing.changes == {("mooncake", "step"): True}
        assert ratio(standing, "baseline") == pytest.approx(0.92, abs=0.01)

    def test_only_what_changed_is_written(self) -> None:
        made = learned()
        self.kept(made)
        assert self.kept(made) == {}
        tell(made, NODES, ended(("n0", "n1"), {"write": RATE}, LATER))
        assert {key.partition("/")[0] for key in self.kept(made)} == {"baseline", "norm"}

    def test_a_node_takes_less_than_a_kilobyte_a_probe(self) -> None:
        assert max(len(json.dumps(record)) for key, record in self.kept(learned()).items() if key.startswith(NODE)) < 1000
        made = book()
        rounds(made, NODES, ALIKE, FIRST - 1)
        assert max(len(json.dumps(record)) for key, record in self.kept(made).items() if key.startswith(NODE)) < 1000

    def test_nodes_that_left_are_forgotten_and_a_name_that_comes_again_starts_clean(self) -> None:
        made = learned()
        self.kept(made)
        made.keep(["i-0", "i-1"])
        _, gone = made.changed_records()
        assert gone == {f"baseline/i-{index}" for index in range(2, 8)}
        assert made.standing("i-3", LATER) == NodeStanding((), {})

    def test_a_reset_is_asked_for_once_also_over_a_restart(self) -> None:
        made = learned()
        made.asked_anew("i-3", "monday")
        assert "i-3" not in made.nodes
        rounds(made, NODES, ALIKE, 10, start=LATER)
        back, problems = self.again(self.kept(made))
        assert problems == []
        back.asked_anew("i-3", "monday")
        assert back.nodes["i-3"]["mooncake"].tracker.samples > 0
        back.asked_anew("i-3", "tuesday")
        assert "i-3" not in back.nodes

    @pytest.mark.parametrize("hostile", [
        {}, {"key": 1}, {"key": {}, "sketch": {}}, {"key": {"probe": "x" * 5000}}, {"key": None},
        {"before": {"centre": -1}}, {"before": []}, {"sketch": 5}, {"sketch": {"at": 1e9, "bins": "x"}},
    ])
    def test_a_hostile_baseline_is_left_out_with_a_word(self, hostile: dict[str, Any]) -> None:
        records = self.kept(taught())
        name = next(key for key in records if key.startswith(NORM))
        records[name] = {**records[name], **hostile} if hostile else {}
        back, problems = self.again(records)
        assert [problem.startswith(f"baseline '{name[len(NORM):]}'") for problem in problems] == [True]
        assert len(back.norms) == len([key for key in records if key.startswith(NORM)]) - 1
        assert len(back.nodes) == 8

    def test_a_baseline_under_a_wrong_name_is_left_out(self) -> None:
        records = self.kept(taught())
        name = next(key for key in records if key.startswith(NORM))
        records[NORM + "0" * 16] = records.pop(name)
        assert len(self.again(records)[1]) == 1

    @pytest.mark.parametrize("hostile", [
        {"mooncake": {}}, {"mooncake": 7}, {"mooncake": {"t": {}}}, {"mooncake": {"t": {"s": "a", "n": 5, "f": [1]}}},
        {"reset": {}}, {"reset": 3}, {"mooncake": {"t": {"s": "a", "n": 0, "f": [0, 0.01, 0, 0, 0, 0, 0, 0]}, "g": [1], "p": []}},
        {"mooncake": {"t": {"s": "a", "n": 0, "f": [0, 0.01, 0, 0, 0, 0, 0, 0]}, "g": ["w", 1, "dram", "busbw"],
                      "p": [["a", 1, "x", 0, 0]]}},
    ])
    def test_a_hostile_node_begins_anew_with_a_word(self, hostile: dict[str, Any]) -> None:
        records = self.kept(taught())
        records["baseline/i-3"] = hostile
        back, problems = self.again(records)
        assert len(problems) == 1
        assert problems[0].startswith("the baseline of node 'i-3' cannot be read")
        assert "i-3" not in back.nodes
        rounds(back, NODES, ALIKE, 5, start=LATER)
        assert "i-3" in back.nodes
