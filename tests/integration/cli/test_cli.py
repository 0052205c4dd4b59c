"""The commands as a person or a script uses them: output, exit status, and no traceback for a mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doubles.llmd import llm_d

from exporter.cli.demo import simulated_endpoint

ROOT = Path(__file__).resolve().parents[3]
NCCL = ROOT / "tests" / "fixtures" / "nccl"


def cli(*arguments: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "exporter", *arguments], capture_output=True, text=True, timeout=seconds, check=False,
                          env={**os.environ, "COLUMNS": "140", "NO_COLOR": "1"})
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(("arguments", "says"), [
    (["nonsense"], "No such command 'nonsense'"),
    (["probe", "nixl", "--sizes", "64KB5"], "sizes.0"),
    (["probe", "nixl", "--set", "iteratons=5"], "iteratons"),
    (["probe", "nixl", "--set", "iterations"], "KEY=VALUE is needed"),
    (["probe", "nixl", "--set", "iterations=["], "not YAML"),
    (["probe", "nixl", "--transport", "rdma"], "`efa` or `any`"),
    (["probe", "nixl", "--deadline", "0"], "greater than or equal to 1"),
    (["canary", "--model", "m"], "--url"),
    (["canary", "--url", "ftp://x", "--model", "m"], "url"),
    (["canary", "--url", "http://h", "--model", "m", "--key-file", "/no/such"], "there is no such file"),
    (["run", "-c", "/no/such.yaml"], "/no/such.yaml"),
    (["check-config", "/no/such.yaml"], "/no/such.yaml"),
    (["check-config"], "needs a file"),
    (["plan", "-c", "/no/such.yaml"], "/no/such.yaml"),
    (["parse", "nccl-tests", "/no/such"], "No such file"),
    (["demo", "--listen", "nowhere"], "host:port"),
    (["simulate", "--fault", "slow_node"], "does not say where"),
    (["simulate", "--instance-type", "t3.nano"], "no such type"),
])
def test_a_mistake_of_the_user_is_status_64_and_says_what(arguments: list[str], says: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 64
    assert says in done.stderr


COMMANDS = ("run", "demo", "validate", "pause", "resume", "canary", "plan", "check-config")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS), ["probe", "nixl", "-h"],
                                       ["parse", "nccl-tests", "-h"]])
def test_every_command_explains_itself(arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.returncode == 0
    assert "Usage: efa-pulse" in done.stdout


def test_check_config_shows_every_problem_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("probes:\n  nixl:\n    deadlin: 3s\ncanary:\n  targets:\n    - name: x\n")
    done = cli("check-config", str(path))
    assert done.returncode == 64
    assert f"{path}:3:5" in done.stderr
    assert "deadline" in done.stderr
    assert "url" in done.stderr
    assert "model" in done.stderr


def test_check_config_of_a_right_file_and_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("{}\n")
    assert cli("check-config", str(path)).returncode == 0
    schema = json.loads(cli("check-config", "--schema").stdout)
    assert schema["$schema"].endswith("2020-12/schema")


def test_plan_prints_every_job_and_starts_nothing() -> None:
    done = cli("plan")
    assert done.returncode == 0
    assert "nixl/" in done.stdout
    rows = json.loads(cli("plan", "--json").stdout)
    assert {row["probe"] for row in rows} >= {"node", "mooncake", "nixl"}
    assert all(row["wall"] > 0 for row in rows)


@pytest.mark.parametrize("engine", ["mooncake", "nixl"])
def test_a_probe_measures_and_says_over_what(engine: str) -> None:
    done = cli("probe", engine, "--sizes", "1MiB", "--operations", "write,read", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["outcome"], verdict["transport"]) == ("ok", "tcp")
    assert {proof["name"]: proof["holds"] for proof in verdict["proofs"]} == {"transport": True, "speed": None, "answer": True}


@pytest.mark.parametrize("engine", ["mooncake", "nixl"])
def test_where_efa_is_required_this_machine_fails(engine: str) -> None:
    done = cli("probe", engine, "--sizes", "64KiB", "--transport", "efa", "--json")
    assert done.returncode in (1, 2)
    verdict = json.loads(done.stdout)
    expected = {"mooncake": ("transport_unavailable", "tcp_fallback"), "nixl": ("transport_unavailable", "engine_incompatible")}
    assert verdict["reason"] in expected[engine], verdict["message"]


def test_a_table_for_people() -> None:
    done = cli("probe", "mooncake", "--sizes", "64KiB", "--operations", "write")
    assert done.returncode == 0
    assert "GB/s" in done.stdout
    assert "transport tcp" in done.stdout


def test_an_engine_that_is_not_installed_could_not_measure() -> None:
    done = cli("probe", "nccl", "--json", "--set", "gpus=1")
    assert done.returncode == 2
    assert json.loads(done.stdout)["reason"] in ("engine_missing", "gpu_missing", "engine_incompatible")


def test_canary_prints_the_times_of_each_request() -> None:
    with simulated_endpoint() as url:
        done = cli("canary", "--url", url, "--model", "simulated-pd", "-n", "3", "--interval", "0")
        assert done.returncode == 0, done.stdout
        assert "3 of 3 ok" in done.stdout
        document = json.loads(cli("canary", "--url", url, "--model", "simulated-pd", "--json").stdout)
    stream = document[0]["results"][0]["stream"]
    assert 0.15 < stream["ttft"] < 1.0
    assert stream["output_tokens"] == 32


def test_canary_of_a_pair_prints_both_legs_and_what_the_answer_is_worth() -> None:
    with llm_d() as there:
        done = cli("canary", "--url", there.decode.house.url, "--prefill", there.prefill.house.url, "--stack", "vllm",
                   "--model", "canary-model", "--max-tokens", "32")
        assert there.legs() == ([200], [200])
    assert "prefill leg ok in" in done.stdout, done.stdout + done.stderr
    assert "0 of 1 codes copied" in done.stdout
    refused = cli("canary", "--url", "http://h", "--model", "m", "--stack", "vllm", "--route", "pair")
    assert "route pair needs prefill" in refused.stderr


def test_a_canary_that_finds_nobody_is_bad() -> None:
    done = cli("canary", "--url", "http://127.0.0.1:1", "--model", "m")
    assert done.returncode == 1
    assert "connect_failed" in done.stdout


def test_recorded_output_of_nccl_tests_is_read_and_judged() -> None:
    recorded = sorted(NCCL.rglob("all_reduce_nvlink*.json"))
    assert recorded
    done = cli("parse", "nccl-tests", str(recorded[0]))
    assert "busbw GB/s" in done.stdout
    assert done.returncode in (0, 1)
    assert json.loads(cli("parse", "nccl-tests", str(recorded[0]), "--json").stdout)["rows"]


def test_a_simulated_fault_is_found_and_nobody_else_is_named() -> None:
    done = cli("simulate", "--nodes", "16", "--fault", "slow_node:3", "--hours", "1", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert [(found["kind"], found["right"]) for found in report["found"]] == [("node", True)]
    assert report["simulated"] is True
    assert report["missed"] == []


def test_probes_alone_point_to_the_extra(tmp_path: Path) -> None:
    script = ("import sys\n"
              "class Block:\n"
              "    def find_spec(self, name, path=None, target=None):\n"
              "        if name.partition('.')[0] in {'typer', 'click'}: raise ModuleNotFoundError(name, name=name)\n"
              "sys.meta_path.insert(0, Block())\n"
              "from exporter.__main__ import main\n"
              "main()\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert done.returncode == 64
    assert "pip install 'efa-pulse[exporter]'" in done.stderr
