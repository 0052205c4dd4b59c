"""Gates: one case for each that closes it, one that leaves it open, and what passes by itself and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.planning import Gates, Toleration
from exporter.inventory import Holder, Node, Room, Taint
from exporter.plan.gates import BUDGET_GATES, GATE_NAMES, GATES, Closed, FirstClosed, Moment, Stay, closed, parse_exclude, tolerates
from exporter.plan.probes import Needs

NOW = 1_800_000_000.0
OPEN = Node(instance_id="i-1", name="n1", efa=Room(32), gpu=Room(8), created=NOW - 3600, memory=Room(1 << 40), hugepages=Room(16 << 30),
            cpu=Room(192_000, 1000), pods=Room(110, 10), line_rate=400e9, disk_free=200 << 30, images={"probe:1": 1}, images_listed=1)
NEEDS = Needs(efa=1, gpu=0, cpu=1000, memory=1 << 30, hugepages=5 << 30, image="probe:1", image_bytes=4 << 30)
MOMENT = Moment(NOW)
SERVING = Holder("serving", "decode-0", efa=32, gpu=8)


def names(node: Node, needs: Needs = NEEDS, moment: Moment = MOMENT) -> list[str]:
    return [found.gate for found in closed(node, needs, moment)]


def only(node: Node, needs: Needs = NEEDS, moment: Moment = MOMENT) -> Closed:
    found = closed(node, needs, moment)
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_free_node_has_no_closed_gate() -> None:
    assert names(OPEN) == []


def test_what_is_not_known_closes_nothing() -> None:
    assert names(Node(instance_id="i", name="n")) == []


CLOSED: list[tuple[str, dict[str, Any], Stay, str]] = [
    ("ready", {"ready": False}, Stay.PASSING, "not Ready"),
    ("schedulable", {"schedulable": False}, Stay.PASSING, "cordoned"),
    ("draining", {"deleting": True}, Stay.PASSING, "being deleted"),
    ("age", {"created": NOW - 299}, Stay.PASSING, "settles for"),
    ("disk", {"disk_pressure": True}, Stay.PASSING, "DiskPressure"),
    ("disk", {"images": {}, "disk_free": 31 << 30}, Stay.PASSING, "32 GiB are needed to pull the image, 31 GiB are free"),
    ("pressure", {"pressures": ("MemoryPressure",)}, Stay.PASSING, "MemoryPressure"),
    ("efa", {"efa": Room(0)}, Stay.PASSING, "lists 0 allocatable"),
    ("efa_room", {"efa": Room(32, 32), "holders": (SERVING,)}, Stay.LASTING, "held by serving/decode-0"),
    ("efa_room", {"efa": Room(32, 32), "holders": (replace(SERVING, ends=True),)}, Stay.PASSING, "0 of 32 free"),
    ("efa_room", {"efa": Room(32, 32), "holders": (replace(SERVING, probe=True),)}, Stay.PASSING, "0 of 32 free"),
    ("efa_room", {"efa": Room(32, 32), "holders": (replace(SERVING, efa=31), Holder("batch", "train-1", efa=1, ends=True))}, Stay.PASSING,
     "held by serving/decode-0, batch/train-1"),
    ("efa_room", {"efa": Room(32, 32)}, Stay.PASSING, "0 of 32 free"),
    ("room", {"memory": Room(1 << 40, 1 << 40)}, Stay.PASSING, "1 GiB of memory"),
    ("room", {"memory": Room(1 << 29)}, Stay.LASTING, "1 GiB of memory"),
    ("room", {"hugepages": Room(16 << 30, 12 << 30)}, Stay.PASSING, "5 GiB of huge pages are needed, 4 GiB are free"),
    ("room", {"cpu": Room(1000, 500)}, Stay.PASSING, "500 are free"),
    ("room", {"pods": Room(110, 110)}, Stay.PASSING, "all 110 pod places"),
    ("busy", {"probe_pods": 1}, Stay.PASSING, "a probe pod"),
]


@pytest.mark.parametrize(("gate", "fields", "stay", "says"), CLOSED)
def test_a_node_closes_the_gate_and_says_why(gate: str, fields: dict[str, Any], stay: Stay, says: str) -> None:
    found = only(replace(OPEN, **fields))
    assert (found.gate, found.stay) == (gate, stay)
    assert says in found.why


def test_gpus_are_asked_for_only_by_probes_that_need_them() -> None:
    full = replace(OPEN, gpu=Room(8, 8), holders=(SERVING,))
    assert names(full) == []
    assert only(full, replace(NEEDS, gpu=1)).gate == "gpu_room"
    assert only(replace(OPEN, gpu=Room(0)), replace(NEEDS, gpu=1)).gate == "gpu"


def test_a_whole_node_is_needed_where_every_device_is_asked_for() -> None:
    whole = replace(NEEDS, efa=None, gpu=None)
    assert names(OPEN, whole) == []
    assert only(replace(OPEN, efa=Room(32, 1)), whole).why.startswith("32 EFA devices needed, 31 of 32 free")


def test_the_preflight_needs_no_device() -> None:
    assert names(replace(OPEN, efa=Room(0)), replace(NEEDS, efa=0)) == []


TAINTS = [
    (Taint("nvidia.com/gpu", "NoSchedule", "true"), None),
    (Taint("aws.amazon.com/efa", "NoExecute"), None),
    (Taint("team", "NoSchedule", "blue"), Stay.LASTING),
    (Taint("team", "PreferNoSchedule", "blue"), None),
    (Taint("node.kubernetes.io/not-ready", "NoExecute"), Stay.PASSING),
]


@pytest.mark.parametrize(("taint", "stay"), TAINTS)
def test_only_taints_that_keep_pods_away_close_the_gate(taint: Taint, stay: Stay | None) -> None:
    found = closed(replace(OPEN, taints=(taint,)), NEEDS, MOMENT)
    assert [one.stay for one in found] == ([stay] if stay else [])
    assert all(one.gate == "taint" and str(taint) in one.why for one in found)


def test_a_configured_toleration_opens_the_gate() -> None:
    moment = replace(MOMENT, settings=Gates(tolerations=(Toleration(key="team", value="blue"),)))
    assert names(replace(OPEN, taints=(Taint("team", "NoSchedule", "blue"),)), moment=moment) == []
    assert names(replace(OPEN, taints=(Taint("team", "NoSchedule", "red"),)), moment=moment) == ["taint"]


def test_tolerations_match_as_in_kubernetes() -> None:
    taint = Taint("k", "NoSchedule", "v")
    assert tolerates(Toleration(operator="Exists"), taint)
    assert tolerates(Toleration(key="k", operator="Exists", effect="NoSchedule"), taint)
    assert not tolerates(Toleration(key="k", operator="Exists", effect="NoExecute"), taint)
    assert not tolerates(Toleration(key="k", value="w"), taint)


@pytest.mark.parametrize("key", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "aws-node-termination-handler/spot-itn"])
def test_a_node_that_is_being_removed_is_draining_whatever_is_tolerated(key: str) -> None:
    moment = replace(MOMENT, settings=Gates(tolerations=(Toleration(operator="Exists"),)))
    assert names(replace(OPEN, taints=(Taint(key, "NoSchedule"),)), moment=moment) == ["draining"]


def test_a_cordoned_node_closes_one_gate_and_not_the_taint_of_the_cordon_as_well() -> None:
    node = replace(OPEN, schedulable=False, taints=(Taint("node.kubernetes.io/unschedulable", "NoSchedule"),))
    assert names(node) == ["schedulable"]


@pytest.mark.parametrize(("mode", "node", "gates"), [
    ("marked", replace(OPEN, workload_pods=0), []),
    ("marked", replace(OPEN, workload_pods=0, taints=(Taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", "1"),)), ["idle"]),
    ("marked", replace(OPEN, workload_pods=3, taints=(Taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", "1"),)), []),
    ("always", replace(OPEN, workload_pods=0), ["idle"]),
    ("always", OPEN, []),
    ("never", replace(OPEN, workload_pods=0, taints=(Taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", "1"),)), []),
])
def test_idle_nodes_are_left_to_the_autoscaler_as_configured(mode: Any, node: Node, gates: list[str]) -> None:
    assert names(node, moment=replace(MOMENT, settings=Gates(idle_skip=mode))) == gates


@pytest.mark.parametrize(("rate", "line", "gates"), [
    (39e9, 400e9, []), (41e9, 400e9, ["background"]), (0.9e9, None, []), (1.1e9, None, ["background"]),
])
def test_background_traffic_closes_the_gate_above_its_ceiling(rate: float, line: float | None, gates: list[str]) -> None:
    moment = replace(MOMENT, background={"i-1": rate})
    assert names(replace(OPEN, line_rate=line), moment=moment) == gates
    assert names(replace(OPEN, line_rate=line), replace(NEEDS, efa=0), moment) == []


def test_the_image_is_waited_for_only_where_that_is_asked() -> None:
    bare = replace(OPEN, images={}, disk_free=None)
    assert names(bare) == []
    assert names(bare, moment=replace(MOMENT, settings=Gates(require_image=True))) == ["image"]


def test_paused_quiet_and_busy_hold_every_node() -> None:
    moment = replace(MOMENT, paused="maintenance by ann", quiet="night", busy={"i-1": "nccl-r1-abc"})
    assert [str(found) for found in closed(OPEN, NEEDS, moment)] == [
        "paused: maintenance by ann", "quiet: night", "busy: run nccl-r1-abc is on the node"]


@pytest.mark.parametrize(("text", "held", "says"), [
    ("bad cable", True, "bad cable (annotation"),
    ("bad cable; until=2099-01-01T00:00:00Z", True, "bad cable, until 2099-01-01T00:00Z"),
    ("bad cable;until=2020-01-01T00:00:00Z", False, ""),
    ("bad cable;until=tomorrow", True, "until='tomorrow' is no time such as"),
    ("", True, "no reason given"),
])
def test_the_exclude_annotation_holds_until_its_end(text: str, held: bool, says: str) -> None:
    found = closed(replace(OPEN, annotations={"efa-pulse.io/exclude": text}), NEEDS, MOMENT)
    assert [(one.gate, one.stay) for one in found] == ([("excluded", Stay.LASTING)] if held else [])
    assert says in "".join(one.why for one in found)


def test_an_end_without_a_time_zone_is_utc() -> None:
    assert parse_exclude("x;until=2027-01-15T08:00:00") == ("x", 1800000000.0, None)


FIELDS = st.fixed_dictionaries({}, optional={
    "ready": st.booleans(), "schedulable": st.booleans(), "deleting": st.booleans(), "disk_pressure": st.booleans(),
    "pressures": st.sampled_from([(), ("PIDPressure",)]), "created": st.sampled_from([NOW, NOW - 1000, None]),
    "efa": st.sampled_from([None, Room(0), Room(32), Room(32, 32)]), "gpu": st.sampled_from([None, Room(0), Room(8), Room(8, 8)]),
    "taints": st.sampled_from([(), (Taint("x", "NoSchedule"),), (Taint("karpenter.sh/disrupted", "NoSchedule"),),
                               (Taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),)]),
    "annotations": st.sampled_from([{}, {"efa-pulse.io/exclude": "x"}]), "workload_pods": st.sampled_from([None, 0, 2]),
    "probe_pods": st.integers(0, 1), "images": st.sampled_from([None, {}, {"probe:1": 1}]),
    "disk_free": st.sampled_from([None, 0, 1 << 40]), "pods": st.sampled_from([None, Room(1, 1)]),
})
MOMENTS = st.builds(
    Moment, st.just(NOW), st.builds(Gates, require_image=st.booleans(), idle_skip=st.sampled_from(["marked", "always", "never"])),
    st.sampled_from([None, "p"]), st.sampled_from([None, "q"]), st.sampled_from([{}, {"i-1": 1e12}]), st.sampled_from([{}, {"i-1": "run"}]))
NEED = st.builds(Needs, efa=st.sampled_from([0, 1, None]), gpu=st.sampled_from([0, 1, None]), image=st.sampled_from([None, "probe:1"]))


@given(FIELDS, NEED, MOMENTS)
def test_the_short_way_through_the_gates_finds_what_the_long_way_finds(fields: dict[str, Any], needs: Needs, moment: Moment) -> None:
    node = replace(OPEN, **fields)
    assert FirstClosed(needs, moment)(node) == next(iter(closed(node, needs, moment)), None)


def test_every_gate_that_can_be_reported_is_declared() -> None:
    assert {gate for gate, *_ in CLOSED} <= set(GATES)
    assert len(GATE_NAMES) == len(set(GATE_NAMES)) == len(GATES) + len(BUDGET_GATES)
