"""Whether the result of every configured run fits its 4,096 bytes in the worst case: 32 NICs, long names, figures without pattern."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from exporter.config.canary import Kind
from exporter.config.probes import Probe, ProbeName
from exporter.config.root import Config
from exporter.config.semantic import Found
from probes.kv.params import KvParams, NixlParams
from probes.nccl import meetings
from probes.nccl.params import NcclParams
from probes.result import LIMIT, Measurement, Result, ResultError, encode
from probes.uccl_ep.params import UcclEpParams

NICS = 32
GPUS = 8
MARKERS = 6
FINDINGS = 14
RESERVE = 64
"""Bytes by which other figures of the same number may deflate worse."""
_LINE = """NET/OFI Selected provider is efa, fabric efa-direct (found nics) Using network Libfabric device transfer engine endpoint
    registered memory region address failed with error rdma not available falling back to tcp socket interface version init complete
    channel topology rail context"""
_WORDS = tuple(_LINE.split())
STATISTICS = ("min", "p50", "p99", "max", "mean")
POSTS = ("post_p50", "post_p99", "post_max")


@dataclass(frozen=True)
class Capacity:
    """The worst case of one probe: `needed` bytes of `limit`; None when more than can be told (several times the limit)."""

    probe: str
    needed: int | None
    limit: int = LIMIT

    @property
    def fits(self) -> bool:
        """Whether a result can always be written whole."""
        return self.needed is not None and self.needed <= self.limit


@dataclass(frozen=True)
class _Table:
    """One operation of a probe's matrix."""

    operation: str
    sizes: tuple[int, ...]
    memory: Literal["dram", "gpu"] = "dram"
    kind: Literal["busbw", "algbw", "goodput"] = "goodput"
    statistics: tuple[str, ...] = STATISTICS
    algbw: bool = False
    wrong: bool = True
    variant: str | None = None


def check(config: Config) -> list[Found]:
    """A problem for every enabled probe and prompt whose result cannot fit."""
    found: list[Found] = []
    for name, probe in config.probes.items():
        if not probe.enabled:
            continue
        worst = probe_worst_case(name, probe)
        if not worst.fits:
            place = ("probes", name, "params", *(("sizes",) if hasattr(probe.params, "sizes") else ()))
            needs = f"about {-(-worst.needed // 100) * 100} bytes" if worst.needed is not None else "far more"
            found.append((place, f"the result of one run may need {needs}, and {worst.limit} fit: measure fewer sizes or operations"))
    for index, target in enumerate(config.canary.targets):
        for kind, prompt in target.prompts.items():
            tokens = target.request(kind).max_tokens
            if not (target.enabled and prompt.enabled) or canary_worst_case(target.name, kind, tokens, pd=target.pd is not None).fits:
                continue
            own = "max_tokens" in prompt.params.model_fields_set
            where = ("canary", "targets", index, *(("prompts", kind) if own else ()), "params", "max_tokens")
            found.append((where, f"the result of a request of {tokens} tokens may not fit beside its proof of KV movement: 64 always do"))
    return found


def worst_case(config: Config) -> list[Capacity]:
    """The worst case of every enabled probe and of every canary prompt, in the order of the configuration."""
    probes = [probe_worst_case(name, probe) for name, probe in config.probes.items() if probe.enabled]
    canaries = [canary_worst_case(target.name, kind, target.request(kind).max_tokens, pd=target.pd is not None)
                for target in config.canary.targets for kind, prompt in target.prompts.items() if target.enabled and prompt.enabled]
    return probes + canaries


def probe_worst_case(name: ProbeName, probe: Probe) -> Capacity:
    """The worst case of one probe section."""
    return _measure(name, measurements=[_measurement(table) for table in _tables(probe)], findings=_findings() if name == "node" else [])


