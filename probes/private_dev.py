"""`python -m probes.private_dev MODULE ARGUMENT...`: hide verbs devices that are not EFA from this container, then run the module.

For probe pods with placement `shared`: a privileged pod sees every device of the host, and beside others (the mlx5 devices of p6-b200
instances) libfabric's EFA provider does not start. A container's /dev is its own, so removing a device file there hides it from this
container only.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from probes.efa.devices import discover

EXIT_USAGE = 64


def hide_others(sysfs: Path = Path("/sys"), dev: Path = Path("/dev")) -> list[str]:
    """Remove the verbs device files of all but EFA devices and return their names. Raises OSError when one cannot be removed."""
    ours = discover(sysfs).names
    verbs = sysfs / "class" / "infiniband_verbs"
    hidden: list[str] = []
    for entry in sorted(verbs.glob("uverbs*")) if verbs.is_dir() else []:
        name = (entry / "ibdev").read_text().strip()
        file = dev / "infiniband" / entry.name
        if name not in ours and file.exists():
            file.unlink()
            hidden.append(name)
    return hidden


def main(arguments: list[str]) -> None:
    """Hide, then become the module."""
    if not arguments:
        sys.stderr.write("usage: python -m probes.private_dev MODULE ARGUMENT...\n")
        sys.exit(EXIT_USAGE)
    hidden = hide_others()
    if hidden:
        sys.stderr.write(f"hidden from this container: {', '.join(hidden)}\n")
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
