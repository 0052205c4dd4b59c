"""Discovery on made trees of the real instance layouts, and the instance table."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs_tree import SysfsTree

from probes.efa import devices, instances


def test_a_p5_has_32_devices_of_100_gbit(tmp_path: Path) -> None:
    SysfsTree.p5(tmp_path)
    found = devices.discover(tmp_path)
    assert len(found.devices) == 32
    assert found.names == tuple(sorted(found.names))
    assert {(d.generation, d.rate, d.state) for d in found.devices} == {(2, 12.5e9, "ACTIVE")}
    assert found.others == ()


def test_a_p5en_has_gaps_in_its_names(tmp_path: Path) -> None:
    SysfsTree.p5en(tmp_path)
    found = devices.discover(tmp_path)
    assert len(found.devices) == 16
    assert {"rdmap85s0", "rdmap163s0"} <= set(found.names)
    assert {d.rate for d in found.devices} == {25e9}


def test_mlx5_controllers_of_a_p6_b200_are_shown_apart_and_not_counted(tmp_path: Path) -> None:
    SysfsTree.p6_b200(tmp_path)
    found = devices.discover(tmp_path)
    assert len(found.devices) == 8
    assert found.others == ("ibp12s0", "ibp13s0")
    assert found.devices[0].pci.startswith("0000:")


def test_without_a_driver_link_the_pci_ids_decide(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0", driver=False)
    assert devices.discover(tmp_path).names == ("rdmap1s0",)


def test_another_driver_on_an_amazon_device_is_not_efa(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0", driver=False)
    (tmp_path / "bus").mkdir()
    (tree.entry("rdmap1s0") / "device" / "driver").symlink_to(tmp_path / "bus" / "vfio-pci")
    assert devices.discover(tmp_path).names == ()


def test_a_machine_without_rdma_is_told_from_one_whose_tree_cannot_be_read(tmp_path: Path) -> None:
    assert devices.discover(tmp_path) == devices.Inventory((), (), readable=False)
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    assert devices.discover(tmp_path) == devices.Inventory((), (), readable=True)


def test_missing_attributes_are_none(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0")
    for file in ("ports/1/rate", "ports/1/state", "fw_ver", "device/numa_node"):
        (tree.entry("rdmap1s0") / file).unlink()
    (device,) = devices.discover(tmp_path).devices
    assert (device.rate, device.state, device.firmware, device.numa_node) == (None, None, None, None)


@pytest.mark.parametrize(("text", "rate"), [
    ("200 Gb/sec (4X HDR)", 25e9), ("2.5 Gb/sec (1X SDR)", 2.5e9 / 8), ("fast", None), ("x Gb/sec", None)])
def test_port_rates(tmp_path: Path, text: str, rate: float | None) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0")
    (tree.entry("rdmap1s0") / "ports" / "1" / "rate").write_text(text)
    assert devices.discover(tmp_path).devices[0].rate == rate


def test_allocated_devices_are_those_with_a_verbs_file_in_this_container(tmp_path: Path) -> None:
    tree = SysfsTree.p6_b200(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev", ["rdmap80s0", "rdmap83s0", "ibp12s0"])
    found = devices.discover(tmp_path / "sys")
    assert devices.allocated(found, tmp_path / "sys", tmp_path / "dev") == ("rdmap80s0", "rdmap83s0")


def test_allocation_is_unknown_without_the_verbs_class(tmp_path: Path) -> None:
    SysfsTree.p5(tmp_path)
    assert devices.allocated(devices.discover(tmp_path), tmp_path, tmp_path / "dev") is None
    assert devices.allocated(devices.Inventory((), (), readable=False), tmp_path, tmp_path / "dev") == ()


def test_the_driver_tells_its_version(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    assert devices.driver_version(tmp_path) is None
    tree.module("2.17.2g")
    assert devices.driver_version(tmp_path) == "2.17.2g"


@pytest.mark.parametrize(("name", "count", "gbit", "total"), [
    ("p4d.24xlarge", 4, 100, 50e9), ("p5.48xlarge", 32, 100, 400e9), ("p5en.48xlarge", 16, 200, 400e9), ("p6-b200.48xlarge", 8, 400, 400e9),
    ("p6-b300.48xlarge", 16, 400, 800e9), ("g6e.48xlarge", 4, 100, 50e9), ("g6.8xlarge", 1, 25, 3.125e9)])
def test_the_table_gives_count_and_line_rate(name: str, count: int, gbit: float, total: float) -> None:
    row = instances.lookup(name)
    assert row is not None
    assert (row.efa, row.gbit, row.line_rate) == (count, gbit, total)


def test_rdma_is_known_or_unknown_never_assumed() -> None:
    assert {name: row.rdma for name, row in instances.table().items() if name in ("p4d.24xlarge", "p5.48xlarge", "g5.48xlarge")} == {
        "p4d.24xlarge": True, "p5.48xlarge": True, "g5.48xlarge": None}


def test_every_row_names_its_source_and_unknown_types_have_no_row() -> None:
    assert all(row.source for row in instances.table().values())
    assert instances.lookup("m7i.large") is None
    assert instances.lookup(None) is None