def canary_worst_case(target: str, kind: Kind, max_tokens: int, *, pd: bool = False) -> Capacity:
    """The worst case of one canary request: a gap for every token; `pd`: with both legs and every proof of KV movement."""
    figures = _Figures()
    names = ("connect", "tls", "ttfb", "ttft", "ttfo", "tpot", "max_gap", "e2e", "stream_close", "output_tokens_per_second", "clock_lag")
    stream: dict[str, Any] = {"status": "ok", "http_status": 200, **{name: figures.seconds() for name in names},
              "itl": [figures.seconds() for _ in range(max_tokens)], "prompt_tokens": 131072, "output_tokens": max_tokens,
              "cached_tokens": 131072,
              "token_count_source": "usage", "token_events": max_tokens, "unresolved_events": max_tokens, "finish_reason": "length",
              "request_id": f"chatcmpl-{figures.hex(32)}", "answer_sha256": figures.hex(64)}
    if not pd:
        return _measure(f"canary/{target}/{kind}", stream=stream)
    leg = {"status": "ok", "http_status": 200, "prompt_tokens": 131072, "cached_tokens": 131072,
           **{name: figures.seconds() for name in ("start", "ttfb", "seconds")}}
    stream |= {"prefill": leg, "handover": "given", "decode_ttft": figures.seconds(), "cold_ttft": figures.seconds()}
    return _measure(f"canary/{target}/{kind}", stream=stream, pd=_proof(figures))


def _proof(figures: _Figures) -> dict[str, Any]:
    """A section on prefill and decode with every field."""
    seconds = ("kv_transfer", "kv_bytes_per_second", "queue", "prefill_seconds", "transfer", "handover")
    counts = ("kv_bytes", "expected_kv_bytes", "formula_kv_bytes")
    kinds = ("provenance", "counters", "router_mode", "purity", "configuration")
    return {"route": "pair", "connector": "nixl", "disaggregation": "yes", "evidence": "counters", "why": figures.hex(100),
            "says": [{"kind": kind, "says": "yes", "text": figures.hex(100)} for kind in kinds],
            "prefill": _pod(figures, "prefill"), "decode": _pod(figures, "decode"), "others": 99, "block_tokens": 128,
            **{name: figures.seconds() for name in seconds}, **dict.fromkeys(counts, 123456789012), "failed_transfers": 99, "expired": 99,
            "impure_tokens": [9999, 9999], "integrity": {"verdict": "degenerate", "why": figures.hex(60), "anchors": [3, 3],
                                                         "first_token": True, "common_prefix": figures.seconds(),
                                                         "logprob_drift": figures.seconds(), "repetition": figures.seconds(),
                                                         "replacement_characters": 99}}


def _pod(figures: _Figures, role: str) -> dict[str, Any]:
    names = {"pod": f"modelservice-{role}-{figures.hex(15)}", "node": f"ip-10-0-{figures.hex(3)}.eu-central-1.compute.internal",
             "zone": "eu-central-1a", "instance_type": "p5en.48xlarge", "placement_group": f"pg-{figures.hex(12)}", "engine": "sglang"}
    return {"role": role, **names, "engine_role": role, **{name: figures.seconds() for name in ("running", "waiting", "kv_usage")}}


def _measure(name: str, **parts: Any) -> Capacity:
    result = Result.model_validate({**_frame(name.partition("/")[0]), **parts})
    try:
        return Capacity(name, len(encode(result, LIMIT - RESERVE)) + RESERVE)
    except ResultError:
        pass
    try:
        encode(result, 4 * LIMIT)
    except ResultError:
        return Capacity(name, None)
    return Capacity(name, _smallest(result, LIMIT - RESERVE, 4 * LIMIT) + RESERVE)


def _smallest(result: Result, low: int, high: int) -> int:
    """The least limit between `low` (too small) and `high` (large enough) that holds the result."""
    while high - low > 16:
        middle = (low + high) // 2
        try:
            encode(result, middle)
            high = middle
        except ResultError:
            low = middle
    return high


def _tables(probe: Probe) -> Iterator[_Table]:
    params = probe.params
    if isinstance(params, KvParams):
        statistics = (*STATISTICS, *POSTS) if isinstance(params, NixlParams) else STATISTICS
        yield from (_Table(operation, tuple(params.sizes), params.memory, statistics=statistics) for operation in params.operations)
    elif isinstance(params, NcclParams):
        rows = [(operation, variant) for operation in params.operations for variant in ([None, "in_place"] if params.in_place else [None])]
        gpus = GPUS if params.gpus == "all" else params.gpus
        found = dict.fromkeys(name for turn in meetings.turns(gpus=gpus, workers=2, rails=params.rails, pairs=params.pairs)
                              for _, _, name in turn)
        yield from (_Table(operation, tuple(params.sizes), "gpu", "busbw", (*STATISTICS, "stdev"), algbw=True, variant=variant)
                    for operation, variant in [*rows, *(("sendrecv", name) for name in found if not meetings.ranks_of(name))])
        yield from (_Table("sendrecv", tuple(params.sizes), "gpu", "busbw", ("p50", "p99"), algbw=True, variant=name)
                    for name in found if meetings.ranks_of(name))
    elif isinstance(params, UcclEpParams):
        size = (params.tokens or 4096) * params.hidden * 2
        yield from (_Table(operation, (size,), "gpu", variant=variant)
                    for operation in ("dispatch", "combine") for variant in ("fp8", "bf16"))


