"""The KV probes where the local launcher does not put them: in an interpreter without engines, and on IPv6."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probes.contract import PREFIX, WorkerEnv
from probes.reasons import Reason
from probes.result import Result, decode

pytestmark = pytest.mark.usefixtures("no_process_left")

ROOT = Path(__file__).parents[3]
NEEDED = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "h11", "pyroute2", "yaml")
SPEC: dict[str, Any] = {"sizes": ["64KiB"], "operations": ["write", "read"], "iterations": 5}


def run_workers(directory: Path, probe: str, *, python: str = sys.executable, host: str = "127.0.0.1",
                environ: dict[str, str] | None = None) -> list[Result]:
    (directory / "secret").write_text(secrets.token_hex(32))
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    workers = []
    for rank in range(2):
        env = WorkerEnv(run_id="elsewhere", probe=probe, rank=rank, world_size=2, rendezvous=endpoint, secret_file=directory / "secret",
                        deadline=40.0, spec=SPEC, result_path=directory / f"{rank}.result", log_path=directory / f"{rank}.log")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        workers.append(subprocess.Popen([python, "-m", "probes", "run"], env={**inherited, **(environ or {}), **env.to_environ()},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=directory))
    for worker in workers:
        assert worker.wait(60) == 0
    return [decode((directory / f"{rank}.result").read_bytes()) for rank in range(2)]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of an interpreter that has what `probes` needs and no engine."""
    site = tmp_path_factory.mktemp("site")
    (site / "probes").symlink_to(ROOT / "probes")
    for name in NEEDED:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        source = Path(found.origin)
        source = source.parent if source.name == "__init__.py" else source
        (site / source.name).symlink_to(source)
    return {"PYTHONPATH": str(site), "VIRTUAL_ENV": ""}


@pytest.mark.parametrize("probe", ["mooncake", "nixl"])
def test_an_engine_that_is_not_installed(tmp_path: Path, bare: dict[str, str], probe: str) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    for result in run_workers(tmp_path, probe, python=base, environ=bare):
        assert (result.reason, f"{probe} is not installed here" in result.message) == (Reason.ENGINE_MISSING, True), result.message
        assert probe not in result.versions


@pytest.mark.parametrize("probe", ["mooncake", "nixl"])
def test_ranks_that_meet_on_ipv6(tmp_path: Path, probe: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as link:
            link.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")
    initiator, target = run_workers(tmp_path, probe, host="::1")
    assert (initiator.reason, target.reason) == (Reason.OK, Reason.OK), initiator.message + target.message
    assert [row.wrong for row in initiator.measurements] == [[0], [0]]
