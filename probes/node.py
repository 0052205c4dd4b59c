"""Preflight of one node: no GPU, no peer, seconds. Is the EFA path there, whole, and usable by this worker?

Each check is a finding: `ok` true or false, or None where it could not be made or where nothing was expected. Where EFA is required
(`transport: efa`) a missing device or an unusable path fails the node; where any transport will do, a node without EFA is fine and shown.
No counter file is opened.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from probes.efa import devices, instances, libraries, stacks, tools
from probes.efa.devices import Inventory
from probes.efa.stacks import RunTool
from probes.node_params import NodeParams
from probes.reasons import Reason
from probes.result import Evidence, Finding, Phase
from probes.worker import Context, Report

DEVICE_CHECKS = frozenset({"efa_devices", "efa_allocatable", "efa_verbs"})
TRANSPORT_CHECKS = frozenset({"libfabric_efa", "nixl_libfabric"})
HUGE_PAGE = 2 << 20
CAP_IPC_LOCK = 14
NO_VERBS_CLASS = "the kernel does not say which verbs file belongs to which device"


@dataclass(frozen=True)
class Places:
    """Where the preflight looks. The defaults are the machine it runs on."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    library_folders: Sequence[str] = libraries.FOLDERS
    run: RunTool = tools.run
    memlock: Callable[[], int] = field(default=lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])


class NodeProbe:
    """The probe `node`."""

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places()
        self._versions: dict[str, str] = {}

    def run(self, ctx: Context) -> Report:
        """Make all checks and judge them together."""
        params = ctx.parse(NodeParams)
        ctx.phase(Phase.SETUP)
        efa = ctx.env.transport == "efa"
        ctx.phase(Phase.MEASURE)
        findings = self.checks(params, efa=efa, seconds=min(params.tool_timeout, ctx.remaining() / 3))
        inventory = devices.discover(self._places.sysfs)
        allocated = devices.allocated(inventory, self._places.sysfs, self._places.dev)
        reason, message = judge(findings, inventory, efa=efa)
        expected = _expected(params)
        shape: dict[str, int | float | str] = {"expected_devices": expected} if expected is not None else {}
        if params.allocatable is not None:
            shape["allocatable_devices"] = params.allocatable
        evidence = Evidence(stack="node", nics_seen=len(inventory.devices), nics_allocated=None if allocated is None else len(allocated),
                            devices=list(inventory.names))
        return Report(reason, message, findings=findings, evidence=evidence, versions=self._versions, shape=shape)

    def checks(self, params: NodeParams, *, efa: bool, seconds: float | None = None) -> list[Finding]:
        """All findings, in a fixed order. `efa`: EFA is required. `seconds`: deadline of each tool, default that of the parameters."""
        places = self._places
        seconds = params.tool_timeout if seconds is None else seconds
        inventory = devices.discover(places.sysfs)
        allocated = devices.allocated(inventory, places.sysfs, places.dev)
        needed = efa or bool(inventory.devices)
        findings = [
            _devices(inventory, params, efa=efa),
            _allocatable(inventory, params),
            _verbs(inventory, allocated, efa=efa),
            _foreign_verbs(inventory, places),
            _ports(inventory, params),
            _memlock(places, params, needed=needed),
            _huge_pages(places.sysfs, params),
        ]
        usable = len(allocated) if allocated else None
        findings.append(stacks.libfabric(places.run, seconds, usable, required=efa, wanted=params.fi_info))
        findings.append(stacks.nixl(places.run, seconds, usable, required=efa, wanted=params.nixl_agent))
        findings.append(_copies(libraries.libfabric_copies(places.library_folders)))
        self._versions = _versions(places)
        return findings