def _measurement(table: _Table) -> Measurement:
    figures = _Figures(table.operation + (table.variant or ""))
    count = len(table.sizes)
    return Measurement(
        operation=table.operation, memory=table.memory, kind=table.kind, bytes=list(table.sizes), variant=table.variant,
        bandwidth=[figures.rate() for _ in range(count)], algbw=[figures.rate() for _ in range(count)] if table.algbw else None,
        latency={name: [figures.seconds() for _ in range(count)] for name in table.statistics},
        iterations=[figures.whole(1_000_000) for _ in range(count)], wrong=[0] * count if table.wrong else None,
        batch=8, cold=figures.seconds(),
    )


def _frame(probe: str) -> dict[str, Any]:
    """Everything of a result that does not depend on the matrix, as large as it gets: long names, a full set of versions and markers."""
    figures = _Figures(probe)
    start = 1.8e9 + figures.seconds()
    nodes = [f"ip-{figures.whole(256)}-{figures.whole(256)}-{figures.whole(256)}.ap-northeast-1.compute.internal" for _ in range(2)]
    versions = ("efa-pulse", "python", "driver", "libfabric", "aws-ofi-nccl", "nccl", "cuda", "engine", "image")
    return {
        "run_id": f"{probe}-20261129t230512-{figures.hex(8)}", "probe": probe, "target": "--".join(nodes), "node": nodes[0], "rank": 15,
        "world_size": 16, "started": start, "finished": start + 60 + figures.seconds(), "reason": "ok", "message": figures.line(200),
        "measure": {"start": start, "end": start + figures.seconds()},
        "phases": {name: figures.seconds() for name in ("pull", "launch", "rendezvous", "setup", "measure", "finish")},
        "evidence": {
            "stack": probe, "provider": "efa", "fabric": "efa-direct", "nics_allocated": NICS, "nics_seen": NICS, "rdma": True,
            "payload_bytes": [figures.whole(2**44), figures.whole(2**44)], "tcp_bytes": [figures.whole(2**32), figures.whole(2**32)],
            "devices": [f"rdmap{figures.whole(220)}s{figures.whole(32)}" for _ in range(NICS)],
            "device_bytes": [figures.whole(2**40) for _ in range(NICS)], "gpus": [f"0000:{figures.hex(2)}:00.0" for _ in range(GPUS)],
            "markers": [{"id": f"{probe}_{figures.line(12)}", "says": "efa", "text": figures.line(160)} for _ in range(MARKERS)],
        },
        "throttling": {"periods": figures.whole(10**6), "throttled_periods": figures.whole(10**6), "throttled_seconds": figures.seconds(),
                       "cpu_pressure_seconds": figures.seconds(), "wait_seconds": figures.seconds()},
        "versions": {name: f"{figures.whole(30)}.{figures.whole(30)}.{figures.whole(30)}-{figures.hex(7)}" for name in versions},
        "shape": {"ranks_per_node": 8, "nics_per_rank": 4, "memory": "gpu", "threads": 8, "batch": 4096, "gpu": "NVIDIA H200"},
    }


def _findings() -> list[dict[str, Any]]:
    figures = _Figures("findings")
    return [{"check": figures.line(14), "ok": False, "expected": figures.line(24), "seen": figures.line(40), "remedy": figures.line(90)}
            for _ in range(FINDINGS)]


class _Figures:
    """Values in which deflate finds no more pattern than in real ones, the same in every run."""

    def __init__(self, seed: str = "") -> None:
        self._random = random.Random(seed)  # noqa: S311 - filler, not a secret

    def seconds(self) -> float:
        return self._random.uniform(1e-5, 1.0)

    def rate(self) -> float:
        return self._random.uniform(1e9, 1e12)

    def whole(self, below: int) -> int:
        return self._random.randrange(below)

    def hex(self, length: int) -> str:
        return "".join(self._random.choices("0123456789abcdef", k=length))

    def line(self, length: int) -> str:
        """A line as logs have it: words and now and then a number."""
        text = ""
        while len(text) < length:
            text += self._random.choice(_WORDS) if self._random.random() < 0.8 else self.hex(self._random.randrange(2, 9))
            text += " "
        return text[:length].strip()
