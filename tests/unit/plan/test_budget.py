"""The budget: one run always fits into full accounts, they refill over a day, and a suspect may overdraw once."""

from __future__ import annotations

import pytest

from exporter.config.planning import Budget
from exporter.inventory import Node, Room
from exporter.plan.budget import DAY, Books
from exporter.plan.cost import Cost

NODE = Node(instance_id="i-1", name="n1", gpu=Room(8))
GIB = 1 << 30
RUN = Cost(wall=10.0, window=3.0, bytes=4 * GIB, gpus=1)


def books(**settings: object) -> Books:
    return Books(Budget.model_validate({"node_bytes_per_day": 10 * GIB, **settings}))


def test_runs_fit_until_the_account_is_spent() -> None:
    kept = books()
    for _ in range(2):
        assert kept.closed(NODE, RUN, 0.0) is None
        kept.charge(NODE, RUN, 0.0)
    found = kept.closed(NODE, RUN, 0.0)
    assert found is not None
    assert found.gate == "budget_bytes"
    assert "8 GiB of 10 GiB a day are spent, one run costs 4 GiB" in found.why


def test_accounts_refill_evenly_over_a_day() -> None:
    kept = books()
    for _ in range(2):
        kept.charge(NODE, RUN, 0.0)
    assert kept.closed(NODE, RUN, 0.19 * DAY) is not None
    assert kept.closed(NODE, RUN, 0.21 * DAY) is None


def test_one_run_always_fits_into_full_accounts_however_much_it_costs() -> None:
    weekly = Cost(wall=300.0, window=60.0, bytes=500 * GIB, gpus=8)
    kept = books(gpu_time=0.0001)
    assert kept.closed(NODE, weekly, 0.0) is None
    kept.charge(NODE, weekly, 0.0)
    assert kept.closed(NODE, RUN, DAY) is not None


def test_a_suspect_may_overdraw_by_one_day() -> None:
    kept = books()
    for _ in range(4):
        assert kept.closed(NODE, RUN, 0.0, urgent=True) is None
        kept.charge(NODE, RUN, 0.0)
    assert kept.closed(NODE, Cost(1, 1, 5 * GIB), 0.0, urgent=True) is not None


@pytest.mark.parametrize(("settings", "gate"), [
    ({"node_bytes_per_day": 5 * GIB}, "budget_bytes"),
    ({"node_bytes_per_day": 500 * GIB, "gpu_time": 0.00002}, "budget_gpu"),
    ({"node_bytes_per_day": 500 * GIB, "fabric_time": 0.00005}, "budget_fabric"),
])
def test_each_account_closes_its_own_gate(settings: dict[str, object], gate: str) -> None:
    kept = books(**settings)
    kept.charge(NODE, RUN, 0.0)
    found = kept.closed(NODE, RUN, 0.0)
    assert found is not None
    assert found.gate == gate


def test_gpu_time_is_a_share_of_all_gpus_of_the_node() -> None:
    assert books(gpu_time=0.001).allowance(NODE)["gpu"] == pytest.approx(0.001 * 8 * DAY)
    assert books(gpu_time=0.001).allowance(Node(instance_id="x", name="x", gpu=Room(1)))["gpu"] == pytest.approx(0.001 * DAY)


def test_what_a_run_did_not_use_is_given_back() -> None:
    kept = books()
    kept.charge(NODE, RUN, 0.0)
    kept.settle(NODE, RUN, Cost(wall=8.0, window=0.3, bytes=GIB, gpus=1), 0.0)
    assert kept.dump("i-1") == {"bytes": [float(GIB), 0.0], "gpu": [8.0, 0.0], "fabric": [0.3, 0.0]}


def test_the_fleet_has_an_account_of_its_own_where_it_is_limited() -> None:
    kept = books(node_bytes_per_day=500 * GIB, fleet_bytes_per_day=10 * GIB)
    for index in range(2):
        kept.charge(Node(instance_id=f"i-{index}", name=f"n{index}"), RUN, 0.0)
    found = kept.closed(NODE, RUN, 0.0)
    assert found is not None
    assert "the fleet's 10 GiB a day are spent" in found.why
    assert kept.closed(NODE, RUN, 0.0, urgent=True) is None


def test_accounts_survive_a_restart() -> None:
    kept = books()
    kept.charge(NODE, RUN, 5.0)
    again = books()
    again.load("i-1", kept.dump("i-1"))
    assert again.dump("i-1") == kept.dump("i-1")
    again.forget("i-1")
    assert again.dump("i-1") == {}


def test_a_clock_that_goes_back_refills_nothing() -> None:
    kept = books()
    kept.charge(NODE, RUN, 1000.0)
    kept.charge(NODE, RUN, 0.0)
    assert kept.dump("i-1")["bytes"] == [8.0 * GIB, 1000.0]
