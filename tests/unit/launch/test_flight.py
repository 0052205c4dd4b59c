"""A run on its way: when it is over, and what its ranks get when no more is to come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter.config.kubernetes import Kubernetes
from exporter.launch import flight as flights
from exporter.launch.flight import CANCEL_SECONDS, IMAGE_PATIENCE, LATE_SECONDS, Flight, Stage, job_view
from exporter.launch.manifest import GATHER, WORKER, job_deadline, record
from exporter.launch.podstate import Container, Ending, PodView
from exporter.runs import RunSpec
from probes.reasons import ECHOES, Outcome, Reason, worst
from probes.result import Phase, Result, died_in, encode

CONFIG = Kubernetes()
SPEC = RunSpec("run-1", "mooncake", "a--b", ("a", "b"), "any", 30.0)
T = 1000.0


def document(rank: int, reason: Reason = Reason.OK, node: str = "a") -> Result:
    return Result.model_validate({"run_id": "run-1", "probe": "mooncake", "target": "a--b", "rank": rank, "world_size": 2, "node": node,
                                  "started": 1.0, "finished": 2.0, "reason": reason, "phases": {"measure": 1.0}})


def message(rank: int, reason: Reason = Reason.OK, node: str = "a") -> str:
    return encode(document(rank, reason, node)).decode()


def pod(rank: int, *, node: str | None = None, worker: Container | None = None, gather: Container | None = None, **more: object) -> PodView:
    containers = tuple(one for one in (gather, worker) if one is not None)
    base = PodView(uid=f"u{rank}", name=f"p{rank}", job="j", rank=rank, node=node, phase="Running" if worker else "Pending", created=T,
                   bound=T if node else None, containers=containers)
    return replace(base, **more)  # type: ignore[arg-type]


def running(rank: int, node: str) -> PodView:
    return pod(rank, node=node, worker=Container(WORKER, started=T + 5))


def ended(rank: int, node: str, text: str = "", code: int = 0) -> PodView:
    return pod(rank, node=node, worker=Container(WORKER, started=T + 5, finished=T + 9, exit_code=code, message=text))


def pulling(rank: int, node: str, waiting: str = "PodInitializing", gather: Container | None = None) -> PodView:
    return pod(rank, node=node, worker=Container(WORKER, waiting=waiting), gather=gather, phase="Pending")


@pytest.fixture
def flight() -> Flight:
    return Flight(SPEC, "j", began=T, created=0.0, stage=Stage.FLYING)


def reasons(found: dict[int, Ending] | None) -> dict[int, Reason] | None:
    return None if found is None else {rank: one.reason for rank, one in found.items()}


class TestItGoesWell:
    def test_each_rank_has_its_own_result_and_the_pull_is_told(self, flight: Flight) -> None:
        flight.see(ended(0, "b", message(0, node="b")), 9.0)
        assert set(flight.endings) == {0}
        flight.see(ended(1, "a", message(1, node="a")), 9.5)
        assert flight.complete
        run = flight.finish({}, T + 10)
        assert [(one.rank, one.node, one.reason, one.phases) for one in run.results] == [
            (0, "b", Reason.OK, {Phase.PULL: 5.0, Phase.MEASURE: 1.0}), (1, "a", Reason.OK, {Phase.PULL: 5.0, Phase.MEASURE: 1.0})]
        assert (run.started, run.finished) == (T, T + 10)

    def test_a_pod_seen_again_changes_nothing(self, flight: Flight) -> None:
        flight.see(ended(0, "a", message(0)), 9.0)
        flight.see(replace(ended(0, "a", message(0)), gone=True), 10.0)
        assert flight.endings[0].reason is Reason.OK

    def test_nothing_is_over_before_its_time(self, flight: Flight) -> None:
        assert flight.overdue(CONFIG, 59.0) is None
        flight.see(running(0, "a"), 5.0)
        flight.see(running(1, "b"), 5.0)
        assert flight.overdue(CONFIG, 5.0 + SPEC.deadline + LATE_SECONDS) is None


class TestNoPlace:
    def test_ranks_without_a_node_are_the_cause_and_the_others_only_waited(self, flight: Flight) -> None:
        flight.see(pulling(0, "a"), 1.0)
        flight.see(pod(1, unscheduled="Unschedulable: 1 Insufficient vpc.amazonaws.com/efa"), 1.0)
        assert flight.overdue(CONFIG, 59.9) is None
        found = flight.overdue(CONFIG, 60.0)
        assert reasons(found) == {0: Reason.RANK_MISSING, 1: Reason.NO_CAPACITY}
        run = flight.finish(found or {}, T + 60)
        assert worst([one.reason for one in run.results]) is Reason.NO_CAPACITY, "the cause speaks for the run"
        assert [one.node for one in run.results] == ["a", "b"]

    def test_a_rank_without_a_pod_is_explained_by_events(self, flight: Flight) -> None:
        flight.see(pulling(1, "a"), 1.0)
        found = flight.overdue(CONFIG, 60.0)
        assert found is not None
        assert (found[0].reason, found[0].message) == (Reason.LAUNCH_FAILED, ""), "an empty message asks for the Job's events"
        assert [one.node for one in flight.finish(found, T).results] == ["b", "a"], "the node that is left is the missing rank's"


class TestImages:
    def test_a_failing_pull_gets_some_patience_and_then_all_ranks_that_fail_say_so(self, flight: Flight) -> None:
        flight.see(pulling(0, "a", "ErrImagePull: not found"), 10.0)
        flight.see(pulling(1, "b", "ImagePullBackOff: Back-off"), 20.0)
        assert flight.overdue(CONFIG, 10.0 + IMAGE_PATIENCE) is None
        assert reasons(flight.overdue(CONFIG, 10.1 + IMAGE_PATIENCE)) == {0: Reason.IMAGE_PULL, 1: Reason.IMAGE_PULL}

    def test_a_pull_that_works_in_the_end_is_no_failure(self, flight: Flight) -> None:
        flight.see(pulling(0, "a", "ErrImagePull"), 10.0)
        flight.see(pulling(1, "b", "ContainerCreating"), 10.0)
        flight.see(pulling(0, "a", "ContainerCreating"), 30.0)
        assert flight.overdue(CONFIG, 200.0) is None

    def test_a_wrong_name_is_given_up_at_once(self, flight: Flight) -> None:
        flight.see(pulling(0, "a", "InvalidImageName: x"), 1.0)
        flight.see(pulling(1, "b", "ContainerCreating"), 1.0)
        assert reasons(flight.overdue(CONFIG, 1.1)) == {0: Reason.IMAGE_PULL, 1: Reason.RANK_MISSING}

    def test_the_slowest_pull_is_named_when_the_limit_is_reached(self, flight: Flight) -> None:
        flight.see(pulling(0, "a", gather=Container(GATHER, started=T)), 1.0)
        flight.see(pulling(1, "b", "ContainerCreating"), 1.0)
        assert flight.overdue(CONFIG, 1.0 + CONFIG.pull_limit) is None
        found = flight.overdue(CONFIG, 1.1 + CONFIG.pull_limit)
        assert reasons(found) == {0: Reason.RANK_MISSING, 1: Reason.LAUNCH_FAILED}

    def test_the_pull_limit_counts_from_when_all_have_a_node(self, flight: Flight) -> None:
        flight.see(pulling(0, "a"), 1.0)
        flight.see(pulling(1, "b"), 50.0)
        assert flight.overdue(CONFIG, 49.0 + CONFIG.pull_limit) is None


class TestLost:
    def test_a_worker_of_which_no_end_is_reported(self, flight: Flight) -> None:
        flight.see(running(0, "a"), 5.0)
        flight.see(ended(1, "b", message(1, Reason.PEER_LOST)), 20.0)
        found = flight.overdue(CONFIG, 5.1 + SPEC.deadline + LATE_SECONDS)
        assert reasons(found) == {0: Reason.POD_LOST}
        run = flight.finish(found or {}, T)
        assert [one.reason for one in run.results] == [Reason.POD_LOST, Reason.PEER_LOST]

    def test_a_rank_whose_partner_ended_before_it_began_need_not_be_waited_for(self, flight: Flight) -> None:
        flight.see(pod(0, node="a", gather=Container(GATHER, started=T, finished=T, exit_code=1), phase="Failed"), 5.0)
        flight.see(pulling(1, "b"), 5.0)
        assert reasons(flight.overdue(CONFIG, 6.0)) == {1: Reason.RANK_MISSING}

    def test_a_job_that_somebody_deleted(self, flight: Flight) -> None:
        flight.see(running(0, "a"), 5.0)
        flight.job_gone = True
        assert reasons(flight.overdue(CONFIG, 6.0)) == {0: Reason.POD_LOST, 1: Reason.POD_LOST}

    def test_the_last_resort(self, flight: Flight) -> None:
        flight.see(pulling(0, "a", gather=Container(GATHER, started=T)), 1.0)
        flight._bound = 1.0
        flight.see(ended(1, "b", message(1)), 2.0)
        late = job_deadline(SPEC, CONFIG) + LATE_SECONDS + 1.0
        assert flight.overdue(CONFIG, late) is not None

    def test_ranks_that_ran_one_after_the_other_on_one_node_are_no_pair(self, flight: Flight) -> None:
        flight.see(ended(0, "a", message(0)), 5.0)
        flight.see(ended(1, "a", message(1)), 9.0)
        run = flight.finish({}, T)
        assert {one.reason for one in run.results} == {Reason.UNSCHEDULED}
        assert "one after the other on node a" in run.results[0].message

    def test_two_ranks_that_are_meant_for_one_node_may_share_it(self) -> None:
        flight = Flight(replace(SPEC, nodes=("a", "a")), "j", T, 0.0, stage=Stage.FLYING)
        flight.see(ended(0, "a", message(0)), 5.0)
        flight.see(ended(1, "a", message(1)), 9.0)
        assert {one.reason for one in flight.finish({}, T).results} == {Reason.OK}


class TestCancelled:
    def test_what_ends_by_the_request_says_so_and_a_final_result_is_kept(self, flight: Flight) -> None:
        flight.see(ended(0, "a", message(0)), 5.0)
        flight.see(running(1, "b"), 5.0)
        flight.cancelled = 6.0
        flight.see(ended(1, "b", encode(died_in(document(1), Phase.MEASURE)).decode(), code=137), 7.0)
        assert [one.reason for one in flight.finish({}, T).results] == [Reason.OK, Reason.CANCELLED]

    def test_it_is_not_waited_for_long(self, flight: Flight) -> None:
        flight.see(running(0, "a"), 5.0)
        flight.cancelled, flight.job_gone = 6.0, True
        assert flight.overdue(CONFIG, 6.0 + CANCEL_SECONDS) is None
        assert reasons(flight.overdue(CONFIG, 6.1 + CANCEL_SECONDS)) == {0: Reason.CANCELLED, 1: Reason.CANCELLED}


def test_no_end_of_this_file_blames_a_node() -> None:
    assert {Reason.RANK_MISSING, Reason.PEER_LOST} == ECHOES
    for reason in (Reason.NO_CAPACITY, Reason.UNSCHEDULED, Reason.IMAGE_PULL, Reason.POD_LOST, Reason.CANCELLED, Reason.LAUNCH_FAILED):
        assert document(0, reason).outcome is Outcome.UNKNOWN


def test_what_the_cluster_says_cannot_write_on_a_terminal(flight: Flight) -> None:
    said = Ending(Reason.LAUNCH_FAILED, "admission webhook denied: \x1b]0;owned\x07 no")
    run = flight.finish({0: said, 1: replace(said, result=document(1))}, T)
    assert [one.message for one in run.results] == ["admission webhook denied:  ]0;owned  no"] * 2


def test_progress_in_words(flight: Flight) -> None:
    assert flight.progress() == {0: "flying", 1: "flying"}
    flight.see(pulling(0, "a", gather=Container(GATHER, started=T)), 1.0)
    flight.see(running(1, "b"), 1.0)
    assert flight.progress() == {0: "waiting for the other ranks on a", 1: "running on b"}
    flight.see(ended(1, "b", message(1)), 2.0)
    assert flight.progress()[1] == "ended: ok"


class TestJobs:
    def body(self, **more: object) -> dict[str, object]:
        import json

        return {"metadata": {"name": "j", "uid": "u", "creationTimestamp": "2026-11-29T12:00:00Z",
                             "labels": {"efa-pulse.io/launched-by": "service"},
                             "annotations": {"efa-pulse.io/spec": json.dumps(record(SPEC))}}, **more}

    def test_the_run_is_read_back_from_its_job(self) -> None:
        found = job_view(self.body())
        assert (found.spec, found.launched_by, found.problem) == (SPEC, "service", "")

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "run_id": "x"}', "null",
                                      '{"version":1,"run_id":"r","probe":"p","target":"t","nodes":[],"transport":"any","deadline":1}'])
    def test_an_unreadable_record_is_a_problem_and_no_run(self, text: str) -> None:
        one = self.body()
        one["metadata"]["annotations"] = {"efa-pulse.io/spec": text}  # type: ignore[index]
        found = job_view(one)
        assert found.spec is None
        assert found.problem

    def test_conditions(self) -> None:
        failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}]}
        assert job_view(self.body(status=failed)).failed == "DeadlineExceeded: too long"
        assert flights.job_view({}).spec is None
