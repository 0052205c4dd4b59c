"""The environment contract between a launcher and a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.contract import ContractError, WorkerEnv, run_token, split_endpoint


def test_what_a_launcher_writes_a_worker_reads() -> None:
    env = WorkerEnv(run_id="r-1", probe="nixl", target="a--b", rank=1, world_size=2, rendezvous="10.0.0.1:29400", secret_file=Path("/s"),
                    address="10.0.0.2", node="b", transport="efa", deadline=12.5, spec={"sizes": [1, 2]}, result_path=Path("/r"))
    assert WorkerEnv.read(env.to_environ()) == env


def test_an_indexed_job_gives_the_rank() -> None:
    environ = {"EFA_PULSE_RUN_ID": "r", "EFA_PULSE_PROBE": "nixl", "EFA_PULSE_WORLD_SIZE": "2", "EFA_PULSE_RENDEZVOUS": "h:1",
               "EFA_PULSE_SECRET_FILE": "/s", "JOB_COMPLETION_INDEX": "1"}
    assert WorkerEnv.read(environ).rank == 1
    assert WorkerEnv.read({**environ, "EFA_PULSE_RANK": "0"}).rank == 0


@pytest.mark.parametrize(("change", "message"), [
    ({"EFA_PULSE_RUN_ID": ""}, "EFA_PULSE_RUN_ID: Field required"),
    ({"EFA_PULSE_RUN_ID": "../x"}, "EFA_PULSE_RUN_ID: String should match"),
    ({"EFA_PULSE_RANK": "x"}, "EFA_PULSE_RANK: Input should be a valid integer"),
    ({"EFA_PULSE_RANK": "5"}, "rank 5 does not exist in a run of 2 ranks"),
    ({"EFA_PULSE_RENDEZVOUS": ""}, "needs EFA_PULSE_RENDEZVOUS"),
    ({"EFA_PULSE_RENDEZVOUS": "host"}, "EFA_PULSE_RENDEZVOUS: 'host' is not host:port"),
    ({"EFA_PULSE_SPEC": "{"}, "EFA_PULSE_SPEC: not JSON"),
    ({"EFA_PULSE_SPEC": "[1]"}, "EFA_PULSE_SPEC: a JSON object is needed"),
    ({"EFA_PULSE_DEADLINE": "0"}, "EFA_PULSE_DEADLINE: Input should be greater than 0"),
    ({"EFA_PULSE_TRANSPORT": "rdma"}, "EFA_PULSE_TRANSPORT: Input should be 'efa' or 'any'"),
])
def test_a_wrong_variable_is_named(change: dict[str, str], message: str) -> None:
    environ = {"EFA_PULSE_RUN_ID": "r", "EFA_PULSE_PROBE": "nixl", "EFA_PULSE_WORLD_SIZE": "2", "EFA_PULSE_RENDEZVOUS": "h:1",
               "EFA_PULSE_SECRET_FILE": "/s", "EFA_PULSE_RANK": "0", **change}
    with pytest.raises(ContractError, match=message):
        WorkerEnv.read(environ)


def test_the_token_depends_on_secret_and_run(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    env = WorkerEnv(run_id="r", probe="p", secret_file=secret)
    assert env.token() == run_token(b"0123456789abcdef0123456789abcdef", "r")
    assert env.token() != run_token(b"0123456789abcdef0123456789abcdef", "s")


def test_a_short_or_missing_secret_is_an_error(tmp_path: Path) -> None:
    short = tmp_path / "secret"
    short.write_text("abc")
    with pytest.raises(ContractError, match="shorter than 16 bytes"):
        WorkerEnv(run_id="r", probe="p", secret_file=short).token()
    with pytest.raises(ContractError, match="No such file"):
        WorkerEnv(run_id="r", probe="p", secret_file=tmp_path / "none").token()


def test_endpoints() -> None:
    assert split_endpoint("h:1") == ("h", 1)
    assert split_endpoint("[::1]:80") == ("::1", 80)
    for wrong in ("h", ":1", "h:", "h:x", "h:0", "h:70000"):
        with pytest.raises(ValueError, match="not host:port"):
            split_endpoint(wrong)
