"""Judged runs for tests and benchmarks of what is published, and a browser-free way to read a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.judge.transport import Transport
from exporter.judge.verdict import Verdict
from exporter.publish import families_archive, families_baseline, families_pd, render
from exporter.publish.family import Kind
from exporter.publish.nodes import Ratio, Standing
from exporter.publish.publisher import Publisher
from exporter.publish.store import Page, Snapshot
from exporter.publish.surveyed import Covered, Surveyed
from exporter.runs import Run, RunSpec
from probes.contract import Transport as Mode
from probes.reasons import Reason
from probes.result import Evidence, Finding, Measurement, Pd, Phase, Result

KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB)
OPERATIONS = ("write", "read", "batch_write", "batch_read")


def measurement(operation: str = "write", rates: Sequence[float | None] = (1e9, 2e9, 4e9), sizes: Sequence[int] = SIZES,
                seconds: float = 1e-4, **more: Any) -> Measurement:
    """Columns with these bandwidths; latency of size i is `seconds` times 10 to the i, p99 and max twice and thrice that."""
    base = [seconds * 10**i for i in range(len(sizes))]
    latency = {"p50": base, "p99": [2 * t for t in base], "max": [3 * t for t in base]}
    values = {"operation": operation, "memory": "dram", "kind": "goodput", "bytes": list(sizes), "bandwidth": list(rates),
              "latency": latency}
    return Measurement.model_validate({**values, **more})


def kv_verdict(nodes: Sequence[str] = ("a", "b"), probe: str = "mooncake", *, reason: Reason = Reason.OK,
               transport: str | None = "efa_rdma", mode: Mode = "efa", finished: float = 1000.0,
               measurements: Sequence[Measurement] | None = None,
               reasons: Sequence[Reason] | None = None, target: str | None = None, phases: dict[Phase, float] | None = None,
               findings: Sequence[Finding] = ()) -> Verdict:
    """A judged run of one rank per node. Rank 0 has the measurements, as the KV probes do; `reasons` are those of the ranks."""
    target = target or "--".join(nodes)
    own = [measurement(operation) for operation in OPERATIONS] if measurements is None else list(measurements)
    run_id = f"{probe}-{finished:.0f}"
    results = tuple(
        Result.model_validate({
            "run_id": run_id, "probe": probe, "target": target, "rank": rank, "world_size": len(nodes), "node": node,
            "started": finished - 5, "finished": finished,
            "reason": (reasons or [Reason.OK] * len(nodes))[rank], "measurements": own if rank == 0 else [],
            "phases": phases or {Phase.SETUP: 0.2, Phase.MEASURE: 1.0}, "findings": list(findings),
        })
        for rank, node in enumerate(nodes)
    )
    spec = RunSpec(run_id, probe, target, tuple(nodes), mode, 60.0)
    return Verdict(Run(spec, results, finished - 5, finished), reason, "", None if transport is None else Transport(transport), ())


def with_devices(verdict: Verdict, devices: Sequence[str], device_bytes: Sequence[int] = (), gpus: Sequence[str] = ()) -> Verdict:
    """The same run, whose ranks all used these devices."""
    evidence = Evidence(stack="mooncake", devices=list(devices), device_bytes=list(device_bytes), gpus=list(gpus))
    results = tuple(result.model_copy(update={"evidence": evidence}) for result in verdict.run.results)
    return replace(verdict, run=replace(verdict.run, results=results))


def tell_of_a_fleet(publisher: Publisher, node: str = "a", at: float = 1.7e9) -> None:
    """What the control loop tells of a fleet beside its runs, something of everything."""
    publisher.node_seen(node, at)
    publisher.node_described(node, "i-0", "p5.48xlarge", "us-west-2a", None)
    publisher.run_finished(with_devices(kv_verdict((node, "b"), "nccl", finished=at), ["rdmap0", "rdmap1"], [10, 30], ["H100 0"]))
    publisher.surveyed(Surveyed(at, {node: ["efa_room", "budget_gpu"]}, {"quiet": True}, [Covered("nccl", "all", 4, 3, 1, at - 60)],
                                {node: 0.9}, {("node", "nccl"): 1, ("group", "nccl"): 0}))
    publisher.cluster_followed("the watch of nodes was refused", at, {"GET": 7})
    publisher.reported([(family, {("x",) * len(family.labels): 1.0}) for family in families_archive.FAMILIES])
    publisher.declare_canary("pd", "pair", "long", pods=True)
    publisher.reported([(family, {("pd", *("x",) * (len(family.labels) - 1)): 1.0}) for family in families_pd.FAMILIES
                        if family.kind in (Kind.GAUGE, Kind.STATE_SET)])
    publisher.pod_started("pd", "decode", "cold", 300.0)
    publisher.run_finished(canary_verdict("pd", labels={"warmup": "true"}, reason=Reason.HTTP_SERVER_ERROR))
    publisher.reported([(family, {("x",) * len(family.labels): 1.0})
                        for family in families_baseline.FAMILIES if "node" not in family.labels])
    figure = ("nccl", "all_reduce", "1048576", "gpu", "busbw")
    publisher.compared({node: Standing(tuple(Ratio(family, figure, 0.9) for family in families_baseline.RATIOS.values()),
                                       {("nccl", "step"): True, ("nccl", "drift"): False})})


def preflight_verdict(node: str = "a", seen: int = 16, *, reason: Reason = Reason.OK, **shape: int) -> Verdict:
    """A judged preflight that saw this many EFA devices."""
    verdict = kv_verdict((node,), "node", measurements=[], transport=None, reason=reason)
    evidence = Evidence(stack="node", nics_seen=seen)
    results = tuple(result.model_copy(update={"shape": shape, "evidence": evidence}) for result in verdict.run.results)
    return replace(verdict, run=replace(verdict.run, results=results))


def canary_verdict(target: str = "chat", *, reason: Reason = Reason.OK, finished: float = 2000.0, run_id: str = "canary-1",
                   route: str = "router", prompt: str = "short", pd: Pd | None = None, transport: str | None = None,
                   labels: dict[str, str] | None = None, **stream: Any) -> Verdict:
    """A judged canary request. Keyword arguments replace fields of a healthy stream; `stream=None` leaves it out. `pd` is its section on
    prefill and decode, `transport` the one of its KV."""
    healthy = {"status": "ok", "http_status": 200, "connect": 0.001, "tls": 0.002, "ttft": 0.2, "tpot": 0.02, "max_gap": 0.04, "e2e": 0.5,
               "stream_close": 0.001, "output_tokens_per_second": 50.0, "itl": [0.02, 0.02, 0.04], "token_events": 4, "clock_lag": 0.0001}
    document = {"run_id": run_id, "probe": "canary", "target": target, "node": "exporter", "started": finished - 1, "finished": finished,
                "reason": reason, "phases": {"measure": 0.5}}
    if pd is not None:
        document["pd"] = pd
    if stream.get("stream", {}) is not None:
        document["stream"] = {**healthy, **stream}
    spec = RunSpec(run_id, "canary", target, ("exporter",), "any", 60.0, {"prompt": prompt},
                   {"route": route, "prompt": prompt, **(labels or {})})
    judged = None if transport is None else Transport(transport)
    return Verdict(Run(spec, (Result.model_validate(document),), finished - 1, finished), reason, "", judged, ())


def text_of(page: Page) -> str:
    """A page as text."""
    return b"".join(segment.text for segment in page.segments).decode()


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str, *, openmetrics: bool = False) -> Samples:
    """Name and labels to value, read by prometheus_client's own parser. A series that comes twice fails."""
    if openmetrics and not text.endswith("# EOF\n"):
        text += render.END.decode()
    families = parse_openmetrics(text) if openmetrics else parse_text(text)  # type: ignore[no-untyped-call]
    out: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in out, f"twice: {key}"
            out[key] = sample.value
    return out


def value_of(page: Samples | Snapshot, name: str, **labels: str) -> float | None:
    """The value of one series, None when it is not there."""
    found = samples(text_of(page.classic)) if isinstance(page, Snapshot) else page
    return found.get((name, frozenset(labels.items())))


def series_of(page: Samples | Snapshot, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
    """All series of one name that have these labels, by their other labels."""
    found = samples(text_of(page.classic)) if isinstance(page, Snapshot) else page
    wanted = frozenset(labels.items())
    return {key - wanted: value for (sample, key), value in found.items() if sample == name and wanted <= key}