def judge(findings: Iterable[Finding], inventory: Inventory, *, efa: bool) -> tuple[Reason, str]:
    """The reason that the findings add up to, and a message that names the checks behind it."""
    failed = [finding for finding in findings if finding.ok is False]
    said = "; ".join(f"{finding.check}: expected {finding.expected}, seen {finding.seen}" for finding in failed)
    names = {finding.check for finding in failed}
    if names & DEVICE_CHECKS:
        return Reason.DEVICES_MISSING, said
    if names & TRANSPORT_CHECKS:
        return Reason.TRANSPORT_UNAVAILABLE, said
    if names:
        return Reason.NODE_MISCONFIGURED, said
    if not inventory.devices and not efa:
        return Reason.OK, "no EFA device, and none was expected"
    return Reason.OK, f"{len(inventory.devices)} EFA devices"


def _expected(params: NodeParams) -> int | None:
    row = instances.lookup(params.instance_type)
    return params.expected_devices if params.expected_devices is not None else row.efa if row else None


def _devices(inventory: Inventory, params: NodeParams, *, efa: bool) -> Finding:
    """As many devices as the instance type has, or as were asked for; at least one where EFA is required."""
    expected, seen = _expected(params), len(inventory.devices)
    shown = f"{seen}" if inventory.readable else f"{seen}, this kernel shows no RDMA devices at all"
    if inventory.others:
        shown += f" (and {', '.join(inventory.others[:4])}, which are not EFA)"
    if params.instance_type is not None and expected is None:
        shown += f"; instance type {params.instance_type} is not in the table"
    remedy = "attach the missing EFA interfaces in the launch template; look for the efa driver's messages in dmesg"
    if expected is not None:
        # Devices beyond what was expected are somebody's wrong expectation, not a fault of the node.
        good = seen >= expected
        return Finding(check="efa_devices", ok=good, expected=str(expected), seen=shown, remedy=None if good else remedy)
    if efa:
        return Finding(check="efa_devices", ok=seen > 0, expected="at least 1", seen=shown, remedy=None if seen else remedy)
    return Finding(check="efa_devices", ok=True if seen else None, seen=shown)


def _allocatable(inventory: Inventory, params: NodeParams) -> Finding:
    """Kubernetes lists as many devices as there are: an old device plugin counts none, or the NVLink controllers of p6-b200 too."""
    if params.allocatable is None:
        return Finding(check="efa_allocatable", ok=None, seen="not told what Kubernetes lists")
    good = params.allocatable == len(inventory.devices)
    remedy = "update the EFA device plugin (0.5.10 or later for p6-b200) and check that its DaemonSet runs on this node"
    return Finding(check="efa_allocatable", ok=good, expected=str(len(inventory.devices)), seen=f"{params.allocatable} allocatable",
                   remedy=None if good else remedy)


def _verbs(inventory: Inventory, allocated: tuple[str, ...] | None, *, efa: bool) -> Finding:
    """The worker may open EFA devices: their verbs files are in its /dev."""
    if not inventory.devices and not efa:
        return Finding(check="efa_verbs", ok=None, seen="no EFA device")
    if allocated is None:
        return Finding(check="efa_verbs", ok=None, expected="at least 1", seen=NO_VERBS_CLASS)
    remedy = "request vpc.amazonaws.com/efa in the pod; do not mount /dev/infiniband instead"
    seen = f"{len(allocated)} of {len(inventory.devices)} devices"
    return Finding(check="efa_verbs", ok=bool(allocated) or (False if efa else None), expected="at least 1", seen=seen,
                   remedy=None if allocated else remedy)


def _foreign_verbs(inventory: Inventory, places: Places) -> Finding:
    """No verbs file of another kind of device beside EFA ones: libfabric's scan for EFA fails on it."""
    if not inventory.devices:
        return Finding(check="foreign_verbs", ok=None, seen="no EFA device")
    others = Inventory(tuple(devices.EfaDevice(name, "") for name in inventory.others), (), readable=True)
    visible = devices.allocated(others, places.sysfs, places.dev)
    if visible is None:
        return Finding(check="foreign_verbs", ok=None, seen=NO_VERBS_CLASS)
    remedy = "give the pod its devices by the device plugin only; a hostPath /dev/infiniband also shows mlx5 devices"
    return Finding(check="foreign_verbs", ok=not visible, expected="none", seen=", ".join(visible) or "none",
                   remedy=remedy if visible else None)


