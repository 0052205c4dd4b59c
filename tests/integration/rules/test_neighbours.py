"""What neighbours tell is brought to our nodes: pages of the real neighbours through the rules, in promtool, old and new."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus import VERSIONS, Binaries, binaries

from dashboards.rules import neighbours as n
from dashboards.rules.model import fill
from dashboards.rules.options import Options

FIXTURES = Path(__file__).parents[2] / "fixtures"
NODE = "ip-10-1-201-66"
STEPS = 90
MINUTE = 60.0
SCRAPE = {"dcgm_exporter": {"job": "dcgm", "instance": "10.1.201.66:9400", "pod": "dcgm-x", "namespace": "gpu-operator"},
          "efa_node_exporter": {"job": "efa", "instance": "10.1.201.66:9101"},
          "nccl_inspector": {"job": "node", "instance": "10.1.201.66:9100"},
          "kube_state_metrics": {"job": "kube-state-metrics", "instance": "10.1.0.9:8080"}}
"""Labels that Prometheus puts on each page; where the page has one of its own, the page's wins (`honorLabels`, as these charts set)."""


@pytest.fixture(params=VERSIONS)
def found(request: pytest.FixtureRequest) -> Binaries:
    return binaries(request.param)


def series(text: str, target: Mapping[str, str], grows: Mapping[str, float] | None = None) -> list[dict[str, str]]:
    """Every sample of a page as an input of promtool: constant, or growing by so much a minute."""
    made = []
    for line in text.splitlines():
        sample = re.fullmatch(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", line)
        if sample is not None:
            labels = {**target, **dict(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))}
            step = (grows or {}).get(sample[1], 0.0)
            shown = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            made.append({"series": f"{sample[1]}{{{shown}}}", "values": f"{float(sample[3]):.17g}+{step:.17g}x{STEPS}"})
    return made


def page(name: str, grows: Mapping[str, float] | None = None, **more: str) -> list[dict[str, str]]:
    text = (FIXTURES / "neighbours" / f"{name}.prom").read_text()
    return series(text, {**SCRAPE[name], **more}, grows)


def engine(before: str, after: str, **target: str) -> list[dict[str, str]]:
    """A recorded vLLM before and after transfers, the second page from minute 87 on."""
    old, new = (series((FIXTURES / "engines" / name).read_text(), {"job": "vllm", "instance": "10.1.201.77:8000", **target})
                for name in (before, after))
    late = {one["series"]: one["values"].partition("+")[0] for one in new}
    return [{"series": one["series"], "values": f"{one['values'].partition('+')[0]}+0x86 {late[one['series']]}+0x8"}
            for one in old if one["series"] in late and "nixl" in one["series"]]


def ours(healthy: int, bandwidth: float = 88.2362e9) -> list[dict[str, str]]:
    """What our rules and our page say of the node."""
    target = 'job="efa-pulse",namespace="efa-pulse",service="efa-pulse"'
    return [{"series": f'efapulse:node_healthy{{node="{NODE}",probe="nccl",{target}}}', "values": f"{healthy}+0x{STEPS}"},
            {"series": f'efapulse_node_bandwidth_bytes_per_second{{node="{NODE}",probe="nccl",operation="all_reduce",bytes="1",'
                       f'memory="gpu",'
                       f'kind="busbw",instance="a",pod="p",{target}}}', "values": f"{bandwidth}+0x{STEPS}"}]


