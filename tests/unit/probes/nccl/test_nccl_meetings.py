"""Who meets whom, and what the matrix of links says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.nccl import meetings
from probes.nccl.merge import Merged, measurements, payload
from probes.nccl.outcome import judge
from probes.nccl.params import NcclParams
from probes.reasons import Reason

MIB = 1 << 20


@given(st.integers(2, 40))
def test_a_circle_holds_every_pair_once_in_rounds_without_a_shared_gpu(ranks: int) -> None:
    rounds = meetings.circle(ranks)
    pairs = [(one, other) for turn in rounds for one, other, _ in turn]
    assert sorted(pairs) == [(one, other) for one in range(ranks) for other in range(one + 1, ranks)]
    for turn in rounds:
        busy = [rank for one, other, _ in turn for rank in (one, other)]
        assert len(set(busy)) == len(busy) >= ranks - 1
    assert len(rounds) == ranks - 1 + ranks % 2


def test_rails_lead_to_the_partner_worker_one_after_the_other_or_together() -> None:
    each = meetings.turns(gpus=2, workers=4, rails="each", pairs="off")
    assert each == [[(0, 2, "rail0"), (4, 6, "rail0")], [(1, 3, "rail1"), (5, 7, "rail1")]]
    (together,) = meetings.turns(gpus=2, workers=4, rails="together", pairs="off")
    assert sorted(together) == sorted(each[0] + each[1])
    assert meetings.turns(gpus=8, workers=1, rails="each", pairs="off") == [], "a worker alone has no partner"


def test_one_pair_after_the_other_is_as_many_turns_as_pairs() -> None:
    assert [len(turn) for turn in meetings.turns(gpus=8, workers=1, rails="off", pairs="each")] == [1] * 28
    assert [len(turn) for turn in meetings.turns(gpus=8, workers=1, rails="off", pairs="together")] == [4] * 7


@pytest.mark.parametrize(("name", "ranks"), [("pair0-7", (0, 7)), ("pair12-3", (12, 3)), ("rail0", None), ("", None), ("in_place", None),
                                             ("pair-", None), ("pair1-x", None)])
def test_names_of_pairs(name: str, ranks: tuple[int, int] | None) -> None:
    assert meetings.ranks_of(name) == ranks


def matrix(slow: dict[str, float], *, gpus: int = 8, workers: int = 1, inside: float = 1e-4, between: float = 1e-3) -> list[Merged]:
    """Rows of all pairs; `slow` multiplies the time of the pairs it names."""
    plan = meetings.turns(gpus=gpus, workers=workers, rails="off", pairs="together")
    rows = []
    for one, other, name in (meeting for turn in plan for meeting in turn):
        mean = (inside if one // gpus == other // gpus else between) * slow.get(name, 1.0)
        rows.append(Merged("sendrecv", name, 16 * MIB, mean, (mean, mean), 0, 10, None))
    return rows


def verdict(rows: list[Merged], *, ranks: int = 8, nodes: int = 1) -> tuple[Reason, str]:
    return judge(rows, NcclParams(gpus="all", operations=["sendrecv"], sizes=[16 * MIB], pairs="together"), ranks=ranks, nodes=nodes)


def test_a_slow_link_is_named() -> None:
    reason, message = verdict(matrix({"pair2-5": 3.0}))
    assert reason is Reason.NIC_IMBALANCE
    assert message.startswith("sendrecv pair2-5: 55.92 GB/s at 16MiB, the median of 28 links is 167.77")


def test_links_between_nodes_are_not_held_against_those_inside() -> None:
    rows = matrix({}, gpus=4, workers=2)
    assert verdict(rows, nodes=2) == (Reason.OK, "")
    reason, message = verdict(matrix({"pair1-6": 2.0}, gpus=4, workers=2), nodes=2)
    assert (reason, message.partition(":")[0]) == (Reason.NIC_IMBALANCE, "sendrecv pair1-6")


def test_two_links_do_not_say_which_one_is_slow() -> None:
    rows = [Merged("sendrecv", f"rail{rail}", MIB, 1e-3 * (1 + 9 * rail), (1e-3,), 0, 10, None) for rail in range(2)]
    assert verdict(rows, nodes=2) == (Reason.OK, "")


def test_bytes_of_pairs() -> None:
    rows = matrix({}, gpus=8)
    assert payload(rows, gpus=8, workers=1) == 28 * 2 * 10 * 16 * MIB
    mine = [row for row in matrix({}, gpus=4, workers=2) if (pair := meetings.ranks_of(row.variant)) and min(pair) < 4]
    assert payload(mine, gpus=4, workers=2) == 16 * 10 * 16 * MIB, "only what crosses leaves the worker"


def test_a_matrix_keeps_few_columns() -> None:
    found = measurements(matrix({}), 8)
    assert len(found) == 28
    assert all(set(one.latency) == {"p50", "p99"} for one in found)


def test_nccl_tests_has_no_matrix() -> None:
    with pytest.raises(ValueError, match="pairs need engine nccl4py"):
        NcclParams(engine="nccl-tests", pairs="each")
