"""The Job of a run: each rule that DESIGN section 8 gives, and what the server's limits demand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.kubernetes import Kubernetes
from exporter.config.planning import Gates
from exporter.launch import names
from exporter.launch.manifest import Claim, ManifestError, Owner, claim_template, from_record, job, job_deadline, pod_deadline, record
from exporter.runs import RunSpec
from probes.contract import WorkerEnv

Json = dict[str, Any]
CONFIG = Kubernetes()
OWNER = Owner("efa-pulse-anchor", "anchor-uid")
SPEC = RunSpec("mooncake-r1", "mooncake", "a--b", ("a", "b"), "efa", 60.0, {"sizes": [1024]}, {"round": "r1"})


def made(spec: RunSpec = SPEC, config: Kubernetes = CONFIG, claim: Claim | None = None, **more: Any) -> Json:
    return job(spec, config, claim or Claim(efa=1), OWNER, launched_by="service", **more)


def pod(*args: Any, **more: Any) -> Json:
    found: Json = made(*args, **more)["spec"]["template"]["spec"]
    return found


def worker(*args: Any, **more: Any) -> Json:
    (found,) = pod(*args, **more)["containers"]
    assert isinstance(found, dict)
    return found


def config(**more: Any) -> Kubernetes:
    return Kubernetes.model_validate(more)


def test_one_failed_rank_does_not_take_its_partner_with_it() -> None:
    spec = made()["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == ("Indexed", 2, 2, 0)
    assert "backoffLimit" not in spec
    assert spec["podReplacementPolicy"] == "Failed"
    assert pod()["restartPolicy"] == "Never"


def test_deadlines_nest() -> None:
    worker_deadline = next(float(one["value"]) for one in worker()["env"] if one["name"] == "EFA_PULSE_DEADLINE")
    assert worker_deadline == 60.0
    assert worker_deadline + CONFIG.pull_limit < pod()["activeDeadlineSeconds"] == pod_deadline(SPEC, CONFIG)
    assert pod_deadline(SPEC, CONFIG) + CONFIG.bind_limit < made()["spec"]["activeDeadlineSeconds"] == job_deadline(SPEC, CONFIG)


def test_finished_jobs_do_not_stay_for_ever_but_for_an_hour_at_least() -> None:
    assert made()["spec"]["ttlSecondsAfterFinished"] >= 3600


def test_the_owner_lies_in_the_same_namespace() -> None:
    meta = made()["metadata"]
    assert meta["namespace"] == CONFIG.probe_namespace
    assert meta["ownerReferences"] == [{"apiVersion": "v1", "kind": "ConfigMap", "name": "efa-pulse-anchor", "uid": "anchor-uid"}]


def test_the_scheduler_is_the_fence() -> None:
    (term,) = pod()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = made()["spec"]["template"]["metadata"]["labels"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["namespaceSelector"] == {}, "also against another installation's pods"
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    other = job(replace(SPEC, probe="nccl"), config(install="another"), Claim(), OWNER, launched_by="cli")
    assert term["labelSelector"]["matchLabels"].items() <= other["spec"]["template"]["metadata"]["labels"].items()


def test_configured_labels_cannot_take_the_fence_away() -> None:
    labels = made(config=config(pods={"labels": {names.FENCE: "off", "team": "x"}}))["spec"]["template"]["metadata"]["labels"]
    assert labels[names.FENCE] == names.FENCE_VALUE
    assert labels["team"] == "x"


def test_only_the_runs_nodes_are_considered() -> None:
    terms = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in ("a", "b")]


def test_pods_have_no_rights_and_no_more_privilege_than_locking_memory() -> None:
    spec = pod()
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("efa-pulse-probe", False)
    assert worker()["securityContext"] == {"runAsUser": 0, "allowPrivilegeEscalation": False,
                                           "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}
    assert "hostNetwork" not in spec
    assert not any("hostPath" in volume for volume in spec["volumes"])
    for init in spec["initContainers"]:
        assert init["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_production_wins() -> None:
    assert pod()["priorityClassName"] == "efa-pulse-probe"


def test_service_meshes_stay_out() -> None:
    meta = made()["spec"]["template"]["metadata"]
    assert meta["labels"]["sidecar.istio.io/inject"] == meta["annotations"]["sidecar.istio.io/inject"] == "false"


def test_cordoned_nodes_are_not_tolerated() -> None:
    tolerations = pod(tolerations=Gates().tolerations)["tolerations"]
    assert {one["key"] for one in tolerations} == {"nvidia.com/gpu", "aws.amazon.com/efa", "vpc.amazonaws.com/efa"}
    assert all(one["key"] != "node.kubernetes.io/unschedulable" and one["operator"] == "Exists" for one in tolerations)


def test_the_result_comes_from_the_termination_file() -> None:
    assert worker()["terminationMessagePolicy"] == "File"
    assert "terminationMessagePath" not in worker(), "the contract's default is Kubernetes' own"


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_worker_understands_its_environment(ranks: int) -> None:
    nodes = tuple(f"n{index}" for index in range(ranks))
    spec = replace(SPEC, nodes=nodes)
    rank = ranks - 1
    fields = {"spec.nodeName": "n0", "status.podIP": "10.0.0.7", f"metadata.annotations['{names.INDEX}']": str(rank)}
    environ = {one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
               for one in worker(spec)["env"]}
    env = WorkerEnv.read(environ)
    assert (env.run_id, env.probe, env.rank, env.world_size) == ("mooncake-r1", "mooncake", rank, ranks)
    assert (env.node, env.address) == ("n0", "10.0.0.7")
    assert (env.transport, env.spec) == ("efa", {"sizes": [1024]})
    if ranks > 1:
        assert env.rendezvous == f"{names.job_name(spec)}-0.efa-pulse-runs.efa-pulse-probes.svc:29400"
        mounts = {one["mountPath"]: one["name"] for one in worker(spec)["volumeMounts"]}
        assert env.secret_file is not None
        assert mounts[str(env.secret_file.parent)] == "secret"
    else:
        assert env.rendezvous is None
        assert not any(volume["name"] == "secret" for volume in pod(spec)["volumes"])


def test_ranks_gather_before_any_deadline_runs() -> None:
    (gather,) = pod()["initContainers"]
    assert gather["image"] == worker()["image"], "its pull is the worker's pull"
    assert gather["command"] == ["python3", "-m", "probes.gather"]
    assert {"name": "EFA_PULSE_DEADLINE", "value": str(CONFIG.pull_limit)} in gather["env"]
    assert pod(replace(SPEC, nodes=("a",)))["initContainers"] == []


def test_devices_are_asked_for_and_limited_alike() -> None:
    resources = worker(claim=Claim(efa=4, gpu=2))["resources"]
    assert resources["requests"] == resources["limits"]
    assert (resources["limits"]["vpc.amazonaws.com/efa"], resources["limits"]["nvidia.com/gpu"]) == ("4", "2")
    nothing = worker(replace(SPEC, probe="node", nodes=("a",)), claim=Claim())["resources"]["limits"]
    assert set(nothing) == {"cpu", "memory"}


def test_huge_pages_and_shared_memory() -> None:
    with_pages = config(pods={"nccl": {"hugepages": "1Gi", "shm": "2Gi", "memory": "8Gi"}})
    spec = replace(SPEC, probe="nccl")
    assert worker(spec, with_pages)["resources"]["limits"]["hugepages-2Mi"] == str(1 << 30)
    volumes = {one["name"]: one["emptyDir"] for one in pod(spec, with_pages)["volumes"] if "emptyDir" in one}
    assert volumes["shm"] == {"medium": "Memory", "sizeLimit": str(2 << 30)}
    assert volumes["hugepages"] == {"medium": "HugePages-2Mi"}


class TestDynamicAllocation:
    CLAIM = Claim(efa=4, gpu=1, efa_by_claim=True, gpu_by_claim=True)

    def test_the_pod_names_a_claim_and_asks_for_no_resource(self) -> None:
        assert pod(claim=self.CLAIM)["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": names.job_name(SPEC)}]
        assert worker(claim=self.CLAIM)["resources"]["claims"] == [{"name": "devices"}]
        assert not {"vpc.amazonaws.com/efa", "nvidia.com/gpu"} & set(worker(claim=self.CLAIM)["resources"]["limits"])

    def test_the_claims_go_with_the_job(self) -> None:
        template = claim_template(SPEC, CONFIG, self.CLAIM, "job-uid", launched_by="service")
        assert template["metadata"]["ownerReferences"] == [{"apiVersion": "batch/v1", "kind": "Job", "name": names.job_name(SPEC),
                                                            "uid": "job-uid"}]
        requests = template["spec"]["spec"]["devices"]["requests"]
        assert [(one["name"], one["exactly"]["deviceClassName"], one["exactly"]["count"]) for one in requests] == [
            ("efa", "efa.networking.k8s.aws", 4), ("gpu", "gpu.nvidia.com", 1)]

    def test_admin_access_holds_nothing(self) -> None:
        template = claim_template(SPEC, CONFIG, replace(self.CLAIM, gpu=0, admin=True), "u", launched_by="service")
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"] == {"deviceClassName": "efa.networking.k8s.aws", "allocationMode": "All", "adminAccess": True}


class TestShared:
    CONFIG = config(pods={"mooncake": {"placement": "shared"}})

    def test_beside_a_workload(self) -> None:
        spec = pod(config=self.CONFIG, claim=Claim())
        assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
        assert worker(config=self.CONFIG, claim=Claim())["securityContext"] == {"privileged": True, "runAsUser": 0}
        assert {"name": "FI_EFA_USE_HUGE_PAGE", "value": "0"} in worker(config=self.CONFIG, claim=Claim())["env"]
        assert worker(config=self.CONFIG, claim=Claim())["command"] == ["python3", "-m", "probes.private_dev", "probes", "run"]
        assert not any("privileged" in one["securityContext"] for one in spec["initContainers"])

    def test_never_by_default(self) -> None:
        assert {CONFIG.pods.of(name).placement for name in ("node", "mooncake", "nixl", "nccl", "uccl-ep")} == {"exclusive"}


class TestServingImage:
    CONFIG = config(pods={"image": "probe:1", "mooncake": {"serving_image": "vllm:9", "serving_python": "python3.12"}})
    SPEC = replace(SPEC, labels={"round": "r1", "image": "serving"})

    def test_the_code_is_brought_and_the_engine_is_the_serving_one(self) -> None:
        bring, gather = pod(self.SPEC, self.CONFIG)["initContainers"]
        assert (bring["image"], bring["command"]) == ("probe:1", ["python3", "-m", "probes.bundle", "/efa-pulse"])
        assert gather["image"] == worker(self.SPEC, self.CONFIG)["image"] == "vllm:9"
        assert worker(self.SPEC, self.CONFIG)["command"] == ["python3.12", "/efa-pulse/start.py", "probes", "run"]
        mount = next(one for one in worker(self.SPEC, self.CONFIG)["volumeMounts"] if one["mountPath"] == "/efa-pulse")
        assert mount["readOnly"]

    def test_only_for_runs_that_ask_for_it(self) -> None:
        assert worker(SPEC, self.CONFIG)["image"] == "probe:1"
        assert names.job_name(self.SPEC) != names.job_name(SPEC), "both can be launched in one round"


class TestNames:
    def test_the_same_run_has_the_same_name_whoever_derives_it(self) -> None:
        assert names.job_name(SPEC) == names.job_name(replace(SPEC, nodes=("b", "a"), spec={}, deadline=1.0))
        assert names.job_name(SPEC) != names.job_name(replace(SPEC, run_id="mooncake-r2"))

    @given(st.text(min_size=1, max_size=80), st.text(max_size=60))
    def test_names_and_labels_are_valid_whatever_they_are_made_of(self, probe: str, run_id: str) -> None:
        name = names.job_name(replace(SPEC, probe=probe, run_id=run_id))
        assert len(name) <= 52
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
        label = names.label(probe)
        assert len(label) <= 63
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", label)

    @given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
    def test_different_texts_have_different_labels(self, one: str, other: str) -> None:
        assert (names.label(one) == names.label(other)) is (one == other)


def test_a_run_is_read_back_as_it_was_written() -> None:
    assert from_record(json.dumps(record(SPEC))) == SPEC


def test_a_probe_that_does_not_run_in_pods() -> None:
    with pytest.raises(ManifestError, match="canary does not run in pods"):
        made(replace(SPEC, probe="canary"))


def test_further_environment_comes_first_so_that_it_cannot_change_the_workers() -> None:
    env = worker(config=config(pods={"mooncake": {"env": {"MC_LOG_LEVEL": "INFO"}}}))["env"]
    assert env[0] == {"name": "MC_LOG_LEVEL", "value": "INFO"}
    with pytest.raises(ValueError, match="belong to the launcher"):
        config(pods={"mooncake": {"env": {"EFA_PULSE_RUN_ID": "x"}}})
