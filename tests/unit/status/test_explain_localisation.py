"""`status` and `explain` over localisation: the control loop itself on the simulated fabric, with faults whose place is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.control import Control
from exporter.launch.fabric import Layout
from exporter.launch.faults import Fault, FaultKind
from exporter.simulation.driver import Simulation
from exporter.simulation.scenario import Scenario
from exporter.status import Snapshot, StatusBoard, explain, status

SLOW, PARTNERS = "sim-00003", 12
HOUR = 3600.0


def watched(folder: Path, faults: tuple[Fault, ...], *, nodes: int = PARTNERS, seconds: float = HOUR,
            until: Callable[[StatusBoard], bool] | None = None, **more: Any) -> tuple[Snapshot, float]:
    """What the board of a simulated fleet shows at the end; the loop's own wiring, with time that is simulated."""
    boards: list[StatusBoard] = []

    class Watched(Control):
        def __init__(self, *args: Any, **options: Any) -> None:
            boards.append(StatusBoard(clock=options["clock"], monotonic=options["clock"], pace=20.0))
            super().__init__(*args, **{**options, "board": boards[0]})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exporter.simulation.driver.Control", Watched)
        simulation = Simulation(Scenario(Layout(nodes), seconds=seconds, faults=faults, **more), folder)
        simulation.run()
    return boards[0].snapshot, simulation.clock()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, float]:
    return watched(tmp_path_factory.mktemp("slow"), (Fault(FaultKind.SLOW_NODE, SLOW),))


def section(document: dict[str, Any], probe: str | None = None) -> dict[str, Any]:
    """The section of one probe; without one that in which a node or a pair is named, the first one of a pair of nodes if none is."""
    pairs = [one for one in document["sections"] if one["probe"] != "node"]
    if probe is None:
        return next((one for one in pairs for standing in one["standing"] if standing["state"] == "named"), pairs[0])
    return next(one for one in document["sections"] if one["probe"] == probe)


def test_the_slow_node_is_named_with_its_score_and_the_partners_that_agree(slow: tuple[Snapshot, float]) -> None:
    document = explain(slow[0], SLOW, slow[1])
    assert (document["kind"], document["outcome"]) == ("node", "bad")
    assert document["nodes"][0]["instance_type"] == "p5.48xlarge"
    (standing,) = section(document)["standing"]
    assert standing["state"] == "named"
    (found,) = standing["findings"]
    assert (found["kind"], found["subjects"]) == ("node", [SLOW])
    assert len(found["partners"]) >= 2
    assert found["score"] > 0.95
    best = standing["hypotheses"][0]
    assert (best["kind"], best["subject"]) == ("node", SLOW)
    assert all(one["score"] < best["score"] for one in standing["hypotheses"] if one["kind"] == "partner")


def test_its_partners_are_cleared_and_the_history_says_by_whom(slow: tuple[Snapshot, float]) -> None:
    snapshot, now = slow
    (found,) = section(explain(snapshot, SLOW, now))["standing"][0]["findings"]
    for partner in found["partners"]:
        document = explain(snapshot, partner, now)
        assert document["outcome"] == "ok", f"{partner} is innocent"
        assert section(document)["standing"][0]["state"] in ("good", "cleared")
    said = [one for one in section(explain(snapshot, SLOW, now))["history"] if one["what"] == "cleared"]
    assert {one["node"] for one in said} & set(found["partners"])


def test_what_the_other_engine_sees_of_it_is_explained_and_not_cleared(slow: tuple[Snapshot, float]) -> None:
    document = explain(slow[0], SLOW, slow[1])
    found = section(document)["probe"]
    other = section(document, "mooncake" if found == "nixl" else "nixl")
    assert other["run"]["outcome"] == "degraded"
    assert other["standing"][0]["state"] in ("explained", "suspect", "named")
    if other["standing"][0]["state"] == "explained":
        assert any(f"the finding of {found} on {SLOW}" in line for line in other["would_change"])


def test_what_would_clear_it_is_what_the_rule_needs(slow: tuple[Snapshot, float]) -> None:
    told = "\n".join(section(explain(slow[0], SLOW, slow[1]))["would_change"])
    assert f"2 runs that pass, each with another partner, clear {SLOW}" in told
    assert "must reach at least" in told
    (threshold, *_) = section(explain(slow[0], SLOW, slow[1]))["thresholds"]
    assert (threshold["source"], threshold["share"] < 1) == ("simulated fabric", True)


