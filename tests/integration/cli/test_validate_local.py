"""`efa-pulse validate --local`: real engines on this machine, stage by stage, as a person or a CI job runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from exporter.cli.demo import simulated_endpoint

ROOT = Path(__file__).resolve().parents[3]
LIGHT = {"deadline": "60s", "params": {"sizes": ["256KiB"], "operations": ["write"], "seconds": 0.2, "batch": 1}}


def cli(*arguments: str, seconds: float = 100.0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "exporter", *arguments], capture_output=True, text=True, timeout=seconds, check=False,
                          cwd=ROOT, env={**os.environ, "COLUMNS": "140", "NO_COLOR": "1"})
    assert "Traceback" not in done.stderr
    return done


def configured(folder: Path, url: str = "http://127.0.0.1:9", **more: Any) -> Path:
    node = {"params": {"fi_info": False, "nixl_agent": False}}
    targets = [{"name": "pd", "url": url, "model": "simulated-pd", "prompts": {"long": {"enabled": False}}}]
    path = folder / "c.json"
    path.write_text(json.dumps({"probes": {"node": node, "mooncake": LIGHT, "nixl": LIGHT}, "canary": {"targets": targets}, **more}))
    return path


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same result with and without GPUs in the machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_this_machine_layer_by_layer(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    with simulated_endpoint() as url:
        config = configured(tmp_path, url)
        done = cli("validate", "--local", "--config", str(config), "--canary", "pd", "--json", "--junit", str(report))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "efa-pulse/validation/v1"
    states = {step["probe"]: step["state"] for stage in document["stages"] for step in stage["steps"]}
    assert states == {"node": "ok", "mooncake": "ok", "nixl": "ok", "nccl": "skipped", "uccl-ep": "skipped", "canary": "ok"}
    skipped = document["stages"][2]["steps"][0]
    assert skipped["why"] == "no GPU here"
    mooncake = document["stages"][1]["steps"][0]["verdict"]
    assert mooncake["transport"] == "tcp"
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("6", "0", "0", "2")
    assert list(tmp_path.glob(".report*")) == []


def test_a_bad_stage_stops_and_the_rest_is_not_reached(tmp_path: Path) -> None:
    config = configured(tmp_path)
    done = cli("validate", "--local", "--config", str(config), "--only", "mooncake,canary", "--canary", "pd", "--transport", "efa")
    assert done.returncode == 1, done.stdout
    assert "not reached: canary" in done.stdout
    assert "what to do" in done.stdout
    done = cli("validate", "--local", "--config", str(config), "--only", "mooncake,canary", "--canary", "pd", "--transport", "efa",
               "--continue", "--json")
    assert done.returncode == 1
    states = [step["state"] for stage in json.loads(done.stdout)["stages"] for step in stage["steps"]]
    assert states.count("failed") == 2, "nobody listens where the canary goes"
    assert "not reached" not in states


def test_floors_of_the_configuration_hold(tmp_path: Path) -> None:
    floor = {"probe": "mooncake", "operation": "write", "bytes": "256KiB", "min_bandwidth": "999GB/s", "source": "a test"}
    config = configured(tmp_path, thresholds={"floors": [floor]})
    done = cli("validate", "--local", "--config", str(config), "--only", "mooncake", "--json")
    document = json.loads(done.stdout)
    # A machine that is busy with something else starves the worker, and then slowness proves nothing.
    assert (done.returncode, document["state"]) in ((1, "degraded"), (2, "could not measure"))
    assert "floor 999 GB/s (a test)" in document["stages"][1]["steps"][0]["why"]


def test_nothing_measured_is_no_success() -> None:
    done = cli("validate", "--local", "--only", "nccl")
    assert done.returncode == 2
    assert "nothing was measured" in done.stdout


@pytest.mark.parametrize(("arguments", "says"), [
    ((), "--nodes a,b, or validate this machine with --local"),
    (("--local", "--nodes", "a"), "not both"),
    (("--local", "--force"), "--force is for nodes of a cluster"),
    (("--local", "--only", "kvv"), "there is no stage 'kvv'"),
    (("--local", "--canary", "x"), "no enabled target"),
    (("--local", "--transport", "rdma"), "`efa` or `any`"),
    (("--local", "--junit", "/nonexistent/x.xml"), "a folder that exists"),
    (("--nodes", "a", "--kubeconfig", "/nonexistent"), "/nonexistent"),
    (("--nodes", ",", "--kubeconfig", "/nonexistent"), "needs the name of a node"),
    (("--nodes", "a,a"), "twice"),
])
def test_mistakes_are_told_before_anything_runs(arguments: tuple[str, ...], says: str) -> None:
    done = cli("validate", *arguments)
    assert done.returncode == 64, done.stdout + done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_a_cluster_that_does_not_answer_could_not_be_measured(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "x", "user": {}}], "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}))
    for command in (("probe", "mooncake", "--nodes", "a,b"), ("validate", "--nodes", "a,b"), ("pause",), ("resume",)):
        done = cli(*command, "--kubeconfig", str(kubeconfig))
        assert done.returncode == 2, done.stderr
        assert "127.0.0.1:9" in done.stderr


@pytest.mark.parametrize(("arguments", "says"), [
    (("--kubeconfig", "x"), "--kubeconfig is for runs in a cluster"),
    (("--nodes", "a,b", "--namespaces"), "--namespaces is for runs on this machine"),
    (("--nodes", "a,b", "--log"), "--log is for runs on this machine"),
    (("--nodes", "a,b,c"), "mooncake needs 2 nodes, got 3"),
    (("--nodes", "a,b", "--set", "sizez=1"), "sizez"),
])
def test_options_of_a_probe_that_do_not_go_together(arguments: tuple[str, ...], says: str) -> None:
    done = cli("probe", "mooncake", *arguments)
    assert done.returncode == 64
    assert says in done.stderr
