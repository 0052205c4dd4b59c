"""Rounds: every pair once, nobody twice at a time, whoever joins or leaves."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.plan.rounds import Circle, Pair, between, leftovers, within


def ids(count: int, prefix: str = "n") -> list[str]:
    return [f"{prefix}{index:05d}" for index in range(count)]


def circle(count: int, offset: int = 0) -> Circle:
    made = Circle(offset=offset)
    made.update(ids(count))
    return made


def unordered(pairs: list[Pair]) -> list[frozenset[str]]:
    return [frozenset(pair) for pair in pairs]


@pytest.mark.parametrize("offset", [0, 5, 10**9])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 33, 64])
def test_a_cycle_holds_every_pair_exactly_once(count: int, offset: int) -> None:
    one = circle(count, offset)
    rounds = [one.advance() for _ in range(one.rounds)]
    assert one.rounds == count - 1 + count % 2
    assert all(len(pairs) == count // 2 for pairs in rounds)
    assert Counter(unordered(list(itertools.chain(*rounds)))) == Counter(map(frozenset, itertools.combinations(ids(count), 2)))


@given(st.integers(2, 60), st.integers(0, 200))
def test_no_node_is_twice_in_a_round(count: int, number: int) -> None:
    nodes = [one for pair in circle(count).pairs(number) for one in pair]
    assert len(nodes) == len(set(nodes))


def test_one_node_has_nobody_to_meet_and_none_is_no_error() -> None:
    assert circle(1).advance() == []
    assert circle(0).advance() == []
    assert circle(0).rounds == 0


def test_two_nodes_meet_in_every_round() -> None:
    one = circle(2)
    assert [unordered(one.advance()) for _ in range(3)] == [[frozenset(ids(2))]] * 3


def test_an_odd_node_sits_out_once_in_a_cycle() -> None:
    one = circle(7)
    out = [set(ids(7)) - {node for pair in one.advance() for node in pair} for _ in range(one.rounds)]
    assert Counter(itertools.chain(*out)) == Counter(ids(7))


@given(st.integers(4, 40), st.data())
def test_nodes_that_stay_meet_as_planned_whoever_leaves_and_joins(count: int, data: st.DataObject) -> None:
    one, undisturbed = circle(count), circle(count)
    gone = data.draw(st.sets(st.sampled_from(ids(count)), max_size=count // 2))
    after = data.draw(st.integers(1, one.rounds))
    met: list[frozenset[str]] = []
    planned: list[frozenset[str]] = []
    for number in range(one.rounds):
        if number == after:
            one.update([node for node in ids(count) if node not in gone] + ids(min(len(gone), 2), "new"))
        met += unordered(one.advance())
        planned += unordered(undisturbed.advance())
    stayed = [pair for pair in planned if not pair & gone]
    assert [pair for pair in met if pair in set(stayed)] == stayed
    assert max(Counter(met).values()) == 1


def test_who_joins_takes_the_place_of_who_left() -> None:
    one = circle(6)
    one.advance()
    one.update([*ids(6)[1:], "new"])
    assert one.places.count(None) == 0
    assert "new" in one.places


def test_when_too_many_wait_outside_the_cycle_begins_anew_with_all() -> None:
    one = circle(16)
    one.advance()
    assert one.update(ids(18))
    assert (one.round, one.extra) == (1, ids(18)[16:])
    assert one.update(ids(40))
    assert (one.round, one.extra, one.rounds) == (0, [], 39)


def test_the_next_cycle_closes_the_holes() -> None:
    one = circle(8)
    for _ in range(one.rounds):
        one.advance()
    one.update(ids(5))
    one.advance()
    assert (one.rounds, one.round) == (5, 1)


def test_nothing_changes_when_nobody_came_or_went() -> None:
    one = circle(6)
    one.moved = False
    assert not one.update(reversed(ids(6)))
    assert not one.moved


def test_leftovers_pair_first_come_first_served_and_may_refuse() -> None:
    assert leftovers(ids(5), lambda *_: True) == [("n00000", "n00001"), ("n00002", "n00003")]
    assert leftovers(ids(4), lambda one, other: (one, other) != ("n00000", "n00001")) == [("n00000", "n00002"), ("n00001", "n00003")]
    assert leftovers(ids(2), lambda *_: False) == []


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 50))
def test_a_round_within_groups_pairs_inside_them_only(sizes: list[int], number: int) -> None:
    groups = [ids(size, f"g{index}-") for index, size in enumerate(sizes)]
    pairs = within(groups, number)
    assert all(one.split("-")[0] == other.split("-")[0] for one, other in pairs)
    assert len(pairs) == sum(size // 2 for size in sizes)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.integers(0, 50))
def test_a_round_between_groups_is_a_largest_matching_across_them(sizes: list[int], number: int) -> None:
    groups = [ids(size, f"g{index}-") for index, size in enumerate(sizes)]
    pairs = between(groups, number)
    nodes = [one for pair in pairs for one in pair]
    assert len(nodes) == len(set(nodes))
    assert all(one.split("-")[0] != other.split("-")[0] for one, other in pairs)
    assert len(pairs) == min(sum(sizes) // 2, sum(sizes) - max(sizes))


def test_rounds_between_groups_change_partners() -> None:
    groups = [ids(4, "a"), ids(4, "b"), ids(4, "c")]
    seen = {frozenset(pair) for number in range(12) for pair in between(groups, number)}
    assert len(seen) > 20


def test_ten_thousand_nodes_are_one_round_of_five_thousand_pairs() -> None:
    pairs = circle(10_000).advance()
    assert len(pairs) == 5000
    assert len({one for pair in pairs for one in pair}) == 10_000
