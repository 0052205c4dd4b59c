"""Witnesses 1 to 3 on real transfers of the real engines, joined by the judge. Without EFA the honest verdict is `tcp`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sysfs_tree import SysfsTree

from exporter.judge.transport import Transport, judge_transport
from probes.efa.devices import discover
from probes.efa.window import WitnessAnswer, ask
from probes.result import Result

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(bool(discover().devices), reason="this machine has EFA devices: the engines would use them")


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[str]:
    """A real witness over a made p5 tree in which nothing moves. Its address."""
    SysfsTree.p5(tmp_path)
    command = [sys.executable, "-m", "probes.witness", "--sysfs", str(tmp_path), "--listen", "127.0.0.1:0", "--interval", "0.5"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stderr is not None
    port = re.search(r"port (\d+)", process.stderr.readline())
    assert port is not None
    yield f"127.0.0.1:{port[1]}"
    process.terminate()
    process.wait(10)
    process.stderr.close()


def run(engine: str) -> tuple[dict[str, Any], list[Result]]:
    """One small run of two local ranks through the command line: the verdict and the results."""
    command = [sys.executable, "-m", "exporter", "probe", engine, "--sizes", "1MiB,4MiB", "--operations", "write,read", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    verdict = json.loads(done.stdout)
    return verdict, [Result.model_validate(result) for result in verdict["results"]]


@pytest.mark.parametrize(("engine", "marker"), [("mooncake", "mc_tcp_listen"), ("nixl", "ucx_tcp")])
def test_a_real_transfer_is_tcp_by_all_three_witnesses(engine: str, marker: str, witness: str) -> None:
    verdict, results = run(engine)
    assert verdict["transport"] == "tcp", verdict["message"]
    for result in results:
        evidence, measure = result.evidence, result.measure
        assert evidence is not None
        assert measure is not None
        assert evidence.payload_bytes is not None
        assert evidence.tcp_bytes is not None
        for payload, tcp in zip(evidence.payload_bytes, evidence.tcp_bytes, strict=True):
            assert payload > 1 << 20
            assert 0.999 * payload <= tcp <= 1.01 * payload, (result.rank, payload, tcp)
        assert {each.says for each in evidence.markers} & {"tcp", "efa", "intra_node", "other"} == {"tcp"}
        assert marker in {each.id for each in evidence.markers}
    first = results[0]
    assert first.measure is not None
    answer = ask(witness, first.measure.start, first.measure.end, started=first.started, ended=first.finished, deadline=20.0)
    assert isinstance(answer, WitnessAnswer), answer
    # The ranks share a machine here: with names of two nodes the same evidence is that of a fallback between nodes.
    apart = [result.model_copy(update={"node": f"node-{result.rank}"}) for result in results]
    answers = {node: replace(answer, node=node) for node in ("node-0", "node-1")}
    judged = judge_transport(apart, answers)
    assert judged.transport is Transport.TCP
    assert {each.says for each in judged.statements if each.witness == "counters"} == {"flat"}
    unsampled = [result.model_copy(update={"evidence": result.evidence.model_copy(update={"tcp_bytes": None, "markers": []})})
                 for result in apart if result.evidence]
    assert judge_transport(unsampled, answers).transport is Transport.TCP, "flat counters alone are conclusive"
    assert judge_transport(unsampled, {}).transport is Transport.INDETERMINATE
