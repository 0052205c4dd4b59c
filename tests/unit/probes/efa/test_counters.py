"""Counters: a missing file is absent, foreign devices are ignored, and nobody but the witness opens a counter file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sysfs_tree import DEVICE, PORT, SINCE_2_17, WRITES, SysfsTree

from probes.efa.counters import CounterReader, SysfsError

ROOT = Path(__file__).parents[4]


def test_port_and_device_counters_of_every_efa_device_are_read(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path)
    tree.set("rdmap79s0", "rdma_write_bytes", 2**63)
    read = CounterReader(tmp_path).read()
    assert list(read) == sorted(tree.names)
    assert set(read["rdmap79s0"]) == {*PORT, *DEVICE}
    assert read["rdmap79s0"]["rdma_write_bytes"] == 2**63
    assert read["rdmap80s0"]["cmds_err"] == tree.START


def test_mlx5_devices_are_ignored(tmp_path: Path) -> None:
    SysfsTree.p6_b200(tmp_path)
    assert not any(name.startswith("ibp") for name in CounterReader(tmp_path).read())


def test_counters_an_older_driver_has_not_are_absent_not_zero(tmp_path: Path) -> None:
    SysfsTree.p4d(tmp_path)
    for counters in CounterReader(tmp_path).read().values():
        assert not counters.keys() & {*SINCE_2_17, *WRITES}
        assert counters["rdma_read_bytes"] == SysfsTree.START


def test_an_unreadable_counter_is_absent_and_counted(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0")
    tree.file("rdmap1s0", "rx_drops").write_text("not a number\n")
    tree.file("rdmap1s0", "tx_bytes").write_text("-5\n")
    tree.file("rdmap1s0", "rx_bytes").unlink()
    tree.file("rdmap1s0", "rx_bytes").mkdir()
    reader = CounterReader(tmp_path)
    counters = reader.read()["rdmap1s0"]
    assert not counters.keys() & {"rx_drops", "tx_bytes", "rx_bytes"}
    assert reader.errors == 2


def test_the_longest_lifespan_is_known(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.efa("rdmap1s0", lifespan=10)
    tree.efa("rdmap2s0", lifespan=250)
    reader = CounterReader(tmp_path)
    assert "lifespan" not in reader.read()["rdmap1s0"]
    assert reader.lifespan == 0.25


def test_no_tree_no_device_no_counter(tmp_path: Path) -> None:
    assert CounterReader(tmp_path / "none").read() == {}
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    assert CounterReader(tmp_path).read() == {}


def test_a_device_without_counter_folders_is_there_with_nothing(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree._device("rdmap1s0", "0x1d0f", "0xefa1", "efa", 100)
    assert CounterReader(tmp_path).read() == {"rdmap1s0": {}}


@pytest.mark.parametrize("path", ["/sys", "/sys/", "/sys/class/..", "/sys/class"])
def test_the_process_own_sysfs_is_refused(path: str) -> None:
    with pytest.raises(SysfsError, match="own sysfs"):
        CounterReader(Path(path))


def test_a_link_to_the_own_sysfs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "host").symlink_to("/sys")
    with pytest.raises(SysfsError, match="/host/sys"):
        CounterReader(tmp_path / "host")


def test_only_one_module_names_counter_files_and_only_the_witness_imports_it() -> None:
    """The hard rule, by source: what could open `hw_counters` is `probes.efa.counters`, and only `probes.witness` may read with it."""
    naming, importing = set(), set()
    for path in [*(ROOT / "probes").rglob("*.py"), *(ROOT / "exporter").rglob("*.py")]:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and "hw_counters" in str(node.value) and id(node) not in documentation:
                naming.add(module)
            if isinstance(node, (ast.Name, ast.alias, ast.Attribute)) and "CounterReader" in ast.dump(node):
                importing.add(module)
    assert naming == {"probes.efa.counters"}
    assert importing == {"probes.witness.service"}


TRACED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "os.listdir", "os.scandir") else None)
from pathlib import Path
import os
from probes.efa import devices, pressure, sockets, markers, instances, window
from probes.node import NodeProbe, Places
root = Path(sys.argv[1])
found = devices.discover(root)
devices.allocated(found, root, root / "dev")
watch = sockets.SocketBytes(os.getpid()); watch.mark(); watch.since_mark()
load = pressure.Pressure(os.getpid()); load.mark(); load.since_mark()
markers.scan("nccl", "Using network Socket")
from probes.node_params import NodeParams
NodeProbe(Places(sysfs=root, dev=root / "dev")).checks(NodeParams(fi_info=False, nixl_agent=False), efa=True)
assert len(found.devices) == 8 and len(opened) > 50
print([path for path in opened if "hw_counters" in path])
"""


def test_nothing_a_worker_runs_opens_a_counter_file(tmp_path: Path) -> None:
    """The hard rule, by trace: discovery, preflight, sockets, pressure and markers on a tree full of counters open none of them."""
    SysfsTree.p6_b200(tmp_path)
    done = subprocess.run([sys.executable, "-c", TRACED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.stdout.strip() == "[]", done.stderr
