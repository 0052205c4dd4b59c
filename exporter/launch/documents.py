"""Result documents and witness answers of simulated runs: what the real workers and witnesses would have left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from exporter.inventory.model import Node
from exporter.launch.fabric import Effect
from exporter.runs import RunSpec
from probes.efa.window import CounterWindow, DeviceDelta, WitnessAnswer
from probes.kv.params import KvParams, MooncakeParams, NixlParams
from probes.nccl.params import NcclParams
from probes.reasons import LOSSES, REASONS, Outcome, Reason, outcome_of
from probes.result import SCHEMA, Evidence, Finding, Marker, Measurement, Phase, Result, Stream, Window
from probes.uccl_ep.params import UcclEpParams

HALF_RATE_BYTES = 1 << 20
"""Block size at which half of the full speed is reached, about what published curves over block sizes show."""
LATENCY = 30e-6
"""Seconds of a transfer beyond its bytes."""
SHORTEST_WINDOW = 0.05
STACKS = {"mooncake": "mooncake", "nixl": "nixl", "nccl": "nccl", "uccl-ep": "uccl-ep"}
VERSIONS = {"engine": "simulated", "libfabric": "simulated"}


def results(spec: RunSpec, nodes: Sequence[Node], effect: Effect, started: float, wall: float, window: float) -> tuple[Result, ...]:
    """One document a rank. `wall` and `window` are seconds; the window lies at the end of the run."""
    return tuple(_result(spec, rank, node, effect, started, wall, window) for rank, node in enumerate(nodes))


def answers(nodes: Sequence[Node], effect: Effect, found: Sequence[Result]) -> dict[str, WitnessAnswer]:
    """What the witness of each node counted over the run's window, with quiet windows before and after."""
    out: dict[str, WitnessAnswer] = {}
    for rank, (node, result) in enumerate(zip(nodes, found, strict=True)):
        evidence, span = result.evidence, result.measure
        if evidence is None or evidence.payload_bytes is None or span is None:
            continue
        sent, received = (0, 0) if effect.tcp else evidence.payload_bytes
        shares = _shares(node, effect.weak[rank])
        devices = {name: DeviceDelta(_counters(int(sent * share), int(received * share))) for name, share in shares.items()}
        quiet = {name: DeviceDelta(_counters(0, 0)) for name in shares}
        length = span.end - span.start
        out[node.name] = WitnessAnswer(node.name, CounterWindow(span.start, span.end, devices),
                                       CounterWindow(result.started - length, result.started, quiet),
                                       CounterWindow(result.finished, result.finished + length, quiet))
    return out


