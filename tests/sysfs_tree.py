"""A made sysfs tree with RDMA devices, laid out as the kernel does: for tests of everything that looks at EFA devices and counters."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PORT = ("tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs", "rdma_read_wrs",
        "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err",
        "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events",
        "impaired_remote_conn_events")
DEVICE = ("submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err", "create_qp_err",
          "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err", "alloc_mr_err", "get_dma_mr_err")
SINCE_2_17 = ("retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")
WRITES = ("rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes")


class SysfsTree:
    """A sysfs root in a temporary folder. All counters start at 1000 so that a missing one cannot pass for zero."""

    START = 1000

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: list[str] = []
        (root / "class").mkdir(parents=True, exist_ok=True)

    @classmethod
    def p4d(cls, root: Path) -> SysfsTree:
        """Four first-generation devices without write and retransmit counters, as an older driver shows them."""
        tree = cls(root)
        for bus in (16, 32, 144, 160):
            tree.efa(f"rdmap{bus}s27", generation=1, gbit=100, without=SINCE_2_17 + WRITES)
        return tree

    @classmethod
    def p5(cls, root: Path) -> SysfsTree:
        """32 devices of 100 Gb/s."""
        tree = cls(root)
        for index in range(32):
            tree.efa(f"rdmap{79 + index}s0", generation=2, gbit=100)
        return tree

    @classmethod
    def p5en(cls, root: Path) -> SysfsTree:
        """16 devices of 200 Gb/s with the gaps in their names that p5en has."""
        tree = cls(root)
        for bus in (*range(85, 89), *range(110, 114), *range(135, 139), *range(160, 164)):
            tree.efa(f"rdmap{bus}s0", generation=3, gbit=200)
        return tree

    @classmethod
    def p6_b200(cls, root: Path) -> SysfsTree:
        """Eight devices of 400 Gb/s, and two mlx5 controllers that are not EFA."""
        tree = cls(root)
        for index in range(8):
            tree.efa(f"rdmap{79 + index}s0", generation=4, gbit=400)
        tree.mlx5("ibp12s0")
        tree.mlx5("ibp13s0")
        return tree

    def efa(self, name: str, *, generation: int = 2, gbit: int = 100, without: tuple[str, ...] = (), driver: bool = True,
            lifespan: int = 10) -> None:
        """Add an EFA device."""
        self._device(name, "0x1d0f", f"0xefa{generation - 1}", "efa" if driver else None, gbit)
        entry = self.entry(name)
        for folder, counters in ((entry / "hw_counters", DEVICE), (entry / "ports" / "1" / "hw_counters", PORT)):
            folder.mkdir(parents=True)
            (folder / "lifespan").write_text(f"{lifespan}\n")
            for counter in counters:
                if counter not in without:
                    (folder / counter).write_text(f"{self.START}\n")

    def mlx5(self, name: str) -> None:
        """Add an InfiniBand controller with counters of its own, which nobody may count as EFA."""
        self._device(name, "0x15b3", "0x1021", "mlx5_core", 400)
        folder = self.entry(name) / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True)
        (folder / "tx_bytes").write_text("999999999\n")

    def entry(self, name: str) -> Path:
        """The device's folder below class/infiniband."""
        return self.root / "class" / "infiniband" / name

    def file(self, name: str, counter: str) -> Path:
        """The file of a counter, port or device level."""
        level = self.entry(name) / "hw_counters" if counter in DEVICE else self.entry(name) / "ports" / "1" / "hw_counters"
        return level / counter

    def set(self, name: str, counter: str, value: int) -> None:
        """Give a counter a value."""
        self.file(name, counter).write_text(f"{value}\n")

    def add(self, name: str, **increments: int) -> None:
        """Raise counters by so much."""
        for counter, by in increments.items():
            self.set(name, counter, int(self.file(name, counter).read_text()) + by)

    def remove(self, name: str) -> None:
        """The device vanishes."""
        shutil.rmtree(self.entry(name))

    def uverbs(self, dev: Path, names: list[str] | None = None) -> None:
        """Make /dev/infiniband/uverbsN for the named devices (default: all), as a device plugin does; sysfs lists all of them."""
        (dev / "infiniband").mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(self.names):
            folder = self.root / "class" / "infiniband_verbs" / f"uverbs{index}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "ibdev").write_text(f"{name}\n")
            if names is None or name in names:
                (dev / "infiniband" / f"uverbs{index}").touch()

    def module(self, version: str) -> None:
        """Show a loaded EFA kernel module."""
        (self.root / "module" / "efa").mkdir(parents=True)
        (self.root / "module" / "efa" / "version").write_text(f"{version}\n")

    def _device(self, name: str, vendor: str, identity: str, driver: str | None, gbit: int) -> None:
        self.names.append(name)
        pci = self.root / "devices" / f"pci0000:00/0000:{len(self.names):02x}:00.0"
        pci.mkdir(parents=True)
        for file, text in (("vendor", vendor), ("device", identity), ("numa_node", str(len(self.names) % 2))):
            (pci / file).write_text(text + "\n")
        if driver is not None:
            (self.root / "bus" / "pci" / "drivers" / driver).mkdir(parents=True, exist_ok=True)
            _link(pci / "driver", self.root / "bus" / "pci" / "drivers" / driver)
        port = self.entry(name) / "ports" / "1"
        port.mkdir(parents=True)
        _link(self.entry(name) / "device", pci)
        (self.entry(name) / "fw_ver").write_text("0.0.0.0\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "rate").write_text(f"{gbit} Gb/sec (4X EDR)\n")


def _link(link: Path, target: Path) -> None:
    """A relative symlink, as in a real sysfs: it also leads somewhere where the tree is mounted at another place."""
    link.symlink_to(os.path.relpath(target, link.parent))
