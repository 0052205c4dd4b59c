"""Ranks that gather before their workers start, and the probes brought into another image."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.bundle import BundleError, copy
from probes.private_dev import hide_others
from probes.reasons import Reason
from probes.result import decode

SECRET = "0123456789abcdef0123456789abcdef"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "secret").write_text(SECRET)
    return {**os.environ, "EFA_PULSE_RUN_ID": "r", "EFA_PULSE_PROBE": "mooncake", "EFA_PULSE_TARGET": "a--b", "EFA_PULSE_WORLD_SIZE": "2",
            "EFA_PULSE_RENDEZVOUS": f"127.0.0.1:{free_port()}", "EFA_PULSE_SECRET_FILE": str(tmp_path / "secret"), "EFA_PULSE_NODE": "a",
            "EFA_PULSE_DEADLINE": "20"}


def gather(environ: dict[str, str], rank: int, result: Path, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "probes.gather"], stderr=subprocess.PIPE,
                            env={**environ, "EFA_PULSE_RANK": str(rank), "EFA_PULSE_RESULT_PATH": str(result), **more})


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = process.communicate(timeout=30)
    return process.returncode, err.decode()


def test_both_end_when_both_are_here_and_leave_no_document(environ: dict[str, str], tmp_path: Path) -> None:
    ranks = [gather(environ, rank, tmp_path / f"{rank}") for rank in (0, 1)]
    assert [end(one)[0] for one in ranks] == [0, 0]
    assert not list(tmp_path.glob("[01]"))


def test_one_that_waits_in_vain_says_for_whom(environ: dict[str, str], tmp_path: Path) -> None:
    code, err = end(gather(environ, 0, tmp_path / "0", EFA_PULSE_DEADLINE="0.5"))
    assert code == 1
    assert "rank 1 of 2 never arrived" in err
    result = decode((tmp_path / "0").read_bytes())
    assert (result.reason, result.rank, result.run_id) == (Reason.RANK_MISSING, 0, "r")
    assert "waiting for the other ranks: rank 1 of 2 never arrived" in result.message


def test_a_single_rank_waits_for_nobody(environ: dict[str, str], tmp_path: Path) -> None:
    assert end(gather(environ, 0, tmp_path / "0", EFA_PULSE_WORLD_SIZE="1"))[0] == 0


def test_a_wrong_environment_is_a_usage_error(environ: dict[str, str], tmp_path: Path) -> None:
    code, err = end(gather(environ, 5, tmp_path / "5"))
    assert (code, "EFA_PULSE" in err or "rank 5" in err) == (64, True)
    assert "Traceback" not in err


def test_it_ends_on_sigterm_also_as_the_first_process_of_a_container(environ: dict[str, str], tmp_path: Path) -> None:
    waiting = gather(environ, 0, tmp_path / "0")
    until = 200
    while until and not _listens(environ["EFA_PULSE_RENDEZVOUS"]):
        until -= 1
    waiting.terminate()
    assert end(waiting)[0] == 143


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.1).close()
    except OSError:
        time.sleep(0.05)
        return False
    return True


def from_bundle(code: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A worker started from a bundle by a Python that knows nothing of this installation."""
    return subprocess.run([sys.executable, "-I", "-S", str(code / "start.py"), "probes", "run"], capture_output=True, text=True, cwd="/",
                          timeout=60, check=False, env={"PATH": os.environ["PATH"], "EFA_PULSE_RUN_ID": "r", **environ})


class TestBundle:
    def test_another_python_runs_the_probes_from_it_alone(self, tmp_path: Path) -> None:
        copy(tmp_path / "code", bundle=tmp_path / "none")
        done = from_bundle(tmp_path / "code", EFA_PULSE_PROBE="node", EFA_PULSE_RESULT_PATH=str(tmp_path / "result"))
        assert done.returncode == 0, done.stderr
        assert decode((tmp_path / "result").read_bytes()).versions["efa-pulse"]

    def test_a_prepared_folder_is_copied_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "prepared" / "probes").mkdir(parents=True)
        (tmp_path / "prepared" / "probes" / "x.py").write_text("")
        assert copy(tmp_path / "code", bundle=tmp_path / "prepared") == ["probes", "start.py"]

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(BundleError, match="file"):
            copy(tmp_path / "file" / "below")

    def test_wrong_usage(self) -> None:
        done = subprocess.run([sys.executable, "-m", "probes.bundle"], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (64, "usage: python -m probes.bundle FOLDER\n")

    def test_a_python_that_cannot_run_them_says_so_in_the_result(self, tmp_path: Path) -> None:
        copy(tmp_path / "code", bundle=tmp_path / "none")
        shutil.rmtree(tmp_path / "code" / "pydantic_core")
        done = from_bundle(tmp_path / "code", EFA_PULSE_PROBE="nixl", JOB_COMPLETION_INDEX="1", EFA_PULSE_WORLD_SIZE="2",
                           EFA_PULSE_RESULT_PATH=str(tmp_path / "result"))
        assert done.returncode != 0
        result = decode((tmp_path / "result").read_bytes())
        assert (result.reason, result.rank, result.world_size) == (Reason.ENGINE_INCOMPATIBLE, 1, 2)
        assert "pydantic_core" in result.message


def test_only_efa_devices_are_left_in_a_shared_containers_dev(tmp_path: Path) -> None:
    sysfs, dev = tmp_path / "sys", tmp_path / "dev"
    (dev / "infiniband").mkdir(parents=True)
    for number, (name, vendor, driver) in enumerate((("rdmap79s0", "0x1d0f", "efa"), ("mlx5_0", "0x15b3", "mlx5_core"))):
        device = sysfs / "class" / "infiniband" / name / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "device").write_text("0xefa1\n")
        (sysfs / "bus" / driver).mkdir(parents=True)
        (device / "driver").symlink_to(sysfs / "bus" / driver)
        verbs = sysfs / "class" / "infiniband_verbs" / f"uverbs{number}"
        verbs.mkdir(parents=True)
        (verbs / "ibdev").write_text(f"{name}\n")
        (dev / "infiniband" / f"uverbs{number}").touch()
    assert hide_others(sysfs, dev) == ["mlx5_0"]
    assert [path.name for path in (dev / "infiniband").iterdir()] == ["uverbs0"]
    assert hide_others(sysfs, dev) == []
    assert hide_others(tmp_path / "no-such-sys", dev) == []
