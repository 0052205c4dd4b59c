"""Real Prometheus, old and new, scrapes the real server as text and as OpenMetrics, over TLS with authentication, and is read back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from prometheus import VERSIONS, Binaries, Prometheus, binaries, check_metrics, running, text_only
from publishing import canary_verdict, kv_verdict, measurement, preflight_verdict, samples, tell_of_a_fleet, text_of

from exporter.config.server import Server
from exporter.publish import families as f
from exporter.publish.family import Kind
from exporter.publish.http import Limits
from exporter.publish.live import live_segments
from exporter.publish.publisher import Publisher
from exporter.publish.server import MetricsServer
from probes.reasons import Reason

PASSWORD = "correct horse"
FORMATS = ("text", "openmetrics")
LIVE = {family.name for family in f.LIVE}


def fill(publisher: Publisher) -> None:
    """Something of everything that can be published, awkward label values included."""
    for probe in ("node", "mooncake", "nixl", "canary"):
        publisher.declare_probe(probe)
    publisher.node_seen("a", 1.0e9, ["mooncake", "nixl"])
    for i, (reason, transport) in enumerate(itertools.product((Reason.OK, Reason.BELOW_FLOOR, Reason.PREEMPTED), ("efa_rdma", "tcp"))):
        publisher.run_finished(kv_verdict(("a", "b"), reason=reason, transport=transport, finished=1.7e9 + i))
        publisher.run_finished(kv_verdict(("a", 'quote"back\\slash'), "nixl", reason=reason, transport=transport, finished=1.7e9 + i))
    publisher.run_finished(kv_verdict(("a", "b"), "nccl", measurements=[measurement("all_reduce", cold=0.01)], finished=1.7e9))
    for target in ("chat", "Größe\n2"):
        publisher.declare_canary(target, "router", "short")
        for i, ttft in enumerate((0.003, 0.09, 0.7, 100.0)):
            publisher.run_finished(canary_verdict(target, ttft=ttft, run_id=f"canary-{i}", finished=1.7e9 + i))
        publisher.run_finished(canary_verdict(target, reason=Reason.TIMEOUT_FIRST_TOKEN))
    publisher.run_finished(preflight_verdict("a", 15, reason=Reason.DEVICES_MISSING, expected_devices=16))
    publisher.scheduler_tick(1.7e9)
    publisher.run_started(0.01)
    publisher.config_loaded(True, 1.7e9)
    publisher.gate("quiet_window", False)
    tell_of_a_fleet(publisher)
    publisher.commit()


@pytest.fixture(scope="module", params=VERSIONS)
def found(request: pytest.FixtureRequest) -> Binaries:
    return binaries(request.param)


@dataclass
class Rig:
    """A publisher, and the Prometheus that scrapes it under the jobs `text` and `openmetrics`."""

    publisher: Publisher
    prometheus: Prometheus


@pytest.fixture(scope="module")
def rig(found: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp(f"prometheus-{found.version}")
    publisher = Publisher("1.2.3", node_series=100)
    fill(publisher)
    protected = MetricsServer(protect(folder), lambda: publisher.snapshot)
    plain = MetricsServer(Server(listen="127.0.0.1:0"), lambda: publisher.snapshot)
    protected.start()
    plain.start()
    safe = secured(protected, folder)
    try:
        with text_only(plain.url) as relay:
            if found.version >= 3:
                jobs = [{"job_name": "text", "scrape_protocols": ["PrometheusText0.0.4"], **safe},
                        {"job_name": "openmetrics", "scrape_protocols": ["OpenMetricsText1.0.0"], **safe}]
            else:
                jobs = [{"job_name": "text", "static_configs": [{"targets": [relay]}]}, {"job_name": "openmetrics", **safe}]
            with running(found, folder, jobs, "--enable-feature=exemplar-storage") as prometheus:
                for job in FORMATS:
                    prometheus.until(f'up{{job="{job}"}}', lambda value: value == 1)
                yield Rig(publisher, prometheus)
    finally:
        protected.close()
        plain.close()


def secured(server: MetricsServer, folder: Path, password: str = PASSWORD) -> dict[str, Any]:
    """How Prometheus reaches a server that `protect` protects."""
    return {"scheme": "https", "basic_auth": {"username": "prometheus", "password": password},
            "tls_config": {"ca_file": str(folder / "ca.crt")}, "static_configs": [{"targets": [f"localhost:{server.address[1]}"]}]}


def protect(folder: Path) -> Server:
    ca = trustme.CA()
    issued = ca.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(folder / "server.crt")
    issued.private_key_pem.write_to_path(folder / "server.key")
    ca.cert_pem.write_to_path(folder / "ca.crt")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (folder / "web-config.yml").write_text(
        f"tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{prometheus: '{hashed}'}}\n")
    return Server(listen="127.0.0.1:0", web_config=folder / "web-config.yml")


def test_promtool_has_nothing_to_say_about_the_full_page(found: Binaries) -> None:
    publisher = Publisher("1.2.3", node_series=100)
    fill(publisher)
    server = MetricsServer(Server(listen="127.0.0.1:0"), lambda: publisher.snapshot)
    live = b"".join(segment.text for segment in live_segments(server._parts, server._counts, openmetrics=False))
    server.close()
    page = text_of(publisher.snapshot.classic).encode() + live
    shown = {line.split()[2] for line in page.decode().splitlines() if line.startswith("# TYPE")}
    assert {family.name for family in f.FAMILIES} <= shown
    assert check_metrics(found, page) == (0, "")


def test_promtool_would_have_complained(found: Binaries) -> None:
    code, said = check_metrics(found, b"# TYPE efapulse_things counter\nefapulse_things 1\n")
    assert code != 0
    assert "efapulse_things" in said


@pytest.mark.parametrize("job", FORMATS)
def test_prometheus_holds_every_series_of_the_page_with_its_value(rig: Rig, job: str) -> None:
    held = {}
    for labels, value in rig.prometheus.query(f'{{__name__=~"efapulse_.+",job="{job}"}}').items():
        plain = {name: text for name, text in labels if name not in {"job", "instance", "__name__"}}
        name = dict(labels)["__name__"]
        if name not in LIVE:
            held[name, frozenset(plain.items())] = value
    page = {(name, frozenset((key, text) for key, text in labels if text)): value
            for (name, labels), value in samples(text_of(rig.publisher.snapshot.classic)).items()}
    assert len(page) > 1000
    assert held.keys() == page.keys()
    assert [key for key, value in page.items() if not math.isclose(held[key], value, rel_tol=1e-12)] == []


@pytest.mark.parametrize("job", FORMATS)
def test_prometheus_knows_the_type_and_help_of_every_family(rig: Rig, job: str) -> None:
    entries = rig.prometheus.api("targets/metadata", match_target=f'{{job="{job}"}}')
    known = {entry["metric"]: entry for entry in entries}
    for family in f.FAMILIES:
        name = family.base_name if job == "openmetrics" else family.name
        plain = {Kind.INFO: "info" if job == "openmetrics" else "gauge", Kind.STATE_SET: "gauge"}
        assert known[name]["type"] == plain.get(family.kind, family.kind.value), name
        assert known[name]["help"] == family.help
        assert known[name]["unit"] == (family.unit or "" if job == "openmetrics" else "")


@pytest.mark.parametrize("job", FORMATS)
def test_the_questions_of_an_operator_have_answers(rig: Rig, job: str) -> None:
    ask = rig.prometheus.value
    assert ask(f'efapulse_node_healthy{{job="{job}",node="b",probe="mooncake"}}') == 0.0
    assert ask(f'efapulse_node_transport{{job="{job}",node="a",probe="mooncake"}} == 1') == 1.0
    assert ask(f'sum(efapulse_transport_fallback_total{{job="{job}",node="a",probe="mooncake",transport="tcp"}})') == 3.0
    assert ask(f'sum(efapulse_runs_total{{job="{job}",probe="mooncake",outcome="unknown"}})') == 2.0
    assert ask(f'max(efapulse_node_bandwidth_bytes_per_second{{job="{job}",node="a",probe="mooncake",operation="write"}})') == 4e9
    quantile = ask(f'histogram_quantile(0.5, sum by (le) (efapulse_canary_ttft_seconds_bucket{{job="{job}",target="chat"}}))')
    assert quantile is not None
    assert 0.08 <= quantile <= 0.1
    failed = f'sum by (result) (efapulse_canary_requests_total{{job="{job}",target="chat",result=~"timeout_.+"}}) > 0'
    assert [dict(labels)["result"] for labels in rig.prometheus.query(failed)] == ["timeout_first_token"]
    assert ask(f'efapulse_canary_requests_total{{job="{job}",target="Größe\\n2",result="ok"}}') == 4.0


def test_exemplars_lead_to_the_run(rig: Rig) -> None:
    found = rig.prometheus.api("query_exemplars", query="efapulse_canary_ttft_seconds_bucket", start="1699999000", end="1700001000")
    runs = {exemplar["labels"]["run_id"]: float(exemplar["value"]) for series in found for exemplar in series["exemplars"]}
    assert runs == {"canary-0": 0.003, "canary-1": 0.09, "canary-2": 0.7, "canary-3": 100.0}
    assert {series["seriesLabels"]["job"] for series in found} == {"openmetrics"}


@pytest.mark.parametrize("job", FORMATS)
def test_a_node_that_left_is_gone_at_once(rig: Rig, job: str) -> None:
    node = f"leaver-{job}"
    rig.publisher.run_finished(kv_verdict((node, "stays")))
    rig.publisher.commit()
    rig.prometheus.until(f'efapulse_node_healthy{{job="{job}",node="{node}"}}', lambda value: value == 1.0)
    rig.publisher.node_removed(node)
    rig.publisher.commit()
    rig.prometheus.until(f'efapulse_node_healthy{{job="{job}",node="{node}"}}', lambda value: value is None)
    rig.publisher.node_removed("stays")


@pytest.mark.parametrize(("job", "reason"), [("text", Reason.SHED), ("openmetrics", Reason.TRUNCATED)])
def test_a_first_failure_is_an_increase(rig: Rig, job: str, reason: Reason) -> None:
    counter = f'efapulse_canary_requests_total{{job="{job}",target="chat",result="{reason.value}"}}'
    rig.prometheus.until(f"count_over_time({counter}[10s])", lambda value: (value or 0) >= 2)
    assert rig.prometheus.value(counter) == 0.0
    rig.publisher.run_finished(canary_verdict(reason=reason))
    rig.publisher.commit()
    rig.prometheus.until(counter, lambda value: value == 1.0)
    rig.prometheus.until(f"increase({counter}[30s])", lambda value: value is not None and value > 0)


def test_a_wrong_password_is_seen_as_down(found: Binaries, tmp_path: Path) -> None:
    publisher = Publisher("1.2.3")
    server = MetricsServer(protect(tmp_path), lambda: publisher.snapshot)
    server.start()
    try:
        with running(found, tmp_path, [{"job_name": "wrong", **secured(server, tmp_path, "wrong")}]) as prometheus:
            prometheus.until('up{job="wrong"}', lambda value: value == 0)
            assert "401" in prometheus.api("targets")["activeTargets"][0]["lastError"]
    finally:
        server.close()


def test_fifty_thousand_series_are_scraped_every_second(found: Binaries, tmp_path: Path) -> None:
    publisher = Publisher("1.2.3", max_series=60_000)
    for i in range(0, 1400, 2):
        pair = (f"ip-10-0-{i // 250}-{i % 250}.ec2.internal", f"ip-10-0-{i // 250}-{i % 250 + 1}.ec2.internal")
        for node in pair:
            publisher.node_seen(node, 1.7e9, ["mooncake", "nixl"])
        for probe in ("mooncake", "nixl"):
            publisher.run_finished(kv_verdict(pair, probe))
        publisher.run_finished(kv_verdict(pair[:1], "node", measurements=[], transport=None))
    series = publisher.commit().series
    assert series >= 50_000
    server = MetricsServer(protect(tmp_path), lambda: publisher.snapshot, limits=Limits())
    server.start()
    try:
        with running(found, tmp_path, [{"job_name": "big", **secured(server, tmp_path)}], interval="2s") as prometheus:
            prometheus.until('count_over_time(scrape_samples_scraped{job="big"}[1m])', lambda value: (value or 0) >= 4)
            scraped = prometheus.value('min_over_time(scrape_samples_scraped{job="big"}[1m])')
            slowest = prometheus.value('max_over_time(scrape_duration_seconds{job="big"}[1m])')
            assert scraped is not None
            assert scraped >= series
            assert slowest is not None
            assert slowest < 2.0
    finally:
        server.close()
