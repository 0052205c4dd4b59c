"""What is kept of nodes, pods, ResourceSlices and ResourceClaims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.kubernetes import Dra
from exporter.inventory.dra import ClaimFacts, SliceFacts, claim_facts, held, is_efa, is_gpu, slice_facts, totals
from exporter.inventory.reduce import canonical, instance_id, node_facts, pod_load, requests

Json = dict[str, Any]
EFA, GPU = "vpc.amazonaws.com/efa", "nvidia.com/gpu"
RESOURCES = (EFA, GPU)


def container(**limits: str) -> Json:
    return {"name": "c", "resources": {"limits": {{"efa": EFA, "gpu": GPU}.get(key, key): value for key, value in limits.items()}}}


def pod(*containers: Json, node: str | None = "a", phase: str = "Running", inits: list[Json] | None = None, **meta: Any) -> Json:
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u", **meta}, "status": {"phase": phase},
            "spec": {"containers": list(containers), "initContainers": inits or [], **({"nodeName": node} if node else {})}}


class TestRequests:
    def test_containers_add_up(self) -> None:
        assert requests(pod(container(efa="4", cpu="500m"), container(efa="2", cpu="1"))["spec"], (EFA, "cpu")) == {EFA: 6, "cpu": 1500}

    def test_the_largest_init_container_counts_when_it_is_more(self) -> None:
        spec = pod(container(efa="1"), inits=[container(efa="8"), container(efa="4")])["spec"]
        assert requests(spec, (EFA,)) == {EFA: 8}

    def test_a_sidecar_counts_with_the_containers_and_beside_later_init_containers(self) -> None:
        sidecar = {**container(memory="1Gi"), "restartPolicy": "Always"}
        spec = pod(container(memory="1Gi"), inits=[sidecar, container(memory="3Gi")])["spec"]
        assert requests(spec, ("memory",)) == {"memory": 4 << 30}
        spec = pod(container(memory="1Gi"), inits=[container(memory="3Gi"), sidecar])["spec"]
        assert requests(spec, ("memory",)) == {"memory": 3 << 30}

    def test_a_request_counts_before_its_limit_and_overhead_on_top(self) -> None:
        spec: Json = {"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}], "overhead": {"cpu": "250m"}}
        assert requests(spec, ("cpu",)) == {"cpu": 1250}

    def test_nonsense_counts_as_nothing(self) -> None:
        assert requests({"containers": [{"resources": {"limits": {EFA: "many"}}}, {}]}, (EFA,)) == {EFA: 0}


class TestPods:
    @pytest.mark.parametrize("one", [pod(container(), node=None), pod(container(), phase="Succeeded"), pod(container(), phase="Failed")])
    def test_pods_without_a_node_and_those_that_ended_take_nothing(self, one: Json) -> None:
        assert pod_load(one, resources=RESOURCES) is None

    @pytest.mark.parametrize(("meta", "spec", "ends", "probe", "workload"), [
        ({}, {}, False, False, True),
        ({"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}, {}, False, False, True),
        ({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}, {}, False, False, False),
        ({"ownerReferences": [{"kind": "Job", "controller": True}]}, {"restartPolicy": "OnFailure"}, True, False, True),
        ({}, {"restartPolicy": "Never"}, True, False, True),
        ({"deletionTimestamp": "2026-11-29T12:00:00Z"}, {}, True, False, True),
        ({"labels": {"efa-pulse.io/fence": "probe"}}, {"restartPolicy": "Never"}, True, True, False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}, False, False, False),
    ])
    def test_whether_it_ends_by_itself_and_whose_it_is(self, meta: Json, spec: Json, ends: bool, probe: bool, workload: bool) -> None:
        one = pod(container(efa="2", gpu="1"), **meta)
        one["spec"] |= spec
        load = pod_load(one, resources=RESOURCES)
        assert load is not None
        assert (load.efa, load.gpu, load.ends, load.probe, load.workload) == (2, 1, ends, probe, workload)


class TestNodes:
    def facts(self, node: Json, **more: Any) -> Any:
        return node_facts(node, **{"resources": RESOURCES, "selector": {}, "images": frozenset(), **more})

    @pytest.mark.parametrize(("provider", "identity"), [
        ("aws:///us-west-2a/i-0123456789abcdef0", "i-0123456789abcdef0"), ("aws:///us-west-2a/i-0123456789abcdef0/", "i-0123456789abcdef0"),
        ("", "node-a"), ("kind://docker/kind/kind-worker", "kind-worker"),
    ])
    def test_identity(self, provider: str, identity: str) -> None:
        assert instance_id(provider, "node-a") == identity

    def test_only_selected_nodes_when_there_is_a_selector(self) -> None:
        node = {"metadata": {"name": "a", "labels": {"pool": "gpu"}}}
        assert self.facts(node, selector={"pool": "gpu"}).selected
        assert not self.facts(node, selector={"pool": "cpu"}).selected
        assert not self.facts(node).selected

    def test_nothing_of_a_node_that_only_just_registered(self) -> None:
        found = self.facts({"metadata": {"name": "a"}})
        assert (found.room, found.conditions, found.images_listed, found.created) == ({}, frozenset(), 0, None)
        assert found.schedulable

    def test_a_heartbeat_is_no_change(self) -> None:
        def beat(when: str) -> Json:
            return {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": when}]}}

        assert self.facts(beat("2026-11-29T12:00:00Z")) == self.facts(beat("2026-11-29T12:05:00Z"))

    @pytest.mark.parametrize(("name", "full"), [
        ("busybox", "docker.io/library/busybox:latest"), ("busybox:1", "docker.io/library/busybox:1"),
        ("me/probe:2", "docker.io/me/probe:2"),
        ("ghcr.io/me/probe:2", "ghcr.io/me/probe:2"), ("localhost:5000/probe", "localhost:5000/probe:latest"),
        ("ghcr.io/me/probe@sha256:0", "ghcr.io/me/probe@sha256:0"),
    ])
    def test_image_names_as_runtimes_list_them(self, name: str, full: str) -> None:
        assert canonical(name) == full
        assert canonical(full) == full


class TestDynamicAllocation:
    DRA = Dra()

    def test_which_devices_are_efa_devices(self) -> None:
        assert is_efa({"attributes": {"dra.net/rdma": {"bool": True}}})
        assert is_efa({"attributes": {"dra.net/rdmaDevice": {"string": "rdmap79s0"}}})
        assert is_efa({"attributes": {"deviceType": {"string": "EFA"}}})
        assert is_efa({"basic": {"attributes": {"dra.net/rdma": {"bool": True}}}})
        assert not is_efa({"attributes": {"dra.net/rdma": {"bool": False}, "dra.net/ifName": {"string": "eth0"}}})
        assert not is_efa({})

    def test_parts_of_gpus_are_no_gpus(self) -> None:
        assert is_gpu({"attributes": {"type": {"string": "gpu"}}})
        assert not is_gpu({"attributes": {"type": {"string": "mig"}}})

    def test_of_a_pool_only_the_newest_generation_counts(self) -> None:
        old = SliceFacts("a", "dra.net", "a", 1, frozenset({"x", "y"}), frozenset())
        new = [SliceFacts("a", "dra.net", "a", 2, frozenset(each), frozenset()) for each in ("x", "z")]
        assert totals([old, *new]) == {"a": (2, 0)}

    def test_who_holds_what(self) -> None:
        slices = [SliceFacts("a", "dra.net", "pool-a", 1, frozenset({"x", "y"}), frozenset()),
                  SliceFacts("a", "gpu.nvidia.com", "gpus-a", 1, frozenset(), frozenset({"g"}))]
        claim = ClaimFacts("n", "c", (("dra.net", "pool-a", "x"), ("gpu.nvidia.com", "gpus-a", "g"), ("dra.net", "pool-b", "x")),
                           (("u2", "p2"), ("u1", "p1")))
        (found,) = held(slices, [claim])["a"]
        assert (found.pod, found.uid, found.efa, found.gpu) == ("p1", "u1", 1, 1)

    def test_devices_reached_with_admin_access_are_held_by_nobody(self) -> None:
        result = {"driver": "dra.net", "pool": "a", "device": "x", "adminAccess": True}
        claim: Json = {"metadata": {"name": "c", "namespace": "n"}, "status": {"allocation": {"devices": {"results": [result]}}}}
        assert claim_facts(claim, self.DRA) is None
        result["adminAccess"] = False
        assert claim_facts(claim, self.DRA) is not None

    def test_slices_of_other_drivers_are_ignored(self) -> None:
        assert slice_facts({"spec": {"driver": "other.example", "nodeName": "a", "devices": [{"name": "x"}]}}, self.DRA) is None




@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3), st.lists(st.text(max_size=12), max_size=4))
def test_odd_labels_and_names_are_no_problem(labels: dict[str, str], images: list[str]) -> None:
    node = {"metadata": {"name": "a", "labels": labels, "annotations": labels}, "status": {"images": [{"names": images, "sizeBytes": 1}]}}
    node_facts(node, resources=RESOURCES, selector=labels, images=frozenset())