def test_names_of_nodes_stand_where_localisation_has_instance_ids(slow: tuple[Snapshot, float]) -> None:
    snapshot, now = slow
    document = explain(snapshot, SLOW, now)
    identity = document["nodes"][0].pop("instance_id")
    for one in document["sections"]:
        if one["run"]:
            one["run"]["labels"].pop("instance-ids", None)
        if one["held"]:
            for run in (one["held"]["last"], one["held"]["before"]):
                if run:
                    run["labels"].pop("instance-ids", None)
    assert identity not in json.dumps(document)


def test_the_status_document_has_the_finding_and_only_that(slow: tuple[Snapshot, float]) -> None:
    document = json.loads(json.dumps(status(slow[0], slow[1])))
    assert document["health"] == "bad"
    assert {one["subjects"][0] for one in document["findings"]} == {SLOW}
    named = {row["node"] for row in document["nodes"] if row["state"] == "named"}
    assert named == {SLOW}
    assert {row["state"] for row in document["nodes"] if row["node"] != SLOW} <= {"good", "cleared", "unknown"}
    assert all(row["last"] is None for row in document["nodes"] if row["state"] == "unknown")
    assert {one["probe"] for one in document["rounds"]} >= {"mooncake", "nixl"}
    assert document["counts"]["nodes"] == PARTNERS


def test_a_pair_of_it_shows_the_round_it_was_part_of(slow: tuple[Snapshot, float]) -> None:
    snapshot, now = slow
    run = section(explain(snapshot, SLOW, now))["run"]
    document = explain(snapshot, run["target"], now)
    assert (document["kind"], document["outcome"]) == ("pair", "bad")
    first = section(document)["partners"][0]
    assert first["run_id"] == run["run_id"]
    assert first["round"] is not None
    assert first["stratum"] in ("same_leaf", "same_spine", "cross_spine", "cross")
    assert {one["node"] for one in section(document)["standing"]} == set(run["nodes"])


def test_two_nodes_alone_are_told_apart_by_nobody_and_that_is_said(tmp_path: Path) -> None:
    snapshot, now = watched(tmp_path, (Fault(FaultKind.SLOW_NODE, "sim-00000"),), nodes=2, seconds=2 * HOUR)
    document = explain(snapshot, "sim-00000--sim-00001", now)
    assert document["outcome"] == "bad"
    path = section(document)["path"]
    assert path["finding"]["kind"] == "pair"
    assert "cannot be told" in path["finding"]["says"]
    assert "pass" in "\n".join(section(document)["would_change"])
    assert "sim-00000 would be" not in json.dumps(document), "neither of the two is preferred"


def test_a_suspect_says_what_holds_back_its_name(tmp_path: Path) -> None:
    """All nodes of a node group fail: nothing comparable passes, so nobody is named one by one."""
    snapshot, now = watched(tmp_path, (Fault(FaultKind.CLOSED_SECURITY_GROUP, "all"),), seconds=1200.0)
    document = status(snapshot, now)
    assert document["health"] == "bad"
    assert {one["kind"] for one in document["findings"]} == {"group"}
    failed = document["findings"][0]["members"]
    told = section(explain(snapshot, failed[0], now), document["findings"][0]["probe"])
    assert told["standing"][0]["state"] == "group"
    assert any("ends when most of the last runs that touch it pass" in line for line in told["would_change"])


def test_a_run_that_could_not_measure_leaves_the_verdict_and_blames_nobody(tmp_path: Path) -> None:
    snapshot, now = watched(tmp_path, (Fault(FaultKind.UNKNOWN, "sim-00005", start=1000.0, severity=1.0),))
    document = status(snapshot, now)
    assert document["findings"] == document["suspects"] == []
    rows = [row for row in document["nodes"] if row["node"] == "sim-00005" and row["last"]["outcome"] == "unknown"]
    assert rows
    assert all(row["state"] == "good" and row["unknowns"] >= 1 for row in rows if row["conclusive"])
