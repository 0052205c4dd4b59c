"""Trackers: has a node become slower than it was itself?"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.judge.change import CUT, DRIFT_FIRST, FIRST, LIMIT, Kind, Tracker

DAY = 86400.0
HALF = 1800.0
HALF_LIFE = 14 * DAY
T = 1.8e9
PER_DAY = round(DAY / HALF)


def watch(tracker: Tracker, runs: int, fault: Callable[[int], float] = lambda index: 0.0, *, seed: int = 1, noise: float = 0.012,
          start: float = T, teach: bool = True) -> list[tuple[int, Kind]]:
    """`runs` runs half an hour apart, `fault(index)` slower each (as a logarithm). Returns the alarms with the number of the run."""
    rng = random.Random(seed)
    found = []
    for index in range(runs):
        kind = tracker.observe(rng.gauss(0, noise) + fault(index), start + index * HALF, teach=teach, half_life=HALF_LIFE)
        if kind is not None:
            found.append((index, kind))
    return found


def learned(runs: int = 7 * PER_DAY) -> Tracker:
    tracker = Tracker("a")
    assert watch(tracker, runs) == []
    return tracker


END = T + 7 * DAY


class TestSteps:
    @pytest.mark.parametrize("seed", range(10))
    def test_eight_percent_are_found_within_six_hours(self, seed: int) -> None:
        tracker = learned()
        alarms = watch(tracker, 12, lambda _: math.log(0.92), seed=seed, start=END)
        assert [kind for _, kind in alarms] == ["step"]
        assert tracker.changed == "step"
        assert tracker.size == pytest.approx(-0.08, abs=0.02)

    def test_at_least_five_runs_say_so(self) -> None:
        tracker = learned()
        assert watch(tracker, 4, lambda _: -1.0, start=END) == []
        assert LIMIT["step"] > 4 * (CUT - 1.0)

    def test_a_bad_partner_now_and_then_is_no_change(self) -> None:
        tracker = learned()
        assert watch(tracker, 10 * PER_DAY, lambda index: -0.5 if index % 20 == 0 else 0.0, start=END) == []

    def test_it_is_told_once_while_it_lasts(self) -> None:
        tracker = learned()
        assert len(watch(tracker, 5 * PER_DAY, lambda _: -0.08, start=END)) == 1
        assert tracker.changed == "step"

    def test_it_is_over_when_the_level_is_back_for_some_runs(self) -> None:
        tracker = learned()
        watch(tracker, 2 * PER_DAY, lambda _: -0.08, start=END)
        watch(tracker, 5, start=END + 2 * DAY)
        assert tracker.raised
        watch(tracker, 20, start=END + 2 * DAY + 5 * HALF)
        assert tracker.dump().get("c") is None
        assert END + 2 * DAY < tracker.ended["step"] < END + 3 * DAY

    def test_becoming_faster_is_no_change(self) -> None:
        assert watch(learned(), 10 * PER_DAY, lambda _: 0.08, start=END) == []


class TestDrifts:
    @pytest.mark.parametrize("seed", range(6))
    def test_one_percent_a_day_is_found_within_four_days(self, seed: int) -> None:
        tracker = learned()
        alarms = watch(tracker, 4 * PER_DAY, lambda index: -0.01 * index / PER_DAY, seed=seed, start=END)
        assert [kind for _, kind in alarms] == ["drift"]

    def test_it_is_not_looked_for_before_the_centre_is_well_known(self) -> None:
        tracker = Tracker("a")
        watch(tracker, FIRST + 2)
        watch(tracker, DRIFT_FIRST - FIRST - 10, lambda _: -0.02, start=T + DAY)
        assert tracker.sums["drift"] == 0.0


class TestLearning:
    def test_false_alarms_are_rare(self) -> None:
        """200 nodes for a week from their first run on: 1,000 node-weeks are in tests/bench/baseline_step.py."""
        assert [alarm for seed in range(200) for alarm in watch(Tracker("a"), 7 * PER_DAY, seed=seed)] == []

    def test_heavy_tails_make_no_alarms(self) -> None:
        def wild(index: int) -> float:
            return -0.3 if random.Random(index).random() < 0.02 else 0.0

        assert [alarm for seed in range(40) for alarm in watch(Tracker("a"), 7 * PER_DAY, wild, seed=seed)] == []

    def test_bad_runs_never_teach(self) -> None:
        tracker = learned()
        before = (tracker.samples, tracker.centre, tracker.spread)
        watch(tracker, 50, lambda _: -0.5, start=END, teach=False)
        assert (tracker.samples, tracker.centre, tracker.spread) == before

    def test_nothing_is_learned_while_a_change_stands(self) -> None:
        tracker = learned()
        watch(tracker, 20, lambda _: -0.08, start=END)
        before = (tracker.samples, tracker.centre, tracker.spread)
        watch(tracker, 30 * PER_DAY, lambda _: -0.08, start=END + DAY)
        assert (tracker.samples, tracker.centre, tracker.spread) == before

    @given(st.floats(-30, 30))
    @settings(max_examples=50)
    def test_one_wild_value_hardly_moves_the_centre(self, wild: float) -> None:
        tracker = learned(3 * PER_DAY)
        before = tracker.centre
        tracker.observe(wild, END, teach=True, half_life=HALF_LIFE)
        assert abs(tracker.centre - before) < 0.1 * tracker.spread

    @given(st.lists(st.floats(-0.05, 0.05), min_size=FIRST, max_size=FIRST), st.randoms(use_true_random=False))
    @settings(max_examples=50)
    def test_the_order_of_the_first_runs_makes_no_difference(self, first: list[float], rng: random.Random) -> None:
        one, other = Tracker("a"), Tracker("a")
        shuffled = list(first)
        rng.shuffle(shuffled)
        for index, (x, y) in enumerate(zip(first, shuffled, strict=True)):
            one.observe(x, T + index, teach=True, half_life=HALF_LIFE)
            other.observe(y, T + index, teach=True, half_life=HALF_LIFE)
        assert one.dump() == other.dump()

    def test_a_new_level_upwards_becomes_normal_slowly(self) -> None:
        tracker = learned()
        watch(tracker, 2 * PER_DAY, lambda _: 0.05, start=END)
        assert tracker.centre < 0.02
        watch(tracker, 90 * PER_DAY, lambda _: 0.05, start=END + 2 * DAY)
        assert tracker.centre == pytest.approx(0.05, abs=0.005)


class TestUpgrades:
    def test_what_the_node_was_is_frozen_and_it_learns_anew(self) -> None:
        tracker = learned()
        tracker.upgraded("b", 6.4e10, END)
        assert (tracker.software, tracker.samples, tracker.changed) == ("b", 0, None)
        assert tracker.before is not None
        assert (tracker.before.software, tracker.before.value, tracker.before.samples) == ("a", 6.4e10, 7 * PER_DAY)
        assert watch(tracker, 7 * PER_DAY, lambda _: -0.2, start=END) == []

    def test_a_change_that_stood_is_over_with_the_software_it_was_seen_on(self) -> None:
        tracker = learned()
        watch(tracker, 20, lambda _: -0.08, start=END)
        tracker.upgraded("b", 6e10, END + DAY)
        assert tracker.changed is None
        assert tracker.ended == {"step": END + DAY}

    def test_what_was_never_learned_is_no_reference(self) -> None:
        tracker = Tracker("a")
        watch(tracker, FIRST - 1)
        tracker.upgraded("b", 6e10, END)
        assert tracker.before is None


class TestJournal:
    @pytest.mark.parametrize("runs", [0, 1, FIRST - 1, FIRST, 200])
    def test_what_is_dumped_goes_on_as_if_nothing_had_been(self, runs: int) -> None:
        tracker = Tracker("a")
        watch(tracker, runs)
        back = Tracker.load(json.loads(json.dumps(tracker.dump())))
        for index in range(300):
            x, at = -0.012 * math.sin(index) - index * 0.0005, T + (runs + index) * HALF
            assert tracker.observe(x, at, teach=True, half_life=HALF_LIFE) == back.observe(x, at, teach=True, half_life=HALF_LIFE)
        assert back.changed == tracker.changed
        assert back.centre == pytest.approx(tracker.centre, abs=1e-5)

    def test_a_change_and_a_reference_survive(self) -> None:
        tracker = learned()
        tracker.upgraded("b", 6.4e10, END)
        watch(tracker, 7 * PER_DAY, start=END)
        watch(tracker, 30, lambda _: -0.08, start=END + 7 * DAY)
        back = Tracker.load(json.loads(json.dumps(tracker.dump())))
        assert (back.changed, back.since, back.before) == (tracker.changed, tracker.since, tracker.before)

    def test_it_is_small(self) -> None:
        tracker = learned()
        tracker.upgraded("b" * 17, 6.4e10, END)
        watch(tracker, FIRST - 1, start=END)
        assert len(json.dumps(tracker.dump())) < 600

    @pytest.mark.parametrize("change", [
        {"f": [0.0] * 7}, {"f": [math.nan] + [0.01] * 7}, {"f": ["0"] * 8}, {"f": None}, {"n": -1}, {"n": 1.5}, {"n": True}, {"s": 5},
        {"s": "x" * 100}, {"c": "sideways"}, {"x": [0.0] * FIRST}, {"x": [math.inf]}, {"e": {"step": "soon"}}, {"e": {"other": 1.0}},
        {"r": ["a", -1.0, 0.01, 5, T]}, {"r": ["a", 1.0]}, {"r": 7}, {"b": "x"}, {"f": [0.0, 0.0, 0, 0, 0, 0, 0, 0]}, {"n": 3},
    ])
    def test_hostile_content_is_refused(self, change: dict[str, Any]) -> None:
        record = {**learned().dump(), **change}
        with pytest.raises((KeyError, TypeError, ValueError)):
            Tracker.load(record)