def _ports(inventory: Inventory, params: NodeParams) -> Finding:
    """Every port is active and as fast as the instance type's."""
    row = instances.lookup(params.instance_type)
    rate = row.gbit * 1e9 / 8 if row else None
    told = [device for device in inventory.devices if device.state is not None]
    if not told:
        return Finding(check="efa_ports", ok=None, seen="no port state to see")
    bad = [f"{device.name} is {device.state}" for device in told if device.state != "ACTIVE"]
    bad += [f"{device.name} has {device.rate * 8 / 1e9:g} Gb/s" for device in told
            if rate is not None and device.rate is not None and device.rate < rate]
    wanted = "all ACTIVE" + (f", {rate * 8 / 1e9:g} Gb/s" if rate is not None else "")
    remedy = "stop and start the instance to get other hardware; open a case with AWS if it stays"
    return Finding(check="efa_ports", ok=not bad, expected=wanted, seen=", ".join(bad[:8]) or f"{len(told)} ports",
                   remedy=remedy if bad else None)


def _memlock(places: Places, params: NodeParams, *, needed: bool) -> Finding:
    """The worker may lock the memory it registers, by its limit or by CAP_IPC_LOCK."""
    limit = places.memlock()
    unlimited = limit == resource.RLIM_INFINITY
    locks = _may_lock(places.proc)
    seen = "unlimited" if unlimited else f"{limit} bytes, and CAP_IPC_LOCK lifts it" if locks else f"{limit} bytes"
    good = unlimited or locks or limit >= params.min_memlock
    if not needed:
        return Finding(check="memlock", ok=True if good else None, expected=f"{params.min_memlock} bytes where there is EFA", seen=seen)
    remedy = "raise LimitMEMLOCK of the container runtime, or give the pod IPC_LOCK"
    return Finding(check="memlock", ok=good, expected=f"at least {params.min_memlock} bytes", seen=seen, remedy=None if good else remedy)


def _may_lock(proc: Path) -> bool:
    """Whether this process has CAP_IPC_LOCK, with which no limit counts."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
        return any(bool(int(line.split()[1], 16) >> CAP_IPC_LOCK & 1) for line in lines if line.startswith("CapEff:"))
    except (OSError, ValueError, IndexError):
        return False


def _huge_pages(sysfs: Path, params: NodeParams) -> Finding:
    """Free huge pages of 2 MiB; only shown where none are asked for."""
    folder = sysfs / "kernel" / "mm" / "hugepages" / "hugepages-2048kB"
    try:
        free = int((folder / "free_hugepages").read_text()) * HUGE_PAGE
    except (OSError, ValueError):
        return Finding(check="huge_pages", ok=False if params.min_hugepages else None, seen="not told",
                       expected=f"{params.min_hugepages} bytes free" if params.min_hugepages else None,
                       remedy="give the node huge pages of 2 MiB" if params.min_hugepages else None)
    good = free >= params.min_hugepages
    return Finding(check="huge_pages", ok=good, expected=f"{params.min_hugepages} bytes free" if params.min_hugepages else None,
                   seen=f"{free} bytes free", remedy=None if good else "raise vm.nr_hugepages on the node, or lower what its pods request")


def _copies(found: Sequence[str]) -> Finding:
    """One libfabric. Several are a risk, not a fault: they hurt when one process loads two."""
    if len(found) <= 1:
        return Finding(check="libfabric_copies", ok=True, seen=found[0] if found else "none")
    return Finding(check="libfabric_copies", ok=None, expected="1", seen=", ".join(found[:6]),
                   remedy="a process that loads two of them sees no EFA through the second: keep one, first on the library path")


def _versions(places: Places) -> dict[str, str]:
    found = {"kernel": libraries.kernel(), "efa_driver": devices.driver_version(places.sysfs),
             "libfabric": stacks.libfabric_version(places.run), "nixl": libraries.package_version(("nixl", "nixl-cu12", "nixl-cu13"))}
    return {name: value for name, value in found.items() if value is not None}