def ask(found: Binaries, folder: Path, inputs: Iterable[dict[str, str]], expected: Mapping[str, Mapping[str, float]]) -> None:
    """Run the rules over the inputs and hold what they record at minute 89 against `expected`: by record, labels to values."""
    rules = [{"record": rule.record, "expr": fill(rule.expr, Options().values())} for rule in n.GROUP.rules if hasattr(rule, "record")]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": n.GROUP.name, "rules": rules}]}))
    # Rounded, since promtool before 3 compares to the last bit.
    questions = [{"expr": f"round({record} * 1000)", "eval_time": "89m", "exp_samples": [
        {"labels": labels, "value": float(round(value * 1000))} for labels, value in samples.items()]}
        for record, samples in expected.items()]
    document: dict[str, Any] = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m",
                                "tests": [{"interval": "1m", "input_series": list(inputs), "promql_expr_test": questions}]}
    (folder / "test.yaml").write_text(yaml.safe_dump(document, width=1000))
    memory = Path("/dev/shm")  # promtool makes a database for each test and syncs it: on a busy disk that takes minutes
    environment = {**os.environ, "TMPDIR": str(memory)} if os.access(memory, os.W_OK) else None
    done = subprocess.run([str(found.promtool), "test", "rules", str(folder / "test.yaml")], capture_output=True, text=True, timeout=110,
                          check=False, env=environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


ALL = tuple(rule.record for rule in n.GROUP.rules if hasattr(rule, "record"))
AT_NODE = f'{{node="{NODE}"}}'


def test_without_any_neighbour_nothing_is_recorded_and_nothing_fails(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, ours(1), {record: {} for record in ALL})


def test_each_neighbour_that_is_there_is_said_to_be(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, [*page("dcgm_exporter"), *page("nccl_inspector")],
        {n.PRESENT: {'{neighbour="dcgm"}': 1, '{neighbour="nccl_inspector"}': 1}})


def test_gpus_are_averaged_by_node_without_the_blank_ones(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, page("dcgm_exporter"), {n.GPU_BUSY: {AT_NODE: 0.825}})


def test_traffic_of_the_efa_node_exporter_comes_to_the_node_by_its_uname(found: Binaries, tmp_path: Path) -> None:
    grows = {"node_amazonefa_tx_bytes": 3e9 * MINUTE, "node_amazonefa_rx_bytes": 1e9 * MINUTE}
    ask(found, tmp_path, page("efa_node_exporter", grows),
        {n.EFA_SENT: {AT_NODE: 6e9}, n.EFA_RECEIVED: {AT_NODE: 2e9}, n.EFA_ERRORS: {AT_NODE: 0}})


def test_counters_that_an_old_driver_lacks_do_not_hide_the_others(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, page("efa_node_exporter", {"node_amazonefa_rx_drops": 1.0}), {n.EFA_ERRORS: {AT_NODE: 120}})


def test_collectives_over_several_nodes_stand_beside_our_probe(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, [*page("nccl_inspector"), *ours(1)], {n.NCCL: {AT_NODE: 44.1181e9}, n.NCCL_TO_PROBE: {AT_NODE: 0.5}})


def test_a_scrape_that_renames_the_label_of_the_plugin_is_understood(found: Binaries, tmp_path: Path) -> None:
    renamed = [{**one, "series": one["series"].replace(f'node="{NODE}"', f'exported_node="{NODE}",node="10.1.201.66"')}
               for one in page("nccl_inspector")]
    ask(found, tmp_path, renamed, {n.NCCL: {AT_NODE: 44.1181e9}})


def test_the_speed_of_kv_transfers_of_a_recorded_vllm_comes_to_the_node_of_its_pod(found: Binaries, tmp_path: Path) -> None:
    """One transfer of 720,896 bytes in 11.096 ms."""
    inputs = engine("vllm_decode_idle.txt", "vllm_decode_after_pd.txt", namespace="serving", pod="decode-0")
    speed = 720896 / 0.011096
    ask(found, tmp_path, [*inputs, *page("kube_state_metrics")],
        {n.KV_SPEED: {'{engine="vllm"}': speed}, n.NODE_KV_SPEED: {f'{{engine="vllm",node="{NODE}"}}': speed},
         n.KV_FAILURES: {'{engine="vllm"}': 0}})


def test_without_kube_state_metrics_the_speed_of_the_cluster_is_still_there(found: Binaries, tmp_path: Path) -> None:
    inputs = engine("vllm_decode_idle.txt", "vllm_decode_after_pd.txt", namespace="serving", pod="decode-0")
    ask(found, tmp_path, inputs, {n.KV_SPEED: {'{engine="vllm"}': 720896 / 0.011096}, n.NODE_KV_SPEED: {}})


def test_no_transfers_are_no_speed(found: Binaries, tmp_path: Path) -> None:
    inputs = engine("vllm_decode_idle.txt", "vllm_decode_idle.txt", namespace="serving", pod="decode-0")
    ask(found, tmp_path, inputs, {n.KV_SPEED: {}, n.PRESENT: {'{neighbour="vllm"}': 1}})


OURS = f'{{job="efa-pulse",namespace="efa-pulse",node="{NODE}",probe="nccl",service="efa-pulse"}}'


def test_a_bad_node_whose_gpus_work_is_told_apart(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, [*page("dcgm_exporter"), *ours(0)], {n.BAD_WHEN_BUSY: {OURS: 0}})


def test_a_good_node_is_not(found: Binaries, tmp_path: Path) -> None:
    ask(found, tmp_path, [*page("dcgm_exporter"), *ours(1)], {n.BAD_WHEN_BUSY: {}})


@pytest.mark.parametrize(("drops", "told"), [(0.0, {}), (1.0, {OURS: 1.0})])
def test_a_good_node_where_trouble_rises_is_shown(found: Binaries, tmp_path: Path, drops: float, told: dict[str, float]) -> None:
    ask(found, tmp_path, [*page("efa_node_exporter", {"node_amazonefa_rx_drops": drops}), *ours(1)], {n.FINE_WITH_ERRORS: told})
