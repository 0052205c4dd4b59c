"""The first process of a cell: sets up its network and mounts, says `ready`, and ends when its standard input does.

usage: cell_init.py ADDRESS   (as started by `cell.Cell`, inside new namespaces)
"""

from __future__ import annotations

import signal
import subprocess
import sys


def main() -> None:
    address = sys.argv[1]
    for line in (
        "mount --make-rprivate /",
        "mount -t tmpfs none /run",
        "mkdir -p /run/netns",
        "ip link set lo up",
        "ip link add br0 type bridge",
        f"ip address add {address}/16 dev br0",
        "ip link set br0 up",
        "ip route add default dev br0",  # kube-apiserver refuses to start without a default route
    ):
        subprocess.run(line.split(), check=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whatever is orphaned in the cell is reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
