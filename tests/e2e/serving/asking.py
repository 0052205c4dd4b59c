"""Canaries to the serving rig: the product's own, in this process, and what the engines say of themselves."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.serving.rig import BLOCK, KV_BYTES_PER_TOKEN, MODEL, Engine, Rig, get

from probes.canary.params import CanaryParams
from probes.canary.probe import CanaryProbe
from probes.contract import WorkerEnv
from probes.reasons import Reason
from probes.result import Pd, Phase, Stream
from probes.worker import Channel, Context, Report

PATIENT = {"connect_timeout": 10.0, "head_timeout": 60.0, "first_token_timeout": 60.0, "stall_timeout": 30.0, "total_timeout": 90.0}
TOKENS = 300
RUN_SECONDS = 600.0


class InProcess(Context):
    """A worker's context without its supervisor: phases are not told to anybody."""

    def phase(self, phase: Phase) -> None:
        pass


def ask(rig: Rig, *, pages: tuple[str, ...] = (), provenance: bool = False, settle: float = 15.0, **fields: Any) -> Report:
    """One canary, by default to the direct pair, with the engines' pages read around it and compared with what decode says by itself."""
    known = [{"url": f"{rig.prefill.url}/metrics", "role": "prefill", "pod": "prefill-0", "node": "node-prefill"},
             {"url": f"{rig.decode.url}/metrics", "role": "decode", "pod": "decode-0", "node": "node-decode"},
             *({"url": url, "role": "router", "pod": "router-0"} for url in pages)]
    if fields.get("route", "pair") == "pair":
        fields.setdefault("prefill", rig.prefill.url)
    spec = {"url": rig.decode.url, "stack": "vllm", "route": "pair", "model": MODEL, "api": "completions", "prompt_tokens": TOKENS,
            "max_tokens": 12, "context_length": 2048, "cache_salt": True, "batch_invariant": "reference" in fields, **PATIENT,
            "pd": {"pages": known, "settle": settle, "page_timeout": 20.0, "provenance": provenance}, **fields}
    env = WorkerEnv(run_id="pd-1", probe="canary", target="rig", node="here", deadline=RUN_SECONDS, spec=spec)
    ours, _ = socket.socketpair()
    with ours:
        return CanaryProbe().run(InProcess(env, Channel(ours), Path(os.devnull), time.monotonic() + RUN_SECONDS))


def params(rig: Rig, **fields: Any) -> CanaryParams:
    """Parameters of a direct pair, without pages."""
    return CanaryParams.model_validate({"url": rig.decode.url, "stack": "vllm", "route": "pair", "prefill": rig.prefill.url, "model": MODEL,
                                        "api": "completions", "prompt_tokens": TOKENS, "max_tokens": 12, "context_length": 2048,
                                        "cache_salt": True, **PATIENT, **fields})


def stream_of(report: Report) -> Stream:
    assert report.stream is not None, report.message
    return report.stream


def proof_of(report: Report) -> Pd:
    assert report.pd is not None, report.message
    return report.pd


def good(report: Report) -> bool:
    """Whether the whole and right answer came. A busy machine may leave its times unclear, which is another matter."""
    return report.reason in (Reason.OK, Reason.DISTURBED)


def meter(engine: Engine, name: str, **labels: str) -> float:
    """One series of an engine's page."""
    for line in get(f"{engine.url}/metrics", 60.0).splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{engine.name} has no {name} {labels}")


def eventually(holds: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait until it holds; the seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, what
        time.sleep(0.25)
    return time.monotonic() - began


def idle(*engines: Engine) -> bool:
    """Whether these engines hold no request and no KV block."""
    return all(meter(engine, name) == 0 for engine in engines
               for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"))


def moved_by(tokens: int) -> int:
    """KV bytes of a prompt, by the shape of the model: whole blocks."""
    return math.ceil(tokens / BLOCK) * BLOCK * KV_BYTES_PER_TOKEN


def of_two(ask_once: Callable[[], Report], seen: Callable[[Report], bool]) -> Report:
    """A fault must be seen within two canaries: the first that saw it, else the second."""
    first = ask_once()
    return first if seen(first) else ask_once()
