"""Stages and their gates: what is taken, what a bad or an unmeasured stage means for the next, what the whole is worth."""

from __future__ import annotations

import itertools

import pytest

from exporter.cli.exits import Exit, of_outcomes
from exporter.judge.judge import judge
from exporter.plan.gates import GATE_NAMES, Closed
from exporter.runs import Run, RunSpec, missing_result
from exporter.validation import SOFT_GATES, STAGES, Stage, StageError, State, Step, Validation, choose, forced, holding, validate, waves
from probes.reasons import Reason
from probes.result import Measurement

NAMES = [stage.name for stage in STAGES]


def step(reason: Reason, message: str = "", probe: str = "mooncake") -> Step:
    spec = RunSpec("r", probe, "a--b", ("a", "b"), "any", 60.0)
    row = Measurement(operation="write", memory="dram", kind="goodput", bytes=[1 << 20], bandwidth=[1e9])
    results = tuple(missing_result(spec, rank, reason, message, 1.0, 2.0).model_copy(update={"measurements": [row]}) for rank in range(2))
    return Step.judged(judge(Run(spec, results, 1.0, 3.5)))


def taken(outcomes: dict[str, Reason], *, go_on: bool = False, chosen: list[Stage] | None = None) -> tuple[Validation, list[str]]:
    measured: list[str] = []

    def measure(stage: Stage) -> list[Step]:
        measured.append(stage.name)
        return [step(outcomes.get(stage.name, Reason.OK))]

    return validate(("a", "b"), STAGES if chosen is None else chosen, measure, go_on=go_on), measured


def test_layers_are_taken_from_the_node_up() -> None:
    result, measured = taken({})
    assert measured == ["node", "kv", "nccl", "uccl-ep", "canary"]
    assert result.state is State.OK
    assert of_outcomes(result.outcomes) is Exit.OK


@pytest.mark.parametrize("reason", [Reason.TCP_FALLBACK, Reason.BELOW_FLOOR])
def test_a_bad_stage_closes_the_gate(reason: Reason) -> None:
    result, measured = taken({"kv": reason})
    assert measured == ["node", "kv"]
    assert [one.state for one in result.stages][2:] == [State.BLOCKED] * 3
    assert "stage kv is bad" in result.stages[-1].steps[0].why
    assert result.state.bad
    assert of_outcomes(result.outcomes) is Exit.BAD


def test_with_continue_the_gate_stays_open_and_the_whole_stays_bad() -> None:
    result, measured = taken({"node": Reason.DEVICES_MISSING}, go_on=True)
    assert measured == NAMES
    assert result.state is State.FAILED


def test_a_stage_that_could_not_measure_leaves_the_gate_open_and_the_whole_unproven() -> None:
    result, measured = taken({"kv": Reason.UNSCHEDULED})
    assert measured == NAMES
    assert result.state is State.UNKNOWN
    assert of_outcomes(result.outcomes) is Exit.UNKNOWN


def test_bad_outweighs_could_not_measure() -> None:
    result, _ = taken({"node": Reason.UNSCHEDULED, "kv": Reason.WRONG_CONTENT})
    assert result.state is State.FAILED
    assert of_outcomes(result.outcomes) is Exit.BAD


def test_skipped_stages_are_shown_and_do_not_count() -> None:
    result, measured = taken({"kv": Reason.TCP_FALLBACK}, chosen=[STAGES[0]])
    assert measured == ["node"]
    assert [one.state for one in result.stages] == [State.OK, *[State.SKIPPED] * 4]
    assert of_outcomes(result.outcomes) is Exit.OK


def test_nothing_measured_is_not_good() -> None:
    result = validate(("a",), [STAGES[2]], lambda _: [Step("nccl", "a", State.SKIPPED, "no GPU")])
    assert result.state is State.SKIPPED
    assert of_outcomes(result.outcomes) is Exit.UNKNOWN


def test_the_worst_step_speaks_for_its_stage() -> None:
    result = validate(("a",), [STAGES[1]], lambda _: [step(Reason.OK), step(Reason.TCP_FALLBACK), step(Reason.UNSCHEDULED)])
    assert result.stages[1].state is State.FAILED


def test_a_step_says_what_is_wrong_and_what_to_do() -> None:
    one = step(Reason.TCP_FALLBACK, "the payload went by TCP")
    assert one.why == "tcp_fallback: the payload went by TCP"
    assert one.action
    assert one.seconds == pytest.approx(2.5)
    document = one.to_json()
    assert document["verdict"]["outcome"] == "failed"
    assert (document["state"], document["reason"]) == ("failed", "tcp_fallback")


@pytest.mark.parametrize(("only", "skip", "expected"), [
    (None, None, {"node": ("node",), "kv": ("mooncake", "nixl"), "nccl": ("nccl",), "uccl-ep": ("uccl-ep",), "canary": ("canary",)}),
    (["kv"], None, {"kv": ("mooncake", "nixl")}),
    (["kv"], ["nixl"], {"kv": ("mooncake",)}),
    (["nixl", "node"], None, {"node": ("node",), "kv": ("nixl",)}),
    (None, ["kv", "canary", "nccl"], {"node": ("node",), "uccl-ep": ("uccl-ep",)}),
])
def test_stages_are_chosen_by_their_names_or_their_probes(only: list[str] | None, skip: list[str] | None,
                                                          expected: dict[str, object]) -> None:
    assert {stage.name: probes for stage, probes in choose(only, skip)} == expected


@pytest.mark.parametrize(("only", "skip"), [(["kvv"], None), (None, ["gpu"]), (["kv"], ["kv"]), ([], None)])
def test_an_unknown_stage_or_none_left_names_those_there_are(only: list[str] | None, skip: list[str] | None) -> None:
    with pytest.raises(StageError, match=r"node, kv \(mooncake, nixl\), nccl"):
        choose(only, skip)


@pytest.mark.parametrize("count", range(8))
def test_pairs_cover_every_node_and_never_share_one_within_a_wave(count: int) -> None:
    nodes = [f"n{index}" for index in range(count)]
    found = waves(nodes, single=False)
    for wave in found:
        members = list(itertools.chain.from_iterable(wave))
        assert len(members) == len(set(members))
        assert all(len(pair) == 2 for pair in wave)
    covered = {node for wave in found for pair in wave for node in pair}
    assert covered == (set(nodes) if count > 1 else set())
    assert [target for wave in waves(nodes, single=True) for target in wave] == [(node,) for node in nodes]


def test_force_opens_gates_of_schedules_and_never_what_somebody_forbade() -> None:
    assert set(GATE_NAMES) >= SOFT_GATES
    soft, hard = Closed("quiet", "night"), [Closed("excluded", "disk swap"), Closed("schedulable", "the node is cordoned")]
    assert holding([soft, *hard], force=False) == [soft, *hard]
    assert holding([soft, *hard], force=True) == hard
    assert holding([soft], force=True) == []
    assert forced([soft])
    assert not forced([soft, *hard])
