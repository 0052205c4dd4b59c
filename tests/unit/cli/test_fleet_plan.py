"""`efa-pulse plan` for a fleet that is only assumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exporter.cli import run
from exporter.cli.fleetplan import assumed
from exporter.config import Config
from probes.efa import instances


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(["plan", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out, _ = plan(capsys, *arguments, "--json")
    assert status == 0
    return json.loads(out)


def test_every_node_of_a_type_meets_another_in_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--assume", "p5en.48xlarge=6", "--rounds", "5")
    rounds = [one for one in found["rounds"] if one["probe"] == "mooncake"]
    met = {tuple(sorted(pair)) for one in rounds for pair in one["pairs"]}
    assert [len(one["pairs"]) for one in rounds] == [3] * 5
    assert len(met) == 15, "five rounds are all pairs of six"
    assert [one["begins"] for one in rounds] == sorted(one["begins"] for one in rounds)


def test_an_odd_one_is_named_in_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--assume", "p5.48xlarge=5", "--rounds", "1")
    (one,) = [one for one in found["rounds"] if one["probe"] == "nixl"]
    assert len(one["pairs"]) == 2
    assert len(one["alone"]) == 1
    assert set(one["alone"]).isdisjoint(name for pair in one["pairs"] for name in pair)


def test_types_are_never_paired_with_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--assume", "p5.48xlarge=4,p5en.48xlarge=1")
    assert all(a.split("-")[0] == b.split("-")[0] for one in found["rounds"] for a, b in one["pairs"])
    lonely = [one for one in found["left_out"] if one["probe"] == "mooncake"]
    assert [(one["node"], one["lasting"]) for one in lonely] == [("p5en-00000", True)]
    assert "there is no other node like it" in lonely[0]["why"]


def test_cost_is_that_of_the_configured_probes() -> None:
    found = assumed(Config.model_validate({"probes": {"nccl": {"enabled": True, "transport": "efa"}}}), "p5.48xlarge=16", 1)
    costs = {one.probe: one for one in found.forecast.probes}
    gpus = instances.lookup("p5.48xlarge")
    assert gpus is not None
    assert costs["nccl"].gpu_share == pytest.approx(costs["nccl"].cost.gpu_seconds / (6 * 3600 * (gpus.gpus or 0)))
    assert costs["mooncake"].gpu_share == 0
    assert found.forecast.gpu_share == pytest.approx(sum(one.gpu_share for one in costs.values()))


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = plan(capsys, "--assume", "p5en.48xlarge=64,p5.48xlarge=1")
    assert status == 0
    assert "An assumed fleet of p5en.48xlarge=64,p5.48xlarge=1: 65 EFA nodes" in out
    assert "and 26 more" in out
    assert "left out now" in out
    assert "plan --explain all" in out


def test_explain_names_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = plan(capsys, "--assume", "p5.48xlarge=1", "--explain", "p5-00000")
    assert status == 0
    assert "there is no other node like it" in " ".join(out.split())


@pytest.mark.parametrize(("arguments", "said"), [
    (("--assume", "p5.48xlarge"), "write TYPE=COUNT"),
    (("--assume", "p5.48xlarge=0"), "write TYPE=COUNT"),
    (("--assume", "p5.48xlarge=999999"), "up to 20000 nodes"),
    (("--assume", "p5.48xlarge=²"), "write TYPE=COUNT"),
    (("--assume", "m5.large=3"), "m5.large is no instance type with EFA"),
    (("--assume", "p5.48xlarge=3,p5.48xlarge=4"), "named twice"),
    (("--assume", ""), "write TYPE=COUNT"),
    (("--assume", "p5.48xlarge=2", "--context", "x"), "does not go with"),
    (("--assume", "p5.48xlarge=2", "--explain", "nobody"), "there is no EFA node nobody"),
    (("--explain", "all"), "inventory.mode"),
])
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    status, _, err = plan(capsys, *arguments)
    assert status == 64
    assert said in err
    assert "Traceback" not in err
