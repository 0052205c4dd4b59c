"""Runs that the cluster gives no place, or takes it away again: each ends with its own reason, by what the real scheduler, controllers and
admission plugins say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e import objects
from e2e.controlplane import eventually
from e2e.installed import Installation, Launched, spec
from e2e.recording import record

from exporter.launch.manifest import Claim
from exporter.runs import Run, RunSpec
from probes.reasons import Outcome, Reason

Install = Callable[..., Installation]
Json = dict[str, Any]


def reasons(run: Run) -> list[Reason]:
    assert {result.outcome for result in run.results} == {Outcome.UNKNOWN}, "none of these says anything about the nodes"
    return [result.reason for result in run.results]


def pod_of(here: Installation, node: str) -> Json:
    return next(pod for pod in here.pods() if pod["spec"].get("nodeName") == node)


class Last:
    """The last state of every pod, deletions included."""

    def __init__(self, here: Installation) -> None:
        from exporter.kube.watch import Watch

        self.pods: dict[str, Json] = {}
        self._watch: Watch[Json] = Watch(here.api, f"{here.probes}/pods", lambda one: one,
                                         on_change=lambda changes: self.pods.update({one.key: one.value for one in changes}))
        self._watch.start()

    def on(self, node: str) -> Json:
        self._watch.close()
        return next(pod for pod in self.pods.values() if pod["spec"].get("nodeName") == node)


def started(here: Installation, nodes: list[str], *, claim: Claim | None = None) -> tuple[Launched, RunSpec]:
    launched = here.launcher(claim=claim)
    wanted = spec((nodes[0], nodes[1]), "r")
    launched.launcher.start(wanted)
    eventually(lambda: launched.progress[wanted.run_id] and
               all(words.startswith("running") for words in launched.progress[wanted.run_id][-1].values()), what="both ranks run")
    return launched, wanted


def test_no_room_for_the_devices(install: Install) -> None:
    here = install(bind_limit=5)
    nodes = here.nodes(2, efa=1)
    run = here.launcher(claim=Claim(efa=4)).run(spec((nodes[0], nodes[1]), "r"))
    assert reasons(run) == [Reason.NO_CAPACITY] * 2
    assert "Insufficient vpc.amazonaws.com/efa" in run.results[0].message
    eventually(lambda: here.jobs() == [] and here.pods() == [], what="nothing is left")


def test_a_node_that_another_probe_holds(install: Install) -> None:
    here = install(bind_limit=5)
    a, b, c = here.nodes(3)
    launched, _ = started(here, [a, b])
    launched.launcher.start(spec((b, c), "second"))
    run = launched.next()
    assert run.spec.nodes == (b, c)
    assert set(reasons(run)) == {Reason.UNSCHEDULED, Reason.RANK_MISSING}
    assert any("anti-affinity" in result.message for result in run.results)
    assert {result.node for result in run.results} == {b, c}, "also a rank without a pod on a node is named after the one that was left"
    for pod in here.pods():
        if not pod["spec"].get("nodeName"):
            record("unschedulable-fence", pod)


def test_a_cordoned_node(install: Install) -> None:
    here = install(bind_limit=5)
    nodes = here.nodes(2)
    here.cluster.call("PATCH", f"/api/v1/nodes/{nodes[1]}", {"spec": {"unschedulable": True}})
    launched = here.launcher()
    launched.launcher.start(spec((nodes[0], nodes[1]), "r"))
    waiting = eventually(lambda: [pod for pod in here.pods() if not pod["spec"].get("nodeName")
                                  and "unschedulable" in str(pod["status"].get("conditions"))])
    record("unschedulable-cordoned", waiting[0])
    run = launched.next()
    assert Reason.UNSCHEDULED in reasons(run)
    assert any("unschedulable" in result.message for result in run.results)


def test_production_preempts_a_probe_at_once(install: Install) -> None:
    here = install()
    nodes = here.nodes(2, efa=4)
    last = Last(here)
    launched, _ = started(here, nodes, claim=Claim(efa=4))
    space = f"/api/v1/namespaces/{here.config.namespace}"
    here.cluster.call("POST", f"{space}/pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "production"},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": nodes[0]}, "securityContext": {"runAsNonRoot": True, "runAsUser": 1000,
                 "seccompProfile": {"type": "RuntimeDefault"}},
                 "containers": [{"name": "c", "image": "x",
                                 "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                                 "resources": {"limits": {objects.EFA: "4"}}}]}})
    eventually(lambda: here.cluster.call("GET", f"{space}/pods/production")["spec"].get("nodeName") == nodes[0], seconds=20,
               what="production has the node")
    here.cluster.delete(f"{here.probes}/pods/{pod_of(here, nodes[1])['metadata']['name']}")
    run = launched.next()
    by_node = {result.node: result for result in run.results}
    assert by_node[nodes[0]].reason is Reason.PREEMPTED
    record("preempted", last.on(nodes[0]))


def test_a_drained_node_evicts_its_probe(install: Install) -> None:
    here = install()
    nodes = here.nodes(2)
    last = Last(here)
    launched, wanted = started(here, nodes)
    pod = pod_of(here, nodes[1])["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    here.cluster.call("POST", f"{here.probes}/pods/{pod}/eviction", eviction)
    eventually(lambda: any("ended" in words for words in launched.progress[wanted.run_id][-1].values()))
    launched.launcher.cancel(wanted.run_id)
    by_node = {result.node: result.reason for result in launched.next().results}
    assert by_node == {nodes[1]: Reason.EVICTED, nodes[0]: Reason.CANCELLED}
    record("evicted-by-api", last.on(nodes[1]))


def test_a_pod_that_somebody_deleted(install: Install) -> None:
    here = install()
    nodes = here.nodes(2)
    launched, wanted = started(here, nodes)
    for node in nodes:
        here.cluster.delete(f"{here.probes}/pods/{pod_of(here, node)['metadata']['name']}")
    run = launched.next()
    assert set(reasons(run)) <= {Reason.POD_LOST, Reason.NO_RESULT}
    assert wanted.run_id not in launched.launcher.running()


def test_a_job_that_somebody_deleted(install: Install) -> None:
    here = install()
    launched, _ = started(here, here.nodes(2))
    here.cluster.delete(f"{here.jobs_path}/{here.jobs()[0]['metadata']['name']}")
    assert set(reasons(launched.next())) == {Reason.POD_LOST}
    launched.idle()


def test_a_cancelled_run(install: Install) -> None:
    here = install()
    launched, wanted = started(here, here.nodes(2))
    launched.launcher.cancel(wanted.run_id)
    run = launched.next()
    assert reasons(run) == [Reason.CANCELLED] * 2
    launched.idle()
    eventually(lambda: here.pods() == [], what="no pod is left")


def test_a_quota_on_pods(install: Install) -> None:
    here = install(bind_limit=5)
    here.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": here.config.probe_namespace},
                        "spec": {"hard": {"pods": "0"}}})
    eventually(lambda: here.cluster.call("GET", f"{here.probes}/resourcequotas/q").get("status", {}).get("hard"))
    run = here.launcher().run(spec(tuple(here.nodes(2)), "r"))
    assert reasons(run) == [Reason.QUOTA] * 2
    assert "exceeded quota: q" in run.results[0].message


def test_a_quota_on_jobs_is_a_cap_that_no_fault_of_ours_can_break(install: Install) -> None:
    here = install()
    here.cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "jobs", "namespace": here.config.probe_namespace},
                        "spec": {"hard": {"count/jobs.batch": "0"}}})
    eventually(lambda: here.cluster.call("GET", f"{here.probes}/resourcequotas/jobs").get("status", {}).get("hard"))
    run = here.launcher().run(spec(tuple(here.nodes(2)), "r"))
    assert reasons(run) == [Reason.QUOTA] * 2


def test_pod_security_refuses_the_pods(install: Install) -> None:
    here = install(bind_limit=5)
    here.cluster.call("PATCH", f"/api/v1/namespaces/{here.config.probe_namespace}",
                      {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})
    run = here.launcher().run(spec(tuple(here.nodes(2)), "r"))
    assert reasons(run) == [Reason.ADMISSION_DENIED] * 2
    assert "violates PodSecurity" in run.results[0].message


def test_a_priority_class_that_is_not_there(install: Install) -> None:
    here = install(bind_limit=5, pods={"priority_class": "absent"})
    here.cluster.delete("/apis/scheduling.k8s.io/v1/priorityclasses/absent")
    run = here.launcher().run(spec(tuple(here.nodes(2)), "r"))
    assert set(reasons(run)) == {Reason.ADMISSION_DENIED}
    assert "no PriorityClass with name absent" in run.results[0].message


def test_an_admission_policy_refuses_the_job(install: Install) -> None:
    here = install()
    name = here.config.install
    here.cluster.apply(
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
         "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"],
                                                          "resources": ["jobs"]}],
                                       "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": here.config.probe_namespace}}},
                  "validations": [{"expression": "false", "message": "probes are not wanted here"}]}},
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
         "spec": {"policyName": name, "validationActions": ["Deny"]}})
    nodes = here.nodes(2)
    launched = here.launcher()
    try:
        eventually(lambda: _refused(launched, nodes), what="the policy is in force")
    finally:
        here.cluster.delete(f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{name}")
        here.cluster.delete(f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}")


def _refused(launched: Launched, nodes: list[str]) -> bool:
    wanted = spec((nodes[0], nodes[1]), f"try-{len(launched.progress)}")
    launched.launcher.start(wanted)
    eventually(lambda: not launched.finished.empty() or any("running" in str(said) for said in list(launched.progress[wanted.run_id])))
    launched.launcher.cancel(wanted.run_id)
    run = launched.next()
    if Reason.ADMISSION_DENIED in {result.reason for result in run.results}:
        assert "probes are not wanted here" in run.results[0].message
        return True
    return False


def test_a_namespace_that_is_not_there(install: Install) -> None:
    here = install()
    nodes = here.nodes(2)
    launched = here.launcher()
    here.cluster.delete(f"/api/v1/namespaces/{here.config.probe_namespace}")
    eventually(lambda: _gone(here), seconds=60, what="the namespace is gone")
    run = launched.run(spec((nodes[0], nodes[1]), "r"))
    assert set(reasons(run)) == {Reason.LAUNCH_FAILED}
    assert "not found" in run.results[0].message


def _gone(here: Installation) -> bool:
    return here.config.probe_namespace not in {one["metadata"]["name"] for one in here.cluster.items("/api/v1/namespaces")}
