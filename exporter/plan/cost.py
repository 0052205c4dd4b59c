"""What one run of a probe costs, declared before it runs.

`wall` is the time from bind to release of the worker's place: start, rendezvous, the engine's own start, the window, the end. `window`
bounds the time in which payload moves. Both are upper bounds made from the probe's parameters; figures of finished runs replace them in
the planner's books (`exporter.plan.budget`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import BaseModel

from exporter.config.canary import Canary
from exporter.runs import Run
from probes.canary.params import DEFAULT_PROMPT_TOKENS, CanaryParams
from probes.kv.params import KvParams
from probes.nccl import meetings
from probes.nccl.params import NcclParams
from probes.result import Phase
from probes.uccl_ep.params import UcclEpParams

START_SECONDS = {"node": 4.0, "mooncake": 8.0, "nixl": 8.0, "nccl": 25.0, "uccl-ep": 40.0}
"""From bind to the first byte of payload: interpreter, rendezvous, engine. Bounds of our own runs, rounded up."""
SLOW_LINK = 12.5e9
"""Bytes per second of the slowest place a collective is measured on by default: one 100 Gbit/s device, one way."""
DAY = 86400.0
ALL_GPUS = 8
"""GPUs of the instance types that hold EFA devices for whole-node probes."""


@dataclass(frozen=True)
class Cost:
    """The cost of one run on one node. Seconds and bytes; `gpus` and `efa` are devices held from bind to release."""

    wall: float
    window: float
    bytes: int
    gpus: int = 0
    efa: int = 1

    @property
    def gpu_seconds(self) -> float:
        """Device-seconds of GPUs, from bind to release."""
        return self.gpus * self.wall


def declared(probe: str, params: BaseModel) -> Cost:
    """The cost of one run of `probe` with `params`. Raises KeyError for a probe that has no declared cost."""
    start = START_SECONDS[probe]
    if isinstance(params, KvParams):
        out, back = params.most_bytes()
        window = params.seconds * len(params.sizes) * len(params.operations)
        return Cost(start + window, window, max(out, back), gpus=int(params.memory == "gpu"))
    if isinstance(params, NcclParams):
        gpus = ALL_GPUS if params.gpus == "all" else params.gpus
        rounds = params.iterations + params.warmup + 2
        sent = 2 * sum(params.sizes) * rounds * len(params.operations) * gpus
        # An all-reduce sends at most twice its buffer; checks read every value once more on the GPU.
        turns = meetings.turns(gpus=gpus, workers=2, rails=params.rails, pairs=params.pairs)
        window = sent / (gpus * SLOW_LINK) + len(turns) * sum(params.sizes) * rounds / SLOW_LINK
        sent += sum(params.sizes) * rounds * sum(len(turn) for turn in turns)
        return Cost(start + 1.5 * window, window, sent, gpus=gpus, efa=gpus)
    if isinstance(params, UcclEpParams):
        gpus = ALL_GPUS if params.gpus == "all" else params.gpus
        rounds = params.iterations + params.warmup
        sent = 2 * (params.tokens or 4096) * params.topk * params.hidden * 2 * rounds * gpus
        window = sent / (gpus * SLOW_LINK)
        return Cost(start + 2 * window, window, sent, gpus=gpus, efa=gpus)
    return Cost(start, 0.0, 0, gpus=0, efa=1)


PREFILL_TOKENS_PER_GPU_SECOND = 2000.0
DECODE_TOKENS_PER_GPU_SECOND = 100.0
"""Low ends of what one data-centre GPU does for a model that needs prefill/decode disaggregation, so that the cost is an upper bound."""


def canary_gpu_seconds(params: CanaryParams) -> float:
    """GPU device-seconds that one canary request takes from its endpoint: its own tokens at a low throughput of one GPU.

    A canary shares its GPUs with production requests in the same batch, so it holds no device; what it takes is its share of the work.
    A request before it with the same prefix, and one to a reference, count as well.
    """
    prompt = params.prompt_tokens or DEFAULT_PROMPT_TOKENS[params.prompt]
    return params.requests * (prompt / PREFILL_TOKENS_PER_GPU_SECOND + params.max_tokens / DECODE_TOKENS_PER_GPU_SECOND)


def canary_gpu_seconds_a_day(canary: Canary) -> float:
    """GPU device-seconds of all canaries in a day: every route of every prompt, and the visits of pairs whose pods the configuration names.
    How many pods a cluster will have, nobody knows beforehand: of those each costs one canary in `pod_interval`."""
    total = 0.0
    for target in canary.targets:
        if not target.enabled:
            continue
        for kind, prompt in target.prompts.items():
            if prompt.enabled:
                requests = [CanaryParams.model_validate(spec) for spec in target.routes(kind).values()]
                total += sum(map(canary_gpu_seconds, requests)) * DAY / (prompt.schedule.interval or 3600.0)
        if target.pd is not None and target.pd.pairs:
            roles = [pod.role for pod in target.pd.source.static]
            visits = max(roles.count("prefill"), roles.count("decode"))
            total += visits * canary_gpu_seconds(target.request(target.pd.prompt)) * DAY / target.pd.pod_interval
    return total


def actual_cost(run: Run, cost: Cost) -> Cost:
    """What a run cost one node, from its documents; what they do not say is taken from the declared `cost`.

    The time from bind to release is that of the phases, image pull left out: devices are held then, too, but a pull is paid once a node.
    """
    phases = {phase: seconds for phase, seconds in run.phases.items() if phase is not Phase.PULL}
    wall = sum(phases.values()) if phases else min(max(run.finished - run.started, 0.0), cost.wall)
    windows = [result.measure.end - result.measure.start for result in run.results if result.measure is not None]
    sent = [max(result.evidence.payload_bytes) for result in run.results
            if result.evidence is not None and result.evidence.payload_bytes is not None]
    return replace(cost, wall=wall, window=max(windows, default=0.0), bytes=max(sent, default=0))
