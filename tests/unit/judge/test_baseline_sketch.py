"""Sketches: a robust median and spread that forget slowly."""

from __future__ import annotations

import json
import math
import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.judge.sketch import MOST_BINS, WIDTH, Sketch

DAY = 86400.0
HALF_LIFE = 14 * DAY
T = 1.8e9

figures = st.floats(1e6, 1e12)


def sketch(values: list[float], at: float = T, half_life: float = HALF_LIFE) -> Sketch:
    made = Sketch(half_life)
    for value in values:
        made.add(value, at)
    return made


@given(st.lists(figures, min_size=1, max_size=60))
def test_the_centre_is_the_median_within_half_a_bin(values: list[float]) -> None:
    low, high = sorted(values)[(len(values) - 1) // 2], sorted(values)[len(values) // 2]
    assert low * math.exp(-WIDTH) <= sketch(values).centre <= high * math.exp(WIDTH)


@given(st.lists(figures, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_figures_of_one_moment_makes_no_difference(values: list[float], rng: random.Random) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert sketch(shuffled).dump() == sketch(values).dump()


@given(st.lists(st.floats(0.97e11, 1.03e11), min_size=20, max_size=60), figures)
def test_one_wild_value_does_not_move_the_centre_beyond_its_neighbours(values: list[float], wild: float) -> None:
    ordered = sorted(values)
    middle = len(ordered) // 2
    found = sketch([*values, wild]).centre
    assert ordered[middle - 1] * (1 - WIDTH) <= found <= ordered[min(middle + 1, len(ordered) - 1)] * (1 + WIDTH)


def test_a_fifth_of_wild_values_moves_neither_centre_nor_spread_far() -> None:
    rng = random.Random(1)
    good = [1e11 * (1 + rng.gauss(0, 0.01)) for _ in range(400)]
    clean, dirty = sketch(good), sketch(good + [2e10] * 100)
    assert clean.centre == pytest.approx(1e11, rel=0.003)
    assert clean.spread == pytest.approx(0.01, rel=0.2)
    assert dirty.centre == pytest.approx(1e11, rel=0.006)
    assert dirty.spread < 0.03


def test_it_forgets_by_half_in_a_half_life() -> None:
    made = sketch([1e9] * 100)
    assert made.samples(T) == pytest.approx(100)
    assert made.samples(T + HALF_LIFE) == pytest.approx(50)
    assert made.samples(T + 3 * HALF_LIFE) == pytest.approx(12.5)


def test_what_is_new_wins_in_the_end_but_not_at_once() -> None:
    made = sketch([1e9] * 100)
    for day in range(100):
        made.add(2e9, T + day * DAY)
        if day == 5:
            assert made.centre == pytest.approx(1e9, rel=0.01)
    assert made.centre == pytest.approx(2e9, rel=0.01)


def test_years_of_figures_neither_overflow_nor_grow() -> None:
    made = Sketch(DAY)
    rng = random.Random(2)
    for day in range(4000):
        made.add(1e11 * (1 + rng.gauss(0, 0.01)), T + day * DAY)
    assert made.samples(T + 4000 * DAY) == pytest.approx(1.0, rel=0.05)
    assert made.centre == pytest.approx(1e11, rel=0.03)
    assert len(json.dumps(made.dump())) < 1000


def test_figures_all_over_the_place_stay_within_the_bins() -> None:
    made = Sketch(HALF_LIFE)
    rng = random.Random(3)
    for _ in range(5000):
        made.add(10 ** rng.uniform(3, 12), T)
    assert len(made.dump()["bins"]) <= MOST_BINS


@given(st.lists(st.tuples(figures, st.floats(0, 100 * DAY)), min_size=1, max_size=50))
def test_what_is_dumped_is_loaded_the_same(values: list[tuple[float, float]]) -> None:
    made = Sketch(HALF_LIFE)
    for value, after in values:
        made.add(value, T + after)
    back = Sketch.load(json.loads(json.dumps(made.dump())), HALF_LIFE)
    now = T + 100 * DAY
    assert back.samples(now) == pytest.approx(made.samples(now), rel=1e-3, abs=MOST_BINS * 1e-3)
    assert back.last == made.last
    for (place, weight), (known, before) in zip(back.dump()["bins"], made.dump()["bins"], strict=True):
        assert place == known
        assert weight == pytest.approx(before, rel=1e-3)


@given(st.lists(figures, min_size=1, max_size=30), st.lists(figures, min_size=1, max_size=30))
def test_two_that_are_joined_are_as_one(left: list[float], right: list[float]) -> None:
    joined = sketch(left)
    joined.join(sketch(right))
    assert joined.centre == pytest.approx(sketch(left + right).centre)


def test_a_sketch_of_another_day_joins_with_its_age() -> None:
    old, new = sketch([1e9] * 100), sketch([2e9] * 60, T + HALF_LIFE)
    old.join(new)
    assert old.samples(T + HALF_LIFE) == pytest.approx(110)
    assert old.centre == pytest.approx(2e9, rel=0.01)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_bandwidth_is_not_learned(value: float) -> None:
    with pytest.raises(ValueError, match="cannot be learned from"):
        Sketch(HALF_LIFE).add(value, T)


def test_nothing_known_is_no_centre() -> None:
    with pytest.raises(ValueError, match="nothing is learned"):
        _ = Sketch(HALF_LIFE).centre
    assert median([Sketch(HALF_LIFE).samples(T)]) == 0.0


@pytest.mark.parametrize("data", [
    {"at": T}, {"at": "x", "bins": [[1, 1.0]]}, {"at": math.nan, "bins": [[1, 1.0]]}, {"at": T, "bins": []}, {"at": T, "bins": {}},
    {"at": T, "bins": [[1, -1.0]]}, {"at": T, "bins": [[1, math.inf]]}, {"at": T, "bins": [[10**9, 1.0]]}, {"at": T, "bins": [[1.5, 1.0]]},
    {"at": T, "bins": [[True, 1.0]]}, {"at": T, "bins": [[index, 1.0] for index in range(MOST_BINS + 1)]}, {"at": T, "bins": [[1]]},
    {"at": T, "bins": [None]}, {"at": T, "bins": [[1, "heavy"]]},
])
def test_hostile_content_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Sketch.load(data, HALF_LIFE)