def window_of(spec: RunSpec, effect: Effect) -> float:
    """Seconds in which payload moves, as the probe's own limits and the fabric's speed make it."""
    if spec.probe in ("mooncake", "nixl"):
        params = (MooncakeParams if spec.probe == "mooncake" else NixlParams).model_validate(spec.spec)
        total = 0.0
        for operation in params.operations:
            for size in params.sizes:
                one = size * params.blocks(operation)
                each = LATENCY + one / rate_at(one, effect.rate)
                count = max(min(params.iterations, -(-params.volume // one), int(params.seconds / each)), 3)
                total += each * (count + params.warmup)
        return max(total, SHORTEST_WINDOW)
    if spec.probe == "nccl":
        nccl = NcclParams.model_validate(spec.spec)
        return max(2 * sum(nccl.sizes) * (nccl.iterations + nccl.warmup) * len(nccl.operations) / (effect.rate / 8), SHORTEST_WINDOW)
    return 0.5 if spec.probe in ("uccl-ep", "canary") else 0.0


def _result(spec: RunSpec, rank: int, node: Node, effect: Effect, started: float, wall: float, window: float) -> Result:
    reason = effect.reasons[rank]
    base: dict[str, Any] = {"run_id": spec.run_id, "probe": spec.probe, "target": spec.target, "rank": rank, "world_size": spec.world_size,
                            "node": node.name, "started": started, "finished": started + wall, "outcome": outcome_of(reason),
                            "reason": reason, "versions": dict(VERSIONS)}
    if reason is not Reason.OK:
        base["message"] = f"simulated: {REASONS[reason].meaning}"
        if spec.probe == "node":
            base["findings"] = _preflight(node, effect.missing[rank])
        if outcome_of(reason) is Outcome.UNKNOWN or reason in LOSSES:
            return Result.model_construct(**_complete(base))
        base["phases"] = {Phase.LAUNCH: 1.0, Phase.RENDEZVOUS: 1.0, Phase.SETUP: max(wall - 2.0, 0.0)}
        return Result.model_construct(**_complete(base))
    end = started + wall - 0.5
    base["phases"] = {Phase.LAUNCH: 1.0, Phase.RENDEZVOUS: 1.0, Phase.SETUP: max(wall - window - 2.5, 0.0), Phase.MEASURE: window,
                      Phase.FINISH: 0.5}
    if spec.probe == "node":
        base["findings"] = _preflight(node, 0)
        return Result.model_construct(**_complete(base))
    if spec.probe == "canary":
        base["stream"] = Stream(status="ok", http_status=200, connect=0.001, ttft=0.08, tpot=0.012, max_gap=0.03, e2e=0.08 + 31 * 0.012,
                                output_tokens=32, token_count_source="usage", finish_reason="length", token_events=32)  # noqa: S106
        return Result.model_construct(**_complete(base))
    rows, sent, received = _rows(spec, rank, effect, node)
    allocated = node.efa.allocatable if node.efa is not None else 1
    shares = _shares(node, effect.weak[rank])
    carried = [] if effect.tcp else [int((sent + received) * share) for share in shares.values()]
    base |= {"measure": Window(start=end - window, end=end), "measurements": rows, "shape": {"nics_per_rank": allocated, "batch": 8},
             "evidence": Evidence.model_construct(
                 stack=STACKS[spec.probe], provider="tcp" if effect.tcp else "efa", nics_allocated=allocated,
                 nics_seen=allocated - effect.missing[rank], rdma=not effect.tcp, payload_bytes=(sent, received),
                 tcp_bytes=(sent, received) if effect.tcp else (4096, 4096), devices=list(shares) if carried else [], device_bytes=carried,
                 gpus=[], markers=_markers(spec.probe, effect), fabric=None)}
    return Result.model_construct(**_complete(base))


def _rows(spec: RunSpec, rank: int, effect: Effect, node: Node) -> tuple[list[Measurement], int, int]:
    """The measurements of one rank, and the payload it sent and received."""
    if spec.probe in ("mooncake", "nixl"):
        model = MooncakeParams if spec.probe == "mooncake" else NixlParams
        return _kv_rows(model.model_validate(spec.spec), rank, effect)
    if spec.probe == "nccl":
        params = NcclParams.model_validate(spec.spec)
        scale = (1 if params.gpus == "all" else 1 / (node.gpu.allocatable if node.gpu is not None else 8))
        rows = [_row(operation, "gpu", "busbw", params.sizes, effect, scale, 0) for operation in params.operations]
        moved = 2 * sum(params.sizes) * params.iterations * len(params.operations)
        return (rows if rank == 0 else []), moved, moved
    ep = UcclEpParams.model_validate(spec.spec)
    size = (ep.tokens or 128) * ep.topk * ep.hidden * 2
    moved = size * ep.iterations * 2
    return [_row(operation, "gpu", "goodput", [size], effect, 1.0, 0) for operation in ("dispatch", "combine")], moved, moved


def _kv_rows(params: KvParams, rank: int, effect: Effect) -> tuple[list[Measurement], int, int]:
    out, back = params.most_bytes()
    rows = [_row(operation, params.memory, "goodput", params.sizes, effect, 1.0, params.batch if operation.startswith("batch") else 1)
            for operation in params.operations]
    return (rows, out, back) if rank == 0 else ([], back, out)


def _row(operation: str, memory: Literal["dram", "gpu"], kind: Literal["busbw", "goodput"], sizes: Sequence[int], effect: Effect,
         scale: float, batch: int) -> Measurement:
    rates = [rate_at(size * max(batch, 1), effect.rate * scale) for size in sizes]
    times = [LATENCY + size / rate for size, rate in zip(sizes, rates, strict=True)]
    tail = 20.0 if effect.lossy else 1.3
    return Measurement.model_construct(
        operation=operation, memory=memory, kind=kind, bytes=list(sizes), bandwidth=[_digits(rate) for rate in rates], algbw=None,
        latency={"p50": [_digits(time) for time in times], "p99": [_digits(time * tail) for time in times],
                 "max": [_digits(time * tail * 1.5) for time in times]},
        iterations=[200] * len(sizes), wrong=[0] * len(sizes), batch=max(batch, 1), cold=0.01, variant=None)


def rate_at(size: int, full: float) -> float:
    """Bytes per second at a size, when `full` is reached with large ones."""
    return full * size / (size + HALF_RATE_BYTES)


def _shares(node: Node, weak: Mapping[int, float]) -> dict[str, float]:
    """Share of the payload on each device of a node."""
    count = max(node.efa.allocatable if node.efa is not None else 1, 1)
    parts = [weak.get(index, 1.0) for index in range(count)]
    whole = sum(parts) or 1.0
    return {f"rdmap{index}s0": part / whole for index, part in enumerate(parts)}


def _counters(sent: int, received: int) -> dict[str, int]:
    """Counters as the driver names them: pushes as RDMA writes out of here, and RDMA writes of the peer into here."""
    return {"tx_bytes": sent, "rx_bytes": received, "send_bytes": 0, "recv_bytes": 0, "rdma_write_bytes": sent,
            "rdma_write_recv_bytes": received, "rdma_read_bytes": 0, "rdma_read_resp_bytes": 0}


def _markers(probe: str, effect: Effect) -> list[Marker]:
    says = "tcp" if effect.tcp else "efa"
    return [Marker(id=f"simulated_{says}", says=says, text=f"simulated: {probe} uses {says}")]


def _preflight(node: Node, missing: int) -> list[Finding]:
    count = node.efa.allocatable if node.efa is not None else 0
    return [Finding(check="devices", ok=missing == 0, expected=str(count), seen=str(count - missing),
                    remedy=None if missing == 0 else "look at dmesg; replace the instance")]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def _complete(fields: dict[str, Any]) -> dict[str, Any]:
    """Every field of the document: those not given with their defaults. Built without validation, since tens of thousands are made."""
    return {"schema_": SCHEMA, "role": None, "measure": None, "phases": {}, "message": "", "measurements": [], "stream": None,
            "findings": [], "evidence": None, "throttling": None, "versions": {}, "shape": {}, **fields}
