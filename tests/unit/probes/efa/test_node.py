"""The preflight on made nodes: what is missing is named with a remedy, what cannot be told stays open, and nothing hangs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from sysfs_tree import SysfsTree

from probes import node
from probes.efa import devices, libraries, stacks, tools
from probes.efa.tools import Ran
from probes.node import NodeProbe, Places
from probes.node_params import NodeParams
from probes.reasons import Reason
from probes.result import Finding, decode

ROOT = Path(__file__).parents[4]
QUIET = {"fi_info": False, "nixl_agent": False}

FI_INFO = """provider: efa
    fabric: efa-direct
    domain: {name}-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: {name}-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: {name}-dgrm
    type: FI_EP_DGRAM
"""
NIXL_EFA = "I1207 19:34:40.137259 1302 libfabric_topology.cpp:140] Discovered {count} EFA devices\nBACKENDS [\"LIBFABRIC\"]\n"
NIXL_TCP = "I1207 19:34:40.137259 1302 libfabric_topology.cpp:144] Discovered 1 tcp devices (TCP fallback)\nBACKENDS [\"LIBFABRIC\"]\n"


class Tools:
    """Answers of fi_info and of the NIXL agent, as those tools give them."""

    def __init__(self, fi_info: Ran, nixl: Ran) -> None:
        self.fi_info, self.nixl = fi_info, nixl
        self.environs: list[Mapping[str, str] | None] = []

    def __call__(self, command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Ran:
        self.environs.append(environ)
        if command[0] != "fi_info":
            return self.nixl
        return self.fi_info if "-p" in command else Ran(0, "fi_info: 2.1.0amzn3.0\nlibfabric: 2.1.0amzn3.0\nlibfabric api: 2.1\n")


def works(names: Sequence[str]) -> Tools:
    return Tools(Ran(0, "".join(FI_INFO.format(name=name) for name in names)), Ran(0, NIXL_EFA.format(count=len(names))))


def places(root: Path, run: stacks.RunTool, **changes: object) -> Places:
    """A node whose sysfs, /dev and /proc are below `root`, with unlimited locked memory."""
    values = {"sysfs": root / "sys", "dev": root / "dev", "proc": root / "proc", "library_folders": (str(root / "lib"),), "run": run,
              "memlock": lambda: resource.RLIM_INFINITY, **changes}
    return Places(**values)  # type: ignore[arg-type]


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def judged(probe: NodeProbe, params: NodeParams, root: Path, *, efa: bool) -> tuple[Reason, str]:
    return node.judge(probe.checks(params, efa=efa), devices.discover(root / "sys"), efa=efa)


@pytest.mark.parametrize(("layout", "kind", "count"), [
    (SysfsTree.p5, "p5.48xlarge", 32), (SysfsTree.p5en, "p5en.48xlarge", 16), (SysfsTree.p6_b200, "p6-b200.48xlarge", 8),
    (SysfsTree.p4d, "p4d.24xlarge", 4)])
def test_a_whole_node_passes(tmp_path: Path, layout: object, kind: str, count: int) -> None:
    assert callable(layout)
    tree = layout(tmp_path / "sys")
    efa = [name for name in tree.names if name.startswith("rdmap")]
    tree.uverbs(tmp_path / "dev", efa)
    tree.module("2.17.2g")
    probe = NodeProbe(places(tmp_path, works(efa)))
    params = NodeParams(instance_type=kind, allocatable=count)
    findings = probe.checks(params, efa=True)
    assert {finding.check: finding.ok for finding in findings if finding.check != "huge_pages"} == {
        "efa_devices": True, "efa_allocatable": True, "efa_verbs": True, "foreign_verbs": True, "efa_ports": True, "memlock": True,
        "libfabric_efa": True, "nixl_libfabric": True, "libfabric_copies": True}
    assert judged(probe, params, tmp_path, efa=True) == (Reason.OK, f"{count} EFA devices")
    assert probe._versions["efa_driver"] == "2.17.2g"
    assert probe._versions["libfabric"] == "2.1.0amzn3.0"


def test_a_missing_device_is_named_with_a_remedy(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    tree.remove("rdmap85s0")
    probe = NodeProbe(places(tmp_path, works(tree.names)))
    finding = by_name(probe.checks(NodeParams(instance_type="p5.48xlarge"), efa=True))["efa_devices"]
    assert (finding.ok, finding.expected, finding.seen) == (False, "32", "31")
    assert finding.remedy
    reason, message = judged(probe, NodeParams(instance_type="p5.48xlarge"), tmp_path, efa=True)
    assert (reason, "expected 32, seen 31" in message) == (Reason.DEVICES_MISSING, True)


def test_a_number_asked_for_wins_over_the_table(tmp_path: Path) -> None:
    SysfsTree.p6_b200(tmp_path / "sys")
    probe = NodeProbe(places(tmp_path, works([])))
    assert by_name(probe.checks(NodeParams(instance_type="p5.48xlarge", expected_devices=8, **QUIET), efa=False))["efa_devices"].ok is True
    assert by_name(probe.checks(NodeParams(expected_devices=9, **QUIET), efa=False))["efa_devices"].ok is False


def test_an_old_device_plugin_counts_the_mlx5_controllers_of_p6_b200(tmp_path: Path) -> None:
    SysfsTree.p6_b200(tmp_path / "sys")
    finding = by_name(NodeProbe(places(tmp_path, works([]))).checks(NodeParams(allocatable=10, **QUIET), efa=False))["efa_allocatable"]
    assert (finding.ok, finding.expected, finding.seen) == (False, "8", "10 allocatable")
    assert finding.remedy is not None
    assert "0.5.10" in finding.remedy


def test_a_host_path_that_shows_mlx5_verbs_files_is_found(tmp_path: Path) -> None:
    tree = SysfsTree.p6_b200(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    probe = NodeProbe(places(tmp_path, works(tree.names[:8])))
    finding = by_name(probe.checks(NodeParams(), efa=True))["foreign_verbs"]
    assert (finding.ok, finding.seen) == (False, "ibp12s0, ibp13s0")
    assert judged(probe, NodeParams(), tmp_path, efa=True)[0] is Reason.NODE_MISCONFIGURED


def test_a_pod_without_devices_fails_where_efa_is_required_and_only_there(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev", [])
    nothing = Tools(Ran(61, "fi_getinfo: -61 (No data available)\n"), Ran(1, "nixlBackendError: NIXL_ERR_BACKEND\n"))
    probe = NodeProbe(places(tmp_path, nothing))
    required = by_name(probe.checks(NodeParams(), efa=True))
    assert (required["efa_verbs"].ok, required["libfabric_efa"].ok, required["nixl_libfabric"].ok) == (False, False, False)
    assert required["libfabric_efa"].seen == "none, fi_info ended with 61: fi_getinfo: -61 (No data available)"
    assert judged(probe, NodeParams(), tmp_path, efa=True)[0] is Reason.DEVICES_MISSING
    either = by_name(probe.checks(NodeParams(), efa=False))
    assert (either["efa_verbs"].ok, either["libfabric_efa"].ok, either["nixl_libfabric"].ok) == (None, None, None)
    assert judged(probe, NodeParams(), tmp_path, efa=False)[0] is Reason.OK


def test_libfabric_that_lists_fewer_domains_than_devices_is_unusable_transport(tmp_path: Path) -> None:
    tree = SysfsTree.p6_b200(tmp_path / "sys")
    efa = tree.names[:8]
    tree.uverbs(tmp_path / "dev", efa)
    probe = NodeProbe(places(tmp_path, works(efa[:5])))
    finding = by_name(probe.checks(NodeParams(), efa=True))["libfabric_efa"]
    assert (finding.ok, finding.expected, finding.seen) == (False, "8 RDM domains", "5 RDM domains")
    assert judged(probe, NodeParams(), tmp_path, efa=True)[0] is Reason.TRANSPORT_UNAVAILABLE


def test_a_nixl_agent_that_runs_tcp_under_its_name_is_found_and_efa_is_pinned(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    tool = works(tree.names)
    tool.nixl = Ran(0, NIXL_TCP)
    finding = by_name(NodeProbe(places(tmp_path, tool)).checks(NodeParams(), efa=True))["nixl_libfabric"]
    assert (finding.ok, finding.seen) == (False, "LIBFABRIC over tcp")
    assert {"FI_PROVIDER": "efa", "NIXL_LOG_LEVEL": "INFO"} in tool.environs


def test_tools_that_are_not_there_leave_the_check_open(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    neither = Tools(Ran(None, "", missing=True), Ran(3, "No module named nixl\n"))
    found = by_name(NodeProbe(places(tmp_path, neither)).checks(NodeParams(), efa=True))
    assert (found["libfabric_efa"].ok, found["libfabric_efa"].seen) == (None, "fi_info is not installed")
    assert (found["nixl_libfabric"].ok, found["nixl_libfabric"].seen) == (None, "nixl is not installed, or cannot be imported")


def test_a_tool_that_hangs_is_a_failed_check(tmp_path: Path) -> None:
    tree = SysfsTree.p5(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    found = by_name(NodeProbe(places(tmp_path, Tools(Ran(None, ""), Ran(None, "")))).checks(NodeParams(tool_timeout=2), efa=True))
    assert (found["libfabric_efa"].ok, found["libfabric_efa"].seen) == (False, "fi_info did not end within 2 s")
    assert (found["nixl_libfabric"].ok, found["nixl_libfabric"].seen) == (False, "no agent within 2 s")


def test_ports_that_are_down_or_too_slow_are_named(tmp_path: Path) -> None:
    tree = SysfsTree.p5en(tmp_path / "sys")
    (tree.entry("rdmap85s0") / "ports" / "1" / "state").write_text("1: DOWN\n")
    (tree.entry("rdmap86s0") / "ports" / "1" / "rate").write_text("100 Gb/sec (4X EDR)\n")
    probe = NodeProbe(places(tmp_path, works([])))
    finding = by_name(probe.checks(NodeParams(instance_type="p5en.48xlarge", **QUIET), efa=False))["efa_ports"]
    assert (finding.ok, finding.seen) == (False, "rdmap85s0 is DOWN, rdmap86s0 has 100 Gb/s")


@pytest.mark.parametrize(("limit", "capabilities", "efa_here", "ok"), [
    (8 << 20, "0000000000000000", True, False), (8 << 20, "0000000000004000", True, True), (16 << 30, "0", True, True),
    (resource.RLIM_INFINITY, "0", True, True), (8 << 20, "0", False, None)])
def test_locked_memory(tmp_path: Path, limit: int, capabilities: str, efa_here: bool, ok: bool | None) -> None:
    if efa_here:
        SysfsTree.p5(tmp_path / "sys")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    probe = NodeProbe(places(tmp_path, works([]), memlock=lambda: limit))
    assert by_name(probe.checks(NodeParams(**QUIET), efa=False))["memlock"].ok is ok


@pytest.mark.parametrize(("free", "wanted", "ok"), [
    (512, 1 << 30, True), (511, 1 << 30, False), (0, 0, True), (None, 1, False), (None, 0, None)])
def test_huge_pages(tmp_path: Path, free: int | None, wanted: int, ok: bool | None) -> None:
    if free is not None:
        folder = tmp_path / "sys" / "kernel" / "mm" / "hugepages" / "hugepages-2048kB"
        folder.mkdir(parents=True)
        (folder / "free_hugepages").write_text(f"{free}\n")
    finding = by_name(NodeProbe(places(tmp_path, works([]))).checks(NodeParams(min_hugepages=wanted, **QUIET), efa=False))["huge_pages"]
    assert finding.ok is ok


def test_several_libfabric_copies_are_a_risk_that_is_shown(tmp_path: Path) -> None:
    for folder in ("lib", "lib64"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "libfabric.so.1.29.0").touch()
        (tmp_path / folder / "libfabric.so.1").symlink_to("libfabric.so.1.29.0")
    packages = tmp_path / "site-packages"
    (packages / "nixl_cu13.libs").mkdir(parents=True)
    (packages / "nixl_cu13.libs" / "libfabric-3c5e.so.1").touch()
    found = libraries.libfabric_copies([str(tmp_path / "lib"), str(tmp_path / "lib64")], [str(packages)])
    assert [Path(path).relative_to(tmp_path).as_posix() for path in found] == [
        "lib/libfabric.so.1.29.0", "lib64/libfabric.so.1.29.0", "site-packages/nixl_cu13.libs/libfabric-3c5e.so.1"]
    probe = NodeProbe(places(tmp_path, works([]), library_folders=(str(tmp_path / "lib"), str(tmp_path / "lib64"))))
    finding = by_name(probe.checks(NodeParams(**QUIET), efa=False))["libfabric_copies"]
    assert finding.ok is None
    assert finding.remedy is not None


def test_every_failed_check_says_what_to_do(tmp_path: Path) -> None:
    tree = SysfsTree.p6_b200(tmp_path / "sys")
    tree.uverbs(tmp_path / "dev")
    (tree.entry("rdmap79s0") / "ports" / "1" / "state").write_text("1: DOWN\n")
    broken = Tools(Ran(61, "fi_getinfo: -61 (No data available)\n"), Ran(-6, "abort\n"))
    probe = NodeProbe(places(tmp_path, broken, memlock=lambda: 65536))
    params = NodeParams(expected_devices=99, allocatable=1, min_hugepages=1 << 30)
    failed = [finding for finding in probe.checks(params, efa=True) if finding.ok is False]
    assert len(failed) == 8
    assert all(finding.remedy and finding.expected and finding.seen for finding in failed)


# --- tools under a deadline --------------------------------------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    """Whether a process has ended within a second, waited for or not."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_a_tool_and_what_it_started_end_at_the_deadline(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    began = time.monotonic()
    ran = tools.run(["sh", "-c", f"sleep 60 & echo $! > {mark}; echo started; wait"], 0.5)
    assert time.monotonic() - began < 5
    assert (ran.code, ran.output) == (None, "started\n")
    assert gone(int(mark.read_text()))


