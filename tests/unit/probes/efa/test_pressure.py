"""Throttling and pressure are differences over the window; what a kernel does not tell stays None."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from probes.efa.pressure import Pressure
from probes.result import Throttling

PID = 42


def machine(root: Path, cgroup: str = "0::/pod/app\n") -> tuple[Path, Path]:
    """A made /proc with one process of two threads, and an empty cgroup root."""
    proc, cgroups = root / "proc", root / "cgroup"
    task = proc / str(PID) / "task"
    for tid in (PID, PID + 1):
        (task / str(tid)).mkdir(parents=True)
        (task / str(tid) / "children").write_text("")
    (proc / str(PID) / "stat").write_text(f"{PID} (x) S " + " ".join(["0"] * 18 + ["99"]))
    (proc / str(PID) / "cgroup").write_text(cgroup)
    cgroups.mkdir()
    return proc, cgroups


def write(folder: Path, periods: int, throttled: int, usec: int, stalled: int | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {usec}\n")
    if stalled is not None:
        (folder / "cpu.pressure").write_text(f"some avg10=1.00 avg60=0.50 avg300=0.10 total={stalled}\nfull avg10=0 total=9\n")


def wait(proc: Path, first: int, second: int) -> None:
    for tid, value in ((PID, first), (PID + 1, second)):
        (proc / str(PID) / "task" / str(tid) / "schedstat").write_text(f"1000 {value} 7\n")


def test_every_value_is_the_difference_over_the_window(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    write(cgroups / "pod" / "app", 100, 10, 1_000_000, 500_000)
    wait(proc, 1_000_000_000, 2_000_000_000)
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    write(cgroups / "pod" / "app", 130, 25, 3_500_000, 1_250_000)
    wait(proc, 1_500_000_000, 2_250_000_000)
    assert pressure.since_mark() == Throttling(periods=30, throttled_periods=15, throttled_seconds=2.5, cpu_pressure_seconds=0.75,
                                               wait_seconds=0.5), "the thread that waited longest"


def test_a_group_seen_from_inside_its_namespace_is_the_mount_itself(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/../../not/mounted/here\n")
    write(cgroups, 1, 1, 1, 1)
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    write(cgroups, 3, 2, 2_000_001, 1)
    seen = pressure.since_mark()
    assert seen is not None
    assert (seen.periods, seen.throttled_periods, seen.throttled_seconds, seen.wait_seconds) == (2, 1, 2.0, None)


def test_version_1_counts_in_nanoseconds(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "9:name=systemd:/\n3:cpuset:/x\n4:cpu,cpuacct:/kube/pod\n0::/\n")
    folder = cgroups / "cpu,cpuacct" / "kube" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.stat").write_text("nr_periods 5\nnr_throttled 1\nthrottled_time 1000000000\n")
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    (folder / "cpu.stat").write_text("nr_periods 9\nnr_throttled 2\nthrottled_time 2500000000\n")
    assert pressure.since_mark() == Throttling(periods=4, throttled_periods=1, throttled_seconds=1.5)


def test_what_the_kernel_does_not_tell_is_none_never_zero(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    assert pressure.since_mark() is None
    write(cgroups / "pod" / "app", 1, 1, 1, None)
    pressure.mark()
    (cgroups / "pod" / "app" / "cpu.stat").write_text("usage_usec 7\n")
    assert pressure.since_mark() is None


def test_a_counter_that_fell_is_not_a_difference(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    write(cgroups / "pod" / "app", 100, 10, 5_000_000, 900_000)
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    write(cgroups / "pod" / "app", 101, 0, 0, 5)
    assert pressure.since_mark() == Throttling(periods=1)


def test_without_a_mark_there_is_nothing(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    assert Pressure(PID, cgroups, proc).since_mark() is None


def test_a_thread_that_ended_does_not_make_the_wait_negative(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path)
    wait(proc, 1_000_000_000, 9_000_000_000)
    pressure = Pressure(PID, cgroups, proc)
    pressure.mark()
    (proc / str(PID) / "task" / str(PID + 1) / "schedstat").unlink()
    (proc / str(PID) / "task" / str(PID) / "schedstat").write_text("1 1250000000 1")
    assert pressure.since_mark() == Throttling(wait_seconds=0.25)


def test_a_starved_process_is_seen_waiting_on_this_kernel() -> None:
    code = """if True:
        import os, time
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for _ in range(3):
            if os.fork() == 0: break
        end = time.monotonic() + 1.0
        while time.monotonic() < end: pass
    """
    child = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.3)
    pressure = Pressure(child.pid)
    pressure.mark()
    time.sleep(0.4)
    seen = pressure.since_mark()
    child.wait(20)
    if not Path("/proc/self/schedstat").exists():
        assert seen is None or seen.wait_seconds is None
        return
    assert seen is not None
    assert seen.wait_seconds is not None
    assert 0.1 < seen.wait_seconds < 0.6, "one of four burning processes on one CPU waits three quarters of the time"
