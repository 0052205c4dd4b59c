"""Network namespaces of hollow pods: an address on the cell's bridge, a link of chosen speed, names in every pod's hosts file."""

from __future__ import annotations

import itertools
import subprocess
import threading
from pathlib import Path
from typing import Any

BRIDGE, GATEWAY = "br0", "10.77.0.1"
Json = dict[str, Any]


def ip(line: str) -> None:
    """Run an `ip` command."""
    done = subprocess.run(["ip", *line.split()], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {line}: {done.stderr.strip()}")


class Network:
    """Hands out namespaces and addresses 10.77.`block`.1 and up; every kubelet of a cell has a block of its own."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def join(self, name: str, rate: str | None) -> str:
        """Make the namespace `name` with a link of `rate` (such as `200mbit`) both ways. Returns its address."""
        with self._lock:
            number = next(self._numbers)
        address = f"10.77.{self._block + number // 250}.{1 + number % 250}"
        link = f"h{self._block}-{number}"
        ip(f"netns add {name}")
        ip(f"link add {link} type veth peer name eth0 netns {name}")
        ip(f"link set {link} master {BRIDGE} up")
        ip(f"-n {name} addr add {address}/16 dev eth0")
        ip(f"-n {name} link set eth0 up")
        ip(f"-n {name} link set lo up")
        ip(f"-n {name} route add default via {GATEWAY}")
        if rate:
            shape = f"root tbf rate {rate} burst 512kb latency 50ms".split()
            subprocess.run(["tc", "qdisc", "add", "dev", link, *shape], check=True, timeout=20)
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape], check=True, timeout=20)
        return address

    def leave(self, name: str) -> None:
        """Remove the namespace and its link."""
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=20)


class Names:
    """The hosts file of every pod: written in place, so that running processes see new names."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[str, list[str]]] = {}
        self._services: dict[str, list[str]] = {}
        self._files: set[Path] = set()
        self._lock = threading.Lock()

    def add_file(self, path: Path) -> None:
        """Keep this file up to date too."""
        with self._lock:
            path.touch()
            self._files.add(path)
            self._write()

    def drop_file(self, path: Path) -> None:
        """Leave this file as it is."""
        with self._lock:
            self._files.discard(path)

    def add_pod(self, pod: Json, address: str) -> None:
        """A pod runs under this address."""
        meta, spec = pod["metadata"], pod["spec"]
        host, sub, space = spec.get("hostname") or meta["name"], spec.get("subdomain"), meta["namespace"]
        known = [f"{host}.{sub}{tail}" for tail in ("", f".{space}", f".{space}.svc", f".{space}.svc.cluster.local")] if sub else []
        with self._lock:
            self._pods[meta["uid"]] = (address, [host, *known])
            self._write()

    def drop_pod(self, uid: str) -> None:
        """The pod is gone."""
        with self._lock:
            self._pods.pop(uid, None)
            self._write()

    def services(self, found: dict[str, list[str]]) -> None:
        """Service `name.namespace` to the addresses behind it."""
        with self._lock:
            if found != self._services:
                self._services = found
                self._write()

    def _write(self) -> None:
        lines = ["127.0.0.1 localhost", f"{GATEWAY} kubernetes.default.svc kubernetes.default"]
        lines += [f"{address} {' '.join(names)}" for address, names in self._pods.values()]
        lines += [f"{address} {name} {name}.svc {name}.svc.cluster.local" for name, addresses in sorted(self._services.items())
                  for address in addresses[:1]]
        text = "\n".join(lines) + "\n"
        for path in self._files:
            with path.open("r+") as file:  # the same inode: it is bind-mounted in the pods
                file.write(text)
                file.truncate()