def test_what_a_tool_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    assert tools.run(["sh", "-c", f"sleep 60 & echo $! > {mark}"], 5).code == 0
    assert gone(int(mark.read_text()))


def test_a_missing_tool_and_a_signal_are_told_apart() -> None:
    assert tools.run(["no-such-tool-here"], 1).missing is True
    assert tools.run(["sh", "-c", "kill -6 $$"], 5).code == -6


def test_endless_output_is_bounded() -> None:
    ran = tools.run([sys.executable, "-c", "import sys\nfor _ in range(40): sys.stdout.write('x' * (1 << 16))"], 10)
    assert len(ran.output) == tools.OUTPUT_LIMIT


# --- the whole worker ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transport", "spec", "reason"), [
    ("any", {}, Reason.OK), ("efa", {}, Reason.DEVICES_MISSING), ("any", {"expected_devices": 4}, Reason.DEVICES_MISSING),
    ("any", {"expected_device": 4}, Reason.BAD_SPEC)])
def test_the_worker_leaves_a_result_on_a_machine_without_efa(tmp_path: Path, transport: str, spec: dict[str, int], reason: Reason) -> None:
    if devices.discover().devices:
        pytest.skip("this machine has EFA devices")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "EFA_PULSE_RUN_ID": "r1", "EFA_PULSE_PROBE": "node", "EFA_PULSE_TARGET": "n",
               "EFA_PULSE_NODE": "n", "EFA_PULSE_TRANSPORT": transport, "EFA_PULSE_DEADLINE": "30",
               "EFA_PULSE_SPEC": json.dumps({**QUIET, **spec}), "EFA_PULSE_RESULT_PATH": str(tmp_path / "result")}
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    result = decode((tmp_path / "result").read_bytes())
    assert result.reason is reason, result.message
    if reason is Reason.OK:
        assert result.message == "no EFA device, and none was expected"
        assert by_name(result.findings)["efa_devices"].ok is None
        assert result.versions["kernel"] == libraries.kernel()
