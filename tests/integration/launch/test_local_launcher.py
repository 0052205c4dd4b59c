"""A run on this machine, with workers that really abort, hang, exit, are killed or never start."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.launch.local import LocalLauncher, WorkDirError
from exporter.runs import Run, RunSpec, new_run_id
from probes.processes import descendants
from probes.reasons import Outcome, Reason, worst
from probes.result import Phase

pytestmark = pytest.mark.usefixtures("no_process_left")
DEADLINE = 5.0


class Launched:
    """A launcher and what it reported."""

    def __init__(self, **options: object) -> None:
        self.finished: queue.Queue[Run] = queue.Queue()
        self.launcher = LocalLauncher(self.finished.put, **options)  # type: ignore[arg-type]

    def spec(self, ranks: int = 2, deadline: float = DEADLINE, **spec: object) -> RunSpec:
        return RunSpec(new_run_id("faulty"), "faulty_probe:FaultyProbe", "a--b", tuple("abcdefgh"[:ranks]), "any", deadline, dict(spec))

    def run(self, ranks: int = 2, deadline: float = DEADLINE, **spec: object) -> Run:
        self.launcher.start(self.spec(ranks, deadline, **spec))
        return self.finished.get(timeout=deadline + 20)


@pytest.fixture
def launched() -> Iterator[Launched]:
    one = Launched()
    yield one
    one.launcher.close(0)


def test_a_good_run_has_one_result_per_rank(launched: Launched) -> None:
    run = launched.run(text="all well")
    assert [(r.rank, r.node, r.message) for r in run.results] == [(0, "a", "all well"), (1, "b", "all well")]
    assert {r.reason for r in run.results} == {Reason.OK}
    assert {Phase.RENDEZVOUS, Phase.SETUP, Phase.MEASURE} <= set(run.phases)
    first = run.results[0]
    assert first.measure is not None
    assert first.started <= first.measure.start <= first.measure.end <= first.finished
    assert first.versions["efa-pulse"]
    assert launched.launcher.running() == []


def test_the_workers_own_tcp_bytes_are_counted_exactly(launched: Launched) -> None:
    payload = 32 << 20
    for result in launched.run(payload=payload).results:
        assert result.evidence is not None
        assert result.evidence.payload_bytes == (payload, payload)
        assert result.evidence.tcp_bytes is not None
        for counted in result.evidence.tcp_bytes:
            assert counted == pytest.approx(payload, rel=0.001)


@pytest.mark.parametrize(("fault", "phase", "reason", "says"), [
    ("abort", "measure", "engine_crashed", "SIGABRT in phase measure (in the middle of it)"),
    ("segfault", "setup", "engine_crashed", "SIGSEGV in phase setup"),
    ("exit", "measure", "engine_crashed", "status 3 in phase measure"),
    ("exit0", "measure", "engine_crashed", "status 0 in phase measure"),
    ("kill", "measure", "killed", "killed from outside (SIGKILL) in phase measure"),
    ("raise", "measure", "internal_error", "RuntimeError: the engine said no"),
    ("failure", "measure", "transfer_failed", "rc -1"),
    ("grandchild", "measure", "engine_crashed", "SIGABRT"),
    ("kill_supervisor", "measure", "died_in_measure", "died in phase measure"),
    ("kill_supervisor", "setup", "died_in_setup", "died in phase setup"),
    ("kill_supervisor", "launch", "died_in_launch", "died in phase launch"),
])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_says_where_and_its_partner_is_not_blamed(launched: Launched, fault: str, phase: str, reason: str, says: str,
                                                                  rank: int) -> None:
    run = launched.run(fault=fault, phase=phase, rank=rank)
    assert run.results[rank].reason.value == reason
    assert says in run.results[rank].message
    assert run.results[1 - rank].outcome in {Outcome.UNKNOWN, Outcome.OK}
    assert worst([r.reason for r in run.results]).value == reason


def test_a_hang_ends_by_the_deadline_and_says_where(launched: Launched) -> None:
    start = time.monotonic()
    run = launched.run(fault="hang", deadline=12.0)
    assert run.results[0].reason is Reason.DEADLINE
    assert "hung in phase measure (in the middle of it)" in run.results[0].message
    assert "_fault" in run.logs[0], "the stacks are kept in the log"
    assert "faulty_probe.py" in run.results[0].message, "and the message says where it stood"
    assert time.monotonic() - start < 20


def test_an_engine_that_ignores_signals_ends_too(launched: Launched) -> None:
    run = launched.run(fault="deaf", deadline=12.0)
    assert run.results[0].reason is Reason.DEADLINE


def test_a_flood_of_log_ends_the_run(launched: Launched) -> None:
    run = launched.run(fault="flood", deadline=20.0)
    assert run.results[0].reason is Reason.ENGINE_ERROR
    assert "MiB of log" in run.results[0].message


def test_a_rank_that_never_starts_is_named(launched: Launched) -> None:
    run = launched.run(fault="hang", phase="launch", rank=1, deadline=3.0)
    assert run.results[0].reason is Reason.RANK_MISSING
    assert "rank 1 of 2 never arrived" in run.results[0].message


def test_the_partner_of_a_rank_that_was_killed_before_they_met_does_not_wait_for_its_deadline(launched: Launched) -> None:
    start = time.monotonic()
    run = launched.run(fault="kill_supervisor", phase="launch", rank=0, deadline=40.0)
    assert worst([r.reason for r in run.results]) is Reason.DIED_IN_LAUNCH
    assert time.monotonic() - start < 25


def test_no_worker_sees_the_secrets_of_the_service(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MARK_API_KEY", "MARK_SECRET", "MARK_TOKEN_X", "MARK_PASSWORD", "MARK_KEY", "MARK_LIBRARY_PATH"):
        monkeypatch.setenv(name, "x")
    run = launched.run(fault="environment", ranks=1)
    assert run.results[0].message == "MARK_LIBRARY_PATH"


def test_an_unknown_probe_and_a_wrong_spec_are_bad_specs(launched: Launched) -> None:
    run = launched.run(falt="abort")
    assert run.results[0].reason is Reason.BAD_SPEC
    assert "falt" in run.results[0].message
    launched.launcher.start(RunSpec(new_run_id("x"), "no-such", "t", ("a",), "any", DEADLINE))
    result = launched.finished.get(timeout=20).results[0]
    assert result.reason is Reason.BAD_SPEC
    assert "there is no probe 'no-such'" in result.message


def test_a_cancelled_run_says_so_at_once(launched: Launched) -> None:
    spec = launched.spec(fault="hang", deadline=60.0)
    launched.launcher.start(spec)
    until = time.monotonic() + 15
    while len(descendants(os.getpid())) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    start = time.monotonic()
    launched.launcher.cancel(spec.run_id)
    run = launched.finished.get(timeout=20)
    assert {r.reason for r in run.results} == {Reason.CANCELLED}
    assert time.monotonic() - start < 5


def test_closing_waits_for_the_grace_and_then_cancels() -> None:
    launched = Launched()
    launched.launcher.start(launched.spec(fault="hang", deadline=60.0))
    time.sleep(1.0)
    start = time.monotonic()
    launched.launcher.close(0.5)
    assert time.monotonic() - start < 8
    assert {r.reason for r in launched.finished.get_nowait().results} == {Reason.CANCELLED}


def test_a_full_disk_for_the_result_file_loses_nothing() -> None:
    environ = {**os.environ, "EFA_PULSE_RUN_ID": "full", "EFA_PULSE_PROBE": "faulty_probe:FaultyProbe",
               "EFA_PULSE_RESULT_PATH": "/dev/full"}
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert '"reason":"ok"' in done.stdout.splitlines()[-1]
    assert "No space left on device" in done.stderr


def test_a_folder_that_is_named_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    first, second = Launched(work_dir=folder), Launched(work_dir=folder)
    try:
        assert [one.run().results[0].reason for one in (first, second)] == [Reason.OK, Reason.OK]
        assert {path.stat().st_mode & 0o777 for path in folder.glob("*/secret")} == {0o600}
    finally:
        first.launcher.close(0)
        second.launcher.close(0)
    assert not list(folder.iterdir())


def test_runs_go_on_after_a_cleaner_took_the_folder(tmp_path: Path) -> None:
    one = Launched(work_dir=tmp_path)
    try:
        shutil.rmtree(next(tmp_path.iterdir()))
        assert {result.reason for result in one.run().results} == {Reason.OK}
    finally:
        one.launcher.close(0)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkDirError, match=r"file/x: Not a directory: .*launch\.local\.work_dir"):
        Launched(work_dir=tmp_path / "file" / "x")


def test_a_wrong_environment_is_a_usage_error_that_is_seen_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    environ = {**os.environ, "EFA_PULSE_RUN_ID": "r", "EFA_PULSE_PROBE": "nixl", "EFA_PULSE_RANK": "x",
               "EFA_PULSE_RESULT_PATH": str(path)}
    done = subprocess.run([sys.executable, "-m", "probes", "run"], env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 64
    assert "EFA_PULSE_RANK" in done.stderr
    assert "Traceback" not in done.stderr
    assert '"reason":"bad_spec"' in path.read_text()


def test_sigterm_to_a_worker_in_mid_probe(tmp_path: Path) -> None:
    environ = {**os.environ, "EFA_PULSE_RUN_ID": "r", "EFA_PULSE_PROBE": "faulty_probe:FaultyProbe", "EFA_PULSE_SPEC": '{"fault":"hang"}',
               "EFA_PULSE_RESULT_PATH": str(tmp_path / "t")}
    worker = subprocess.Popen([sys.executable, "-m", "probes", "run"], env=environ, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 15
    while time.monotonic() < until and '"died_in_measure"' not in ((tmp_path / "t").read_text() if (tmp_path / "t").exists() else ""):
        time.sleep(0.05)
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=5)
    assert '"reason":"cancelled"' in out
    assert "in phase measure" in out
    assert worker.returncode == 0


def test_killing_the_starter_leaves_no_worker(tmp_path: Path) -> None:
    script = ("from exporter.launch.local import LocalLauncher; from exporter.runs import RunSpec; import time\n"
              "LocalLauncher(print).start(RunSpec('r','faulty_probe:FaultyProbe','t',('a','b'),'any',60.0,{'fault':'hang'}))\n"
              "time.sleep(60)")
    starter = subprocess.Popen([sys.executable, "-c", script])
    until = time.monotonic() + 15
    while len(found := descendants(starter.pid)) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(found) >= 4
    starter.kill()
    starter.wait()
    until = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in found) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in found if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
def test_ranks_in_network_namespaces_meet_and_leave_none_behind() -> None:
    launched = Launched(namespaces=True)
    before = set(Path("/run/netns").glob("*")) if Path("/run/netns").exists() else set()
    run = launched.run(text="apart")
    launched.launcher.close(0)
    assert [r.message for r in run.results] == ["apart", "apart"]
    assert set(Path("/run/netns").glob("*")) == before
