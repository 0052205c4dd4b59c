"""One container as processes: started in its pod's network namespace, watched for its memory, ended as a runtime ends it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from e2e.hollow.volumes import NotReadyError, field

from exporter.kube import quantity
from exporter.kube.api import Api, ApiError
from probes.processes import descendants

Json = dict[str, Any]
CONTAINER = Path(__file__).with_name("container.py")
CGROUPS = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 20.0


class Process:
    """A running container."""

    def __init__(self, command: list[str], log: Path, memory: int | None, cgroup: str) -> None:
        self._memory, self._cgroup = memory, cgroup
        self.oom = False
        self.started = time.time()
        with log.open("ab") as out:
            self._handle = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/")

    def poll(self) -> int | None:
        """The exit code as Kubernetes shows it, None while it runs."""
        code = self._handle.poll()
        return None if code is None else 128 - code if code < 0 else code

    def watch_memory(self) -> None:
        """Kill everything in it when it uses more than its limit, as the kernel does with `memory.oom.group`."""
        if self._memory is None:
            return
        used = 0
        for pid in descendants(self._handle.pid):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{pid}/statm").read_text().split()
                used += (int(fields[1]) - int(fields[2])) * PAGE
        if used > self._memory:
            self.oom = True
            self.kill()

    def terminate(self) -> None:
        """SIGTERM to its first process."""
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{self._handle.pid}/task/{self._handle.pid}/children").read_text().split()
            if children:
                os.kill(int(children[0]), signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: its PID namespace goes with its first process."""
        for pid in descendants(self._handle.pid)[:1]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self._handle.kill()

    def reap(self) -> None:
        """Leave no zombie and no cgroup."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._handle.wait(START_SECONDS)
        for root in CGROUPS:
            with contextlib.suppress(OSError):
                Path(root, self._cgroup).rmdir()


def start(*, container: Json, namespace: str, folder: Path, volumes: dict[str, Path], hosts: Path, boot_id: Path, env: dict[str, str],
          search: str, default: list[str], needed: list[str], hostname: str, pod_user: int, users: bool) -> Process:
    """Start a container. `folder` is its own. Raises NotReadyError when it cannot be created."""
    folder.mkdir(parents=True, exist_ok=True)
    termination = folder / "termination"
    termination.write_bytes(b"")
    termination.chmod(0o666)
    # Programs tell machines apart by their boot id: each hollow node has one of its own.
    mounts: list[tuple[str, str, bool]] = [(str(hosts), "/etc/hosts", False), (str(boot_id), "/proc/sys/kernel/random/boot_id", True)]
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            raise NotReadyError(f"volume {mount['name']} is not in the pod")
        source = volumes[mount["name"]] / mount.get("subPath", "")
        mounts.append((str(source), mount["mountPath"], bool(mount.get("readOnly"))))
    mounts.append((str(termination), container.get("terminationMessagePath") or "/dev/termination-log", False))
    command = [*(container.get("command") or default), *(container.get("args") or [])]
    if not command:
        raise NotReadyError("no command specified")
    full = {"PATH": search, "HOSTNAME": hostname, "HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1", **env}
    command = [_expand(word, full) for word in command]
    user = (container.get("securityContext") or {}).get("runAsUser", pod_user) if users else 0
    spec: Json = {"namespace": namespace, "root": str(folder / "root"), "mounts": mounts, "needed": needed, "env": full, "command": command,
            "hostname": hostname, "cwd": container.get("workingDir") or "/", "user": user,
            "read_only": bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem"))}
    limits = (container.get("resources") or {}).get("limits") or {}
    limit = limits.get("memory")
    spec["cpu"] = quantity.milli(limits["cpu"]) if limits.get("cpu") else 0
    spec["cgroup"] = f"hollow-{os.getpid()}-{folder.parent.name[:13]}-{folder.name}"
    (folder / "spec.json").write_text(json.dumps(spec))
    program = [sys.executable, "-I", "-S", str(CONTAINER), str(folder / "spec.json")]
    return Process(program, folder / "log", quantity.whole(limit) if limit else None, str(spec["cgroup"]))


def environment(api: Api, pod: Json, container: Json, *, address: str, node_address: str, base: dict[str, str]) -> dict[str, str]:
    """A container's environment with all its references. Raises NotReadyError for one that leads nowhere."""
    space = pod["metadata"]["namespace"]
    env = dict(base)
    for source in container.get("envFrom") or []:
        kind, ref = ("configmaps", source["configMapRef"]) if "configMapRef" in source else ("secrets", source["secretRef"])
        env |= {source.get("prefix", "") + key: value for key, value in _values(api, space, kind, ref).items()}
    for one in container.get("env") or []:
        origin = one.get("valueFrom")
        if origin is None:
            env[one["name"]] = _expand(one.get("value") or "", env)
        elif "fieldRef" in origin:
            env[one["name"]] = field(pod, origin["fieldRef"]["fieldPath"], address=address, node_address=node_address)
        elif "resourceFieldRef" in origin:
            env[one["name"]] = _resource(container, origin["resourceFieldRef"])
        else:
            kind, ref = ("configmaps", origin["configMapKeyRef"]) if "configMapKeyRef" in origin else ("secrets", origin["secretKeyRef"])
            values = _values(api, space, kind, ref)
            if ref["key"] in values:
                env[one["name"]] = values[ref["key"]]
            elif not ref.get("optional"):
                raise NotReadyError(f"couldn't find key {ref['key']} in {kind[:-1]} {space}/{ref['name']}")
    return env


def _values(api: Api, space: str, kind: str, ref: Json) -> dict[str, str]:
    import base64

    try:
        data = api.get(f"/api/v1/namespaces/{space}/{kind}/{ref['name']}").get("data") or {}
    except ApiError as error:
        if error.not_found and ref.get("optional"):
            return {}
        raise NotReadyError(f'{kind[:-1]} "{ref["name"]}" not found' if error.not_found else str(error)) from None
    return {key: base64.b64decode(value).decode() if kind == "secrets" else value for key, value in data.items()}


def _resource(container: Json, ref: Json) -> str:
    part, _, name = ref["resource"].partition(".")
    amount = ((container.get("resources") or {}).get(part) or {}).get(name, "0")
    return str(quantity.whole(quantity.parse(amount) / quantity.parse(ref.get("divisor") or "1")))


def _expand(text: str, env: dict[str, str]) -> str:
    """`$(NAME)` by the variables known so far; `$$(NAME)` stays."""
    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)
