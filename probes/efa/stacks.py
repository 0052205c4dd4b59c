"""Whether the software above the EFA devices works: libfabric by `fi_info`, NIXL by an agent of its own. Each runs under a deadline."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from probes.efa import markers
from probes.efa.tools import Ran
from probes.result import Finding

FI_INFO = ("fi_info", "-p", "efa", "-t", "FI_EP_RDM")
VERSION_SECONDS = 5.0
NIXL_MISSING = 3
NIXL_CODE = """
import json, sys
try:
    from nixl._api import nixl_agent, nixl_agent_config
except ImportError as error:
    print(error)
    sys.exit(3)
agent = nixl_agent("efa-pulse-preflight", nixl_agent_config(backends=[]))
agent.create_backend("LIBFABRIC", {})
print("BACKENDS " + json.dumps(sorted(agent.backends)), flush=True)
"""

_DOMAIN = re.compile(r"^\s*domain:\s*(\S{1,64})\s*$", re.MULTILINE)
_VERSION = re.compile(r"libfabric:\s*(\d{1,4}(?:\.\d{1,4}){1,3}\S{0,16})")


class RunTool(Protocol):
    """How a tool is run: `probes.efa.tools.run`."""

    def __call__(self, command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Ran:
        """See `probes.efa.tools.run`."""
        ...


def libfabric(run: RunTool, seconds: float, usable: int | None, *, required: bool, wanted: bool) -> Finding:
    """`fi_info` lists one RDM domain for each EFA device that this worker may open (`usable`; None: not known)."""
    check = "libfabric_efa"
    if not wanted:
        return Finding(check=check, ok=None, seen="not asked for")
    ran = run(FI_INFO, seconds)
    if ran.missing:
        return Finding(check=check, ok=None, seen="fi_info is not installed")
    domains = sorted({name for name in _DOMAIN.findall(ran.output) if name.endswith("-rdm")}) if ran.code == 0 else []
    expected = f"{usable if usable is not None else 'at least 1'} RDM domains"
    if ran.code is None:
        seen = f"fi_info did not end within {seconds:g} s"
    elif domains:
        seen = f"{len(domains)} RDM domains"
    else:
        seen = f"none, fi_info ended with {ran.code}: {_last(ran.output)}"
    good = bool(domains) and (usable is None or len(domains) >= usable)
    if not good and not required and usable is None:
        return Finding(check=check, ok=None, seen=seen)
    return Finding(check=check, ok=good, expected=expected, seen=seen, remedy=None if good else
                   "check that the image has libfabric with the efa provider and a libibverbs of the same rdma-core, and FI_PROVIDER")


def nixl(run: RunTool, seconds: float, usable: int | None, *, required: bool, wanted: bool) -> Finding:
    """A NIXL agent starts its LIBFABRIC backend with provider efa pinned, so that a fall-back to TCP is an error."""
    check = "nixl_libfabric"
    if not wanted:
        return Finding(check=check, ok=None, seen="not asked for")
    ran = run((sys.executable, "-c", NIXL_CODE), seconds, {"FI_PROVIDER": "efa", "NIXL_LOG_LEVEL": "INFO"})
    if ran.missing or ran.code == NIXL_MISSING:
        return Finding(check=check, ok=None, seen="nixl is not installed, or cannot be imported")
    said = markers.read("nixl", ran.output)
    transports = {marker.says for marker in said.markers} & {"efa", "tcp", "other"}
    good = ran.code == 0 and "LIBFABRIC" in _backends(ran.output) and transports <= {"efa"}
    if ran.code is None:
        seen = f"no agent within {seconds:g} s"
    elif good:
        seen = f"LIBFABRIC, {said.facts['nics']} EFA devices" if "nics" in said.facts else "LIBFABRIC"
    else:
        seen = f"LIBFABRIC over {', '.join(sorted(transports))}" if ran.code == 0 and transports else _last(ran.output)
    if not good and not required and usable is None:
        return Finding(check=check, ok=None, seen=seen)
    return Finding(check=check, ok=good, expected="LIBFABRIC with provider efa", seen=seen, remedy=None if good else
                   "check the libfabric that this nixl needs (its log at NIXL_LOG_LEVEL=DEBUG says), and that the pod has EFA devices")


def libfabric_version(run: RunTool) -> str | None:
    """Version of the libfabric that `fi_info` is linked with, or None."""
    ran = run(("fi_info", "--version"), VERSION_SECONDS)
    found = _VERSION.search(ran.output)
    return found[1] if found else None


def _backends(output: str) -> list[str]:
    for line in output.splitlines():
        if line.startswith("BACKENDS "):
            try:
                return [str(name) for name in json.loads(line.removeprefix("BACKENDS "))]
            except ValueError:
                return []
    return []


def _last(output: str) -> str:
    """The last line that says something, for a finding."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
