"""The environment NCCL reads: pins that make a fall-back an error in EFA mode, interfaces it must not take, and a log file per process.

Sources: NCCL's environment variables; AWS's plugin falls back on purpose, and only a pinned NCCL_NET makes that an error (NCCL
src/plugin/net.cc). "AWS Libfabric" is accepted by every generation of the plugin.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from probes.contract import Transport
from probes.nccl.params import NcclParams

LOG_NAME = "nccl.%h.%p.log"
SUBSYSTEMS = "INIT,NET,ENV"


def nccl_environment(params: NcclParams, transport: Transport, folder: Path, base: Mapping[str, str],
                     interfaces: Iterable[str] | None = None) -> dict[str, str]:
    """Variables to add to `base` for one process that uses NCCL. What the operator set for interfaces in `base` stays as it is.

    `folder` takes the log files. `interfaces`: names of this machine's, to see that something is left after the exclusion.
    """
    added = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": SUBSYSTEMS,
        "NCCL_DEBUG_FILE": str(folder / LOG_NAME),
    }
    if transport == "efa":
        added |= {"NCCL_NET": params.net, "FI_PROVIDER": "efa"}
    if params.force_network:
        added |= {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    if "NCCL_SOCKET_IFNAME" not in base:
        excluded = exclusion(params.excluded_interfaces, interface_names() if interfaces is None else interfaces)
        if excluded:
            added["NCCL_SOCKET_IFNAME"] = excluded
    return added


def exclusion(prefixes: Iterable[str], interfaces: Iterable[str]) -> str | None:
    """NCCL_SOCKET_IFNAME that excludes these interfaces by the beginning of their names. None when nothing would be left, or to exclude."""
    prefixes = list(prefixes)
    if not prefixes or not any(not name.startswith(tuple(prefixes)) for name in interfaces):
        return None
    return "^" + ",".join(prefixes)


def interface_names() -> list[str]:
    """Network interfaces of this network namespace."""
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []
