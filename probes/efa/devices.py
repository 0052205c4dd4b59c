"""The EFA devices of a node, found under a sysfs root. Opens no counter file and needs no privilege."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AMAZON = "0x1d0f"
EFA_IDS = ("0xefa0", "0xefa1", "0xefa2", "0xefa3")
DRIVER = "efa"


@dataclass(frozen=True)
class EfaDevice:
    """One EFA device. `generation` comes from its PCI id (0xefa0 is 1), `rate` is the port's, bytes per second. None: not told."""

    name: str
    pci: str
    generation: int | None = None
    numa_node: int | None = None
    state: str | None = None
    rate: float | None = None
    firmware: str | None = None


@dataclass(frozen=True)
class Inventory:
    """What a sysfs tree shows: EFA devices and the names of other RDMA devices, each sorted. `readable` False: there is no such tree."""

    devices: tuple[EfaDevice, ...]
    others: tuple[str, ...]
    readable: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the EFA devices, sorted."""
        return tuple(device.name for device in self.devices)


def discover(sysfs: Path = Path("/sys")) -> Inventory:
    """All RDMA devices below `sysfs`. A device is EFA by its driver, or by its PCI ids where no driver link is shown.

    Others (mlx5, also the `ibp*` controllers of p6-b200) are listed apart and never counted.
    """
    folder = sysfs / "class" / "infiniband"
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError:
        return Inventory((), (), readable=False)
    efa: list[EfaDevice] = []
    others: list[str] = []
    for entry in entries:
        if is_efa(entry):
            efa.append(_describe(entry))
        else:
            others.append(entry.name)
    return Inventory(tuple(efa), tuple(others), readable=True)


def is_efa(entry: Path) -> bool:
    """Whether `entry` (a folder of /sys/class/infiniband) is an EFA device."""
    driver = entry / "device" / "driver"
    try:
        return driver.readlink().name == DRIVER
    except OSError:
        return _text(entry / "device" / "vendor") == AMAZON and _text(entry / "device" / "device") in EFA_IDS


def allocated(inventory: Inventory, sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> tuple[str, ...] | None:
    """Names of the EFA devices this process may open: those whose `/dev/infiniband/uverbsN` is there. A device plugin gives no others.

    None where sysfs does not say which verbs file belongs to which device.
    """
    verbs = sysfs / "class" / "infiniband_verbs"
    found: list[str] = []
    try:
        for entry in verbs.iterdir():
            name = _text(entry / "ibdev")
            if name in inventory.names and (dev / "infiniband" / entry.name).exists():
                found.append(name)
    except OSError:
        return None if inventory.devices else ()
    return tuple(sorted(found))


def driver_version(sysfs: Path = Path("/sys")) -> str | None:
    """Version of the loaded EFA kernel module, as it says itself."""
    return _text(sysfs / "module" / DRIVER / "version")


def _describe(entry: Path) -> EfaDevice:
    device = entry / "device"
    identity = _text(device / "device")
    numa = _number(_text(device / "numa_node"))
    port = entry / "ports" / "1"
    try:
        pci = device.resolve().name
    except (OSError, RuntimeError):
        pci = ""
    state = _text(port / "state")
    return EfaDevice(
        name=entry.name,
        pci=pci,
        generation=EFA_IDS.index(identity) + 1 if identity in EFA_IDS else None,
        numa_node=None if numa is None or numa < 0 else numa,
        state=state.rpartition(":")[2].strip() if state else None,
        rate=_rate(_text(port / "rate")),
        firmware=_text(entry / "fw_ver"),
    )


def _rate(text: str | None) -> float | None:
    """Bytes per second of `100 Gb/sec (4X EDR)`."""
    words = (text or "").split()
    if len(words) < 2 or words[1] != "Gb/sec":
        return None
    try:
        return float(words[0]) * 1e9 / 8
    except ValueError:
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:256].strip() or None
    except OSError:
        return None
