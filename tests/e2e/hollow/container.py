"""The first program of a hollow container: makes its namespaces and its file system, runs its command, ends as the command ended.

usage: container.py SPEC.json   with {namespace, root, needed, mounts: [[source, target, read_only]], env, command, cwd, hostname, user,
read_only, cpu, cgroup}
It imports nothing but the standard library: it starts in some 30 ms. The exit status is 128 and the number of the signal for a command that
was killed (util-linux's unshare does not tell SIGKILL from a failure).
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

NEWNS, NEWUTS, NEWNET, NEWPID = 0x20000, 0x4000000, 0x40000000, 0x20000000
PDEATHSIG = 1
RDONLY, NOSUID, REMOUNT, BIND, REC, PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    if libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def bind(root: str, source: str, target: str, read_only: bool) -> None:
    # /var/run is a link to /run: followed from here it would lead out of the new root.
    place = Path(root + os.path.realpath(target))
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.touch()
    mount(source, str(place), flags=BIND | REC)
    if read_only:
        mount("none", str(place), flags=BIND | REMOUNT | RDONLY)


def build(spec: dict) -> str:  # type: ignore[type-arg]
    base = spec["root"]
    mount("none", "/", flags=REC | PRIVATE)
    for part in ("upper", "work", "merged"):
        Path(base, part).mkdir(parents=True, exist_ok=True)
    root = f"{base}/merged"
    mount("overlay", root, "overlay", data=f"lowerdir=/,upperdir={base}/upper,workdir={base}/work")
    mount("proc", f"{root}/proc", "proc")
    mount("/sys", f"{root}/sys", flags=BIND | REC)
    mount("tmpfs", f"{root}/dev", "tmpfs", NOSUID, "mode=755")
    for device in DEVICES:
        if Path("/dev", device).exists():
            bind(root, f"/dev/{device}", f"/dev/{device}", False)
    Path(root, "dev/fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        Path(root, "dev", name).symlink_to(f"/proc/self/fd/{number}")
    Path(root, "dev/shm").mkdir()
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", NOSUID)
    mount("tmpfs", f"{root}/tmp", "tmpfs", NOSUID)
    mount("tmpfs", f"{root}/run", "tmpfs", NOSUID)
    own = Path("/").stat().st_dev
    for path in spec["needed"]:  # a repository or an interpreter on a file system of its own, or below /tmp, is not part of this view
        if Path(path).stat().st_dev != own or path.startswith(("/tmp/", "/run/")):
            bind(root, path, path, True)
    for source, target, read_only in sorted(spec["mounts"], key=lambda one: str(one[1])):
        bind(root, source, target, read_only)
    if spec.get("read_only"):
        taken = {target for _, target, _ in spec["mounts"]}
        for place in ("/tmp", "/run", ""):
            if place not in taken:
                mount("none", root + place, flags=BIND | REMOUNT | RDONLY)
    return root


def claim_cpu(name: str, milli: int) -> None:
    """On a node of its own it would have the CPUs that it asks for; here it has them before others at least, where cgroups can be made."""
    if milli < 1000:
        return
    for root, file, weight in (("/sys/fs/cgroup/cpu", "cpu.shares", milli * 10), ("/sys/fs/cgroup", "cpu.weight", 10_000)):
        group = Path(root, name)
        try:
            group.mkdir()
            (group / file).write_text(str(weight))
            (group / "cgroup.procs").write_text("0")
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        return


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    libc.prctl(PDEATHSIG, signal.SIGKILL)  # no pod outlives its kubelet
    with Path("/run/netns", spec["namespace"]).open() as network:
        check(libc.setns(network.fileno(), NEWNET), "setns")
    claim_cpu(spec["cgroup"], spec["cpu"])
    check(libc.unshare(NEWNS | NEWUTS | NEWPID), "unshare")
    child = os.fork()
    if child == 0:
        libc.prctl(PDEATHSIG, signal.SIGKILL)
        become(spec)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def become(spec: dict) -> None:  # type: ignore[type-arg]
    root = build(spec)
    socket.sethostname(spec["hostname"])
    os.chroot(root)
    os.chdir(spec["cwd"])
    if spec["user"]:
        os.setgid(spec["user"])
        os.setuid(spec["user"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(spec["command"][0], spec["command"], spec["env"])
    except OSError as error:
        print(f"exec {spec['command'][0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    main()
