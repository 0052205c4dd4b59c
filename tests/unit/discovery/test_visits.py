"""Visits: every pod within the interval by disjoint pairs, new pods first, zones kept together, coverage."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from exporter.discovery.model import EnginePod
from exporter.discovery.visits import Visits

INTERVAL = 1800.0


def engine(name: str, role: Any, life: str = "", **more: Any) -> EnginePod:
    return EnginePod(name, role, f"http://{name}", f"http://{name}/metrics", life or name, **more)


def fleet(prefill: int, decode: int) -> list[EnginePod]:
    return [*(engine(f"p{i}", "prefill") for i in range(prefill)), *(engine(f"d{i}", "decode") for i in range(decode))]


def drive(visits: Visits, pods: list[EnginePod], start: float, seconds: float, *, takes: float = 5.0) -> dict[str, list[float]]:
    """Let time pass in steps of five seconds; each visit takes `takes` seconds. When each pod was visited."""
    seen: dict[str, list[float]] = {pod.name: [] for pod in pods}
    flying: list[tuple[float, tuple[str, str]]] = []
    for step in range(0, int(seconds), 5):
        now = start + step
        for ends, lives in [one for one in flying if one[0] <= now]:
            flying.remove((ends, lives))
            visits.end(lives, now, met=True)
        visits.see(pods, now)
        pair = None if flying else visits.due(pods, now)
        if pair is not None:
            visits.begin(pair, now)
            flying.append((now + takes, pair.lives))
            for pod in (pair.prefill, pair.decode):
                seen[pod.name].append(now)
    return seen


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 4), (5, 2), (12, 11)])
def test_every_pod_is_visited_within_the_interval(prefill: int, decode: int) -> None:
    pods = fleet(prefill, decode)
    seen = drive(Visits(INTERVAL), pods, 1e6, 3 * INTERVAL)
    for name, times in seen.items():
        ends = [1e6, *times, 1e6 + 3 * INTERVAL]
        assert max(after - before for before, after in itertools.pairwise(ends)) <= INTERVAL, name


def test_the_whole_product_is_covered_in_time() -> None:
    pods = fleet(3, 4)
    visits = Visits(INTERVAL)
    drive(visits, pods, 1e6, 6 * INTERVAL)
    assert visits.pair_coverage(pods) == 1.0


def test_those_that_were_there_from_the_beginning_are_visited_at_the_pace_of_the_interval() -> None:
    seen = drive(Visits(INTERVAL), fleet(10, 10), 1e6, INTERVAL)
    times = sorted({at for visits in seen.values() for at in visits})
    assert len(times) in (13, 14)
    assert min(after - before for before, after in itertools.pairwise(times)) >= INTERVAL * 0.075 - 5, "a restart of ours starts no wave"


def test_a_pod_that_joins_is_visited_at_once() -> None:
    pods = fleet(1, 2)
    visits = Visits(INTERVAL)
    drive(visits, pods, 1e6, 60)
    pods.append(engine("d9", "decode"))
    visits.see(pods, 1e6 + 61)
    pair = visits.due(pods, 1e6 + 61)
    assert pair is not None
    assert pair.decode.name == "d9"


def test_a_restarted_pod_goes_first_and_meets_its_partner_anew() -> None:
    pods = fleet(2, 3)
    visits = Visits(INTERVAL)
    drive(visits, pods, 1e6, INTERVAL)
    pods[3] = engine("d1", "decode", life="d1/again")
    visits.see(pods, 1e6 + INTERVAL)
    pair = visits.due(pods, 1e6 + INTERVAL + 1)
    assert pair is not None
    assert (pair.decode.name, pair.first_contact) == ("d1", True)


def test_first_contact_is_over_once_they_have_met() -> None:
    pods = fleet(1, 1)
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    first = visits.due(pods, 1)
    assert first is not None
    assert first.first_contact
    visits.begin(first, 1)
    visits.end(first.lives, 2, met=False)
    again = visits.due(pods, 1 + INTERVAL)
    assert again is not None
    assert again.first_contact, "no answer came: they have not met"
    visits.end(again.lives, 3 + INTERVAL, met=True)
    third = visits.due(pods, 5 * INTERVAL)
    assert third is not None
    assert not third.first_contact


def test_pods_that_are_not_ready_or_busy_are_left_alone() -> None:
    pods = [engine("p", "prefill"), engine("d", "decode", ready=False)]
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    assert visits.due(pods, 1) is None
    pods[1] = engine("d", "decode")
    assert visits.due(pods, 1, busy=["p"]) is None
    assert visits.due(pods, 1) is not None


def test_a_mixed_pod_never_meets_itself() -> None:
    pods = [engine("m", "mixed")]
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    assert visits.due(pods, 1) is None
    assert visits.pair_coverage(pods) is None
    both = [engine("m", "mixed"), engine("n", "mixed")]
    visits.see(both, 0)
    pair = visits.due(both, 1)
    assert pair is not None
    assert pair.prefill.name != pair.decode.name


def test_pairs_stay_in_one_zone_where_they_can() -> None:
    pods = [engine("p", "prefill", node="a"), engine("far", "decode", node="b"), engine("near", "decode", node="a2")]
    zones = {"a": "z1", "a2": "z1", "b": "z2"}
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    for step in range(4):
        pair = visits.due(pods, step * INTERVAL, zone=lambda pod: zones[pod.node or ""])
        assert pair is not None
        assert pair.decode.name == "near"
        visits.begin(pair, step * INTERVAL)
        visits.end(pair.lives, step * INTERVAL + 1, met=True)


def test_coverage_counts_ready_pods_and_gives_new_ones_time() -> None:
    pods = fleet(1, 2)
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    assert visits.pod_coverage(pods[1:], 10) is None, "nobody is late yet"
    pair = visits.due(pods, 1)
    assert pair is not None
    visits.begin(pair, 1)
    visits.end(pair.lives, 2, met=True)
    assert visits.pod_coverage(pods[1:], 10) == 1.0
    assert visits.pod_coverage(pods[1:], INTERVAL + 1) == 0.5
    assert visits.pod_coverage(pods[1:], 2 * INTERVAL + 1) == 0.0
    assert visits.pair_coverage(pods) == 0.5


def test_a_visit_that_was_not_made_is_no_visit() -> None:
    pods = fleet(1, 1)
    visits = Visits(INTERVAL)
    visits.see(pods, 0)
    pair = visits.due(pods, 1)
    assert pair is not None
    visits.begin(pair, 1)
    assert visits.due(pods, 2) is None
    visits.left_out(pair)
    assert visits.pod_coverage(pods[:1], INTERVAL + 1) == 0.0
    pods.append(engine("d1", "decode"))
    visits.see(pods, 3)
    joined = visits.due(pods, 3)
    assert joined is not None
    visits.begin(joined, 3)
    visits.left_out(joined)
    assert visits.due(pods, 4) is not None, "who has just joined still comes first"


def test_what_left_is_forgotten() -> None:
    pods = fleet(2, 2)
    visits = Visits(INTERVAL)
    drive(visits, pods, 0, 600)
    visits.see(pods[:1], 601)
    assert (len(visits._pods), len(visits._turns), len(visits._pairs), len(visits._since)) == (1, 1, 0, 1), 'the rest left'
    visits.end((pods[1].life, pods[2].life), 602, met=True)
    assert (len(visits._pods), len(visits._pairs)) == (1, 0), "the end of a visit brings nobody back"


def test_a_clock_that_was_set_back_stops_nothing() -> None:
    pods = fleet(1, 1)
    visits = Visits(INTERVAL)
    drive(visits, pods, 1e6, 60)
    assert visits.due(pods, 1e6 - 86400) is not None
