"""Every way a probe pod can end or not begin, and the reason it stands for.

Pods in `fixtures/pods` were recorded from a real scheduler, real controllers and the hollow kubelet by the tests in `e2e`; the others are
what the kubelet (1.36) writes for things that cannot be made to happen here.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.launch.podstate import DISRUPTIONS, POD_REASONS, WAITING, Ending, Step, ending, hopeless, lost, refusal, stuck, view
from probes.reasons import Outcome, Reason, outcome_of
from probes.result import Phase, Result, died_in, encode

Json = dict[str, Any]
PODS = Path(__file__).parent.parent.parent / "fixtures" / "pods"
RUN, RANK, DEADLINE = "run-1", 0, 30.0
KEYS = ["metadata", "spec", "status", "phase", "conditions", "containerStatuses", "state", "terminated", "type", "name", "labels",
        "reason", "exitCode", "startedAt"]
T0, T5, T60 = "2026-11-29T12:00:00Z", "2026-11-29T12:00:05Z", "2026-11-29T12:01:00Z"


def recorded(name: str) -> Json:
    found: Json = json.loads((PODS / f"{name}.json").read_text())
    return found


def result(reason: Reason = Reason.OK, message: str = "", run_id: str = RUN, rank: int = RANK) -> Result:
    return Result.model_validate({"run_id": run_id, "probe": "mooncake", "target": "a--b", "rank": rank, "world_size": 2, "node": "a",
                                  "started": 1.0, "finished": 2.0, "reason": reason, "message": message})


def document(reason: Reason = Reason.OK, message: str = "", **more: Any) -> str:
    return encode(result(reason, message, **more)).decode() + "\n"


def mark(phase: Phase) -> str:
    return encode(died_in(result(), phase)).decode() + "\n"


def terminated(exit_code: int = 0, reason: str = "Completed", message: str = "", started: str | None = T0, finished: str = T5) -> Json:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message, "startedAt": started, "finishedAt": finished}}


def pod(state: Json | None = None, *, phase: str = "Running", node: str | None = "a", gather: Json | None = None,
        status: Json | None = None, conditions: list[Json] | None = None, deleting: bool = False) -> Json:
    scheduled = {"type": "PodScheduled", "status": "True" if node else "False", "lastTransitionTime": T0}
    found: Json = {
        "metadata": {"name": "p", "uid": "u", "creationTimestamp": T0,
                     "labels": {"batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/job-completion-index": str(RANK)}},
        "spec": {**({"nodeName": node} if node else {})},
        "status": {"phase": phase, "conditions": [scheduled, *(conditions or [])], **(status or {})},
    }
    if deleting:
        found["metadata"]["deletionTimestamp"] = T5
    if state is not None:
        found["status"]["containerStatuses"] = [{"name": "worker", "state": state}]
    if gather is not None:
        found["status"]["initContainerStatuses"] = [{"name": "gather", "state": gather}]
    return found


def disrupted(reason: str, message: str = "why") -> list[Json]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


def end_of(one: Json, *, gone: bool = False) -> Ending:
    found = ending(view(one, gone=gone), run_id=RUN, rank=RANK, deadline=DEADLINE)
    assert found is not None
    return found


class TestSteps:
    @pytest.mark.parametrize(("one", "step"), [
        (pod(node=None, phase="Pending"), Step.PENDING),
        (pod(phase="Pending"), Step.PULLING),
        (pod({"waiting": {"reason": "PodInitializing"}}, phase="Pending", gather={"running": {"startedAt": T0}}), Step.PULLING),
        (pod({"running": {"startedAt": T0}}), Step.RUNNING),
        (pod(terminated()), Step.ENDED),
        (pod(terminated(), phase="Succeeded"), Step.ENDED),
        (pod(phase="Failed"), Step.ENDED),
    ])
    def test_where_a_pod_stands(self, one: Json, step: Step) -> None:
        assert view(one).step is step
        assert (ending(view(one), run_id=RUN, rank=RANK, deadline=DEADLINE) is None) is (step is not Step.ENDED)

    def test_a_failed_pod_whose_container_still_runs_has_not_ended_yet(self) -> None:
        old_kubelet = pod({"running": {"startedAt": T0}}, phase="Failed", status={"reason": "DeadlineExceeded"})
        assert view(old_kubelet).step is Step.RUNNING

    def test_a_pod_that_no_longer_exists_has_ended(self) -> None:
        assert view(pod({"running": {"startedAt": T0}}), gone=True).step is Step.ENDED

    def test_the_pull_is_the_time_from_the_node_to_the_workers_start(self) -> None:
        assert view(pod({"running": {"startedAt": T5}})).pull_seconds == 5.0
        assert view(pod(phase="Pending")).pull_seconds is None

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
                        max_leaves=20))
    def test_nothing_that_a_server_could_send_raises(self, one: Any) -> None:
        found = view(one if isinstance(one, dict) else {"status": one})
        ending(found, run_id=RUN, rank=RANK, deadline=DEADLINE)
        stuck(found)
        hopeless(found)


class TestAWorkersOwnWord:
    @pytest.mark.parametrize("reason", [Reason.OK, Reason.DEADLINE, Reason.ENGINE_CRASHED, Reason.PEER_LOST, Reason.TCP_FALLBACK])
    def test_a_final_result_counts_whatever_else_happened_to_the_pod(self, reason: Reason) -> None:
        for one in (pod(terminated(message=document(reason, "said"))),
                    pod(terminated(message=document(reason, "said")), phase="Failed", status={"reason": "Evicted"}),
                    pod(terminated(message=document(reason, "said")), conditions=disrupted("PreemptionByScheduler"), deleting=True)):
            found = end_of(one)
            assert (found.reason, found.message, found.final) == (reason, "said", True)

    def test_a_result_of_another_run_or_rank_is_not_taken(self) -> None:
        for message in (document(run_id="run-2"), document(rank=1)):
            found = end_of(pod(terminated(message=message)))
            assert found.reason is Reason.RESULT_UNREADABLE
            assert found.result is None

    @pytest.mark.parametrize("message", ["{", "hello", '{"schema":"efa-pulse/result/v9"}', document()[:60]])
    def test_what_cannot_be_read_says_so(self, message: str) -> None:
        assert end_of(pod(terminated(message=message))).reason is Reason.RESULT_UNREADABLE

    def test_a_mark_alone_says_where_it_died(self) -> None:
        found = end_of(pod(terminated(137, "Error", mark(Phase.SETUP))))
        assert found.reason is Reason.DIED_IN_SETUP
        assert "SIGKILL" in found.message

    def test_no_word_at_all(self) -> None:
        found = end_of(pod(terminated(1, "Error")))
        assert (found.reason, found.message) == (Reason.NO_RESULT, "the worker left no result: exit code 1 (Error)")

    def test_one_that_was_asked_to_stop_did_not_end_by_itself(self) -> None:
        stopped = terminated(message=document(Reason.CANCELLED, "stopped on request in phase measure"))
        assert end_of(pod(stopped)).reason is Reason.CANCELLED
        evicted = end_of(pod(stopped, phase="Failed", conditions=disrupted("EvictionByEvictionAPI", "Eviction API: evicting")))
        assert evicted.reason is Reason.EVICTED
        assert "Eviction API: evicting; stopped on request in phase measure" in evicted.message
        assert not evicted.final


class TestWhoTookThePodAway:
    """The worker left its mark or nothing; Kubernetes says why."""

    @pytest.mark.parametrize(("reason", "expected"), sorted(DISRUPTIONS.items()))
    @pytest.mark.parametrize("message", ["", mark(Phase.MEASURE)])
    def test_disruptions(self, reason: str, expected: Reason, message: str) -> None:
        found = end_of(pod(terminated(137, "Error", message), phase="Failed", conditions=disrupted(reason)))
        assert found.reason is expected
        assert found.message.startswith("why")
        assert ("phase measure" in found.message) is bool(message)
        assert outcome_of(expected) is Outcome.UNKNOWN

    @pytest.mark.parametrize(("reason", "expected"), sorted(one for one in POD_REASONS.items() if one[0] != "DeadlineExceeded"))
    def test_the_kubelets_reasons(self, reason: str, expected: Reason) -> None:
        found = end_of(pod(phase="Failed", status={"reason": reason, "message": "details"}))
        assert (found.reason, found.message) == (expected, f"{reason}; details")
        assert outcome_of(expected) is Outcome.UNKNOWN

    @pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfvpc.amazonaws.com/efa"])
    def test_no_room_at_the_kubelet(self, reason: str) -> None:
        refused = pod(phase="Failed", status={"reason": reason, "message": "Node didn't have enough resource"})
        assert end_of(refused).reason is Reason.NO_CAPACITY

    def test_out_of_memory_comes_before_what_it_led_to(self) -> None:
        killed = terminated(137, "OOMKilled", mark(Phase.MEASURE))
        for one in (pod(killed), pod(killed, phase="Failed", conditions=disrupted("TerminationByKubelet"))):
            found = end_of(one)
            assert found.reason is Reason.OOM_KILLED
            assert found.message == "the worker's memory limit was reached; the worker died in phase measure"

    def test_a_container_that_cannot_start(self) -> None:
        found = end_of(pod(terminated(128, "StartError", "exec: no such file", started="1970-01-01T00:00:00Z"), phase="Failed"))
        assert (found.reason, found.message) == (Reason.LAUNCH_FAILED, "StartError; exec: no such file")

    def test_a_container_whose_runtime_forgot_it(self) -> None:
        assert end_of(pod(terminated(137, "ContainerStatusUnknown"), phase="Failed")).reason is Reason.POD_LOST

    def test_somebody_deleted_the_pod(self) -> None:
        assert end_of(pod({"running": {"startedAt": T0}}), gone=True).reason is Reason.POD_LOST
        assert end_of(pod(terminated(143, "Error"), phase="Failed", deleting=True)).reason is Reason.POD_LOST


class TestDeadlines:
    def overdue(self, state: Json) -> Ending:
        return end_of(pod(state, phase="Failed", status={"reason": "DeadlineExceeded", "message": "Pod was active on the node longer"}))

    def test_a_worker_that_had_its_whole_time_is_past_its_deadline(self) -> None:
        found = self.overdue(terminated(137, "Error", mark(Phase.MEASURE), finished=T60))
        assert found.reason is Reason.DEADLINE
        assert "deadline of 30 s" in found.message
        assert "died in phase measure" in found.message

    def test_one_that_had_less_is_not_blamed(self) -> None:
        found = self.overdue(terminated(137, "Error", mark(Phase.MEASURE), finished=T5))
        assert found.reason is Reason.KILLED
        assert outcome_of(found.reason) is Outcome.UNKNOWN

    def test_one_that_never_started_was_pulled_for_too_long(self) -> None:
        assert self.overdue({"waiting": {"reason": "PodInitializing"}}).reason is Reason.IMAGE_PULL
        assert self.overdue({"waiting": {"reason": "CreateContainerConfigError"}}).reason is Reason.LAUNCH_FAILED


class TestInitContainers:
    def test_one_that_waited_in_vain_says_for_whom(self) -> None:
        said = document(Reason.RANK_MISSING, "waiting for the other ranks: rank 1 of 2 never arrived")
        found = end_of(pod({"waiting": {"reason": "PodInitializing"}}, phase="Failed", gather=terminated(1, "Error", said)))
        assert (found.reason, found.message) == (Reason.RANK_MISSING, "waiting for the other ranks: rank 1 of 2 never arrived")

    def test_one_that_ended_without_a_word(self) -> None:
        found = end_of(pod({"waiting": {"reason": "PodInitializing"}}, phase="Failed", gather=terminated(64, "Error")))
        assert found.reason is Reason.RENDEZVOUS_FAILED

    def test_the_one_that_brings_the_probes(self) -> None:
        one = pod({"waiting": {"reason": "PodInitializing"}}, phase="Failed")
        one["status"]["initContainerStatuses"] = [{"name": "bring-probes", "state": terminated(1, "Error")}]
        found = end_of(one)
        assert (found.reason, "bring-probes" in found.message) == (Reason.LAUNCH_FAILED, True)


class TestWhyItDoesNotBegin:
    @pytest.mark.parametrize(("reason", "expected"), sorted(WAITING.items()))
    def test_waiting_reasons(self, reason: str, expected: Reason) -> None:
        found = stuck(view(pod({"waiting": {"reason": reason, "message": "details"}}, phase="Pending")))
        assert (found.reason, found.message) == (expected, f"container worker: {reason}: details")

    @pytest.mark.parametrize(("message", "expected"), [
        ("0/400 nodes are available: 1 Insufficient vpc.amazonaws.com/efa, 399 node(s) didn't match Pod's node affinity/selector.",
         Reason.NO_CAPACITY),
        ("0/2 nodes are available: 1 Insufficient hugepages-2Mi, 1 Too many pods.", Reason.NO_CAPACITY),
        ("0/2 nodes are available: 2 cannot allocate all claims.", Reason.NO_CAPACITY),
        ("0/2 nodes are available: 1 node(s) didn't match pod anti-affinity rules.", Reason.UNSCHEDULED),
        ("0/2 nodes are available: 1 node(s) had untolerated taint {team: a}.", Reason.UNSCHEDULED),
        ("0/2 nodes are available: 1 node(s) were unschedulable.", Reason.UNSCHEDULED),
    ])
    def test_the_schedulers_words(self, message: str, expected: Reason) -> None:
        one = pod(node=None, phase="Pending")
        one["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
        found = stuck(view(one))
        assert found.reason is expected
        assert message in found.message

    def test_a_pod_that_nobody_looked_at(self) -> None:
        found = stuck(view(pod(node=None, phase="Pending") | {"status": {"phase": "Pending"}}))
        assert (found.reason, found.message) == (Reason.UNSCHEDULED, "the scheduler has not looked at the pod")

    def test_a_rank_that_waits_is_not_the_cause(self) -> None:
        found = stuck(view(pod({"waiting": {"reason": "PodInitializing"}}, phase="Pending", gather={"running": {"startedAt": T0}})))
        assert found.reason is Reason.RANK_MISSING

    def test_volumes_that_do_not_come(self) -> None:
        found = stuck(view(pod({"waiting": {"reason": "ContainerCreating"}}, phase="Pending")))
        assert (found.reason, "ContainerCreating" in found.message) == (Reason.LAUNCH_FAILED, True)

    @pytest.mark.parametrize(("reason", "is_hopeless"), [("InvalidImageName", True), ("ErrImageNeverPull", True), ("ErrImagePull", False),
                                                         ("ContainerCreating", False)])
    def test_only_what_no_time_can_mend_is_given_up_at_once(self, reason: str, is_hopeless: bool) -> None:
        assert (hopeless(view(pod({"waiting": {"reason": reason}}, phase="Pending"))) is not None) is is_hopeless


class TestRefusals:
    @pytest.mark.parametrize(("message", "status", "expected"), [
        ('pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0', 403, Reason.QUOTA),
        ('jobs.batch "x" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1', 403, Reason.QUOTA),
        ('pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi', 403, Reason.QUOTA),
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": unrestricted capabilities', 403, Reason.ADMISSION_DENIED),
        ('admission webhook "policy.example" denied the request: no', 400, Reason.ADMISSION_DENIED),
        ("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: probes are not wanted", 422, Reason.ADMISSION_DENIED),
        ('pods "x" is forbidden: no PriorityClass with name p was found', 403, Reason.ADMISSION_DENIED),
        ('pods "x" is forbidden: error looking up service account n/s: serviceaccount "s" not found', 403, Reason.ADMISSION_DENIED),
        ('namespaces "n" not found', 404, Reason.LAUNCH_FAILED),
        ('Job.batch "x" is invalid: spec.template: Invalid value', 422, Reason.LAUNCH_FAILED),
    ])
    def test_what_the_api_server_says(self, message: str, status: int, expected: Reason) -> None:
        found = refusal(message, status)
        assert found.reason is expected
        assert message in found.message

    def test_missing_rights_are_told_apart_from_admission(self) -> None:
        found = refusal('jobs.batch is forbidden: User "u" cannot create resource "jobs" in API group "batch" in the namespace "n"', 403)
        assert (found.reason, found.message.startswith("not allowed: ")) == (Reason.LAUNCH_FAILED, True)


class TestRecordedPods:
    """As they were on a real control plane and on hollow nodes."""

    @pytest.mark.parametrize(("name", "expected"), [
        ("preempted", Reason.PREEMPTED), ("evicted-by-api", Reason.EVICTED), ("oom-killed", Reason.OOM_KILLED),
        ("pod-deadline", Reason.DEADLINE), ("killed", Reason.DIED_IN_MEASURE),
    ])
    def test_ended(self, name: str, expected: Reason) -> None:
        one = recorded(name)
        seen = view(one)
        assert seen.rank is not None
        message = next((str(c.message) for c in seen.containers if c.name == "worker"), "")
        run_id = json.loads(message)["run_id"] if message else RUN
        found = ending(seen, run_id=run_id, rank=seen.rank, deadline=8.0)
        assert found is not None
        assert found.reason is expected

    @pytest.mark.parametrize(("name", "step", "expected"), [
        ("unschedulable-fence", Step.PENDING, Reason.UNSCHEDULED), ("unschedulable-cordoned", Step.PENDING, Reason.UNSCHEDULED),
        ("image-pull", Step.PULLING, Reason.IMAGE_PULL),
    ])
    def test_not_begun(self, name: str, step: Step, expected: Reason) -> None:
        seen = view(recorded(name))
        assert seen.step is step
        assert stuck(seen).reason is expected

    @pytest.mark.parametrize("name", sorted(path.stem for path in PODS.glob("*.json")))
    @pytest.mark.parametrize("part", ["metadata", "spec", "status"])
    def test_a_pod_with_a_part_missing_still_means_something(self, name: str, part: str) -> None:
        one = copy.deepcopy(recorded(name))
        one.pop(part)
        stuck(view(one))
        ending(view(one, gone=True), run_id=RUN, rank=0, deadline=DEADLINE)


def test_a_node_that_fell_silent() -> None:
    running = view(pod({"running": {"startedAt": T0}}))
    assert lost(running).reason is Reason.POD_LOST
    assert "node a" in lost(running).message
    tainted = view(pod({"running": {"startedAt": T0}}, conditions=disrupted("DeletionByTaintManager"), deleting=True))
    assert lost(tainted).reason is Reason.EVICTED
