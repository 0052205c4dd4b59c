"""A lane of the driver: one rank on one GPU that dispatches and combines through the DeepEP-compatible Buffer API.

Timing is upstream's (`bench` in uccl ep/bench/utils.py): the L2 cache flushed once, then an event before and after each operation. The
result of a first and of a last run, each with data of its own, is checked element by element on every rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from probes.lanes.fleet import lane_job, lane_link
from probes.lanes.link import Link, LinkClosed
from probes.reasons import Reason
from probes.uccl_ep import routing
from probes.uccl_ep.engine import EngineError, load_buffer, version
from probes.uccl_ep.job import MAX_TIMED, Job, Record

FLUSH_BYTES = 256 << 20
NVL_BYTES = 2_000_000_000
SMS = 24
BF16_BYTES = 2


class Lane:
    """One rank from import to the last record."""

    def __init__(self, job: Job, link: Link) -> None:
        self._job, self._link = job, link
        self._torch: Any = None
        self._buffer: Any = None

    def run(self) -> None:
        """Set up, measure, tell, close."""
        try:
            kernel = self._open()
            self._say("first run, checking values")
            wrong = kernel.check(self._job.seed)
            self._say("waiting to measure")
            self._link.send(ready=True)
            self._ask("measure")
            self._measure(kernel, wrong)
            self._link.send(done=True)
            self._ask("close")
            self._say("closing")
            self._buffer.destroy()
        except LinkClosed:
            return
        except EngineError as error:
            self._fail(error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - torch and uccl raise whatever they do; all of it must become a result
            name = type(error).__name__
            reason = Reason.GPU_BUSY if name == "OutOfMemoryError" else Reason.ENGINE_ERROR
            self._fail(reason, f"{name}: {error}"[:500])

    def _open(self) -> _Kernel:
        job = self._job
        # uccl reads both when a Buffer is made.
        os.environ |= {"LOCAL_RANK": str(job.device), "LOCAL_WORLD_SIZE": str(job.local_ranks), "NODE_RANK": str(job.node),
                       "RANK": str(job.rank), "WORLD_SIZE": str(job.ranks)}
        self._say("importing torch and uccl")
        buffer_class = load_buffer(job.bench_folder)
        import torch
        import torch.distributed as dist

        self._torch = torch
        torch.cuda.set_device(job.device)
        self._say("meeting the other ranks")
        host, port = job.store
        # gloo for the control channel: that NCCL works, and over what, is another probe's question.
        dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=job.rank, world_size=job.ranks,
                                timeout=timedelta(seconds=job.seconds))
        group = dist.new_group(list(range(job.ranks)))
        self._say("making the buffer and connecting")
        if job.kernel == "normal":
            buffer_class.set_num_sms(SMS)
            self._buffer = buffer_class(group, NVL_BYTES, 0, low_latency_mode=False, num_qps_per_rank=1, explicitly_destroy=True,
                                        is_intranode=True)
        else:
            size = buffer_class.get_low_latency_rdma_size_hint(job.tokens, job.hidden, job.ranks, job.experts)
            self._buffer = buffer_class(group, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=job.experts // job.ranks,
                                        allow_nvlink_for_low_latency_mode=not job.disable_nvlink, explicitly_destroy=True)
        versions = {"uccl": version(), "torch": torch.__version__, "cuda": str(torch.version.cuda)}
        self._link.send(card={"name": torch.cuda.get_device_name(job.device), "versions": versions})
        kernel = _Normal if job.kernel == "normal" else _LowLatency
        return kernel(torch, self._buffer, job)

    def _measure(self, kernel: _Kernel, wrong: tuple[int, int]) -> None:
        torch, job = self._torch, self._job
        torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda").zero_()
        timed = min(job.iterations, MAX_TIMED)
        times = kernel.time(job.warmup, timed, self._say)
        self._say("last run, checking values")
        again = kernel.check(job.seed + 1)
        for index, operation in enumerate(("dispatch", "combine")):
            sent, received = kernel.moved(operation)
            launches = job.warmup + timed + kernel.extra_launches[index]
            record = Record(operation=operation, bytes=kernel.payload(operation), times=times[index], wrong=wrong[index] + again[index],
                            sent=sent * launches, received=received * launches)
            self._link.send(record=record.model_dump(mode="json"))

    def _ask(self, wanted: str) -> None:
        while True:
            message = self._link.receive(3600.0)
            if message is not None:
                if message.get("do") != wanted:
                    raise LinkClosed(f"told to {message.get('do')}")
                return

    def _say(self, what: str) -> None:
        self._link.send(state=what)

    def _fail(self, reason: Reason, message: str) -> None:
        with suppress(LinkClosed):
            self._link.send(failed={"reason": reason.value, "message": message})
            self._link.receive(2.0)


class _Kernel:
    """One kind of kernel: how to run, check and count it. `extra_launches` of dispatch and combine are those of one check."""

    extra_launches = (1, 1)

    def __init__(self, torch: Any, buffer: Any, job: Job) -> None:
        self.torch, self.buffer, self.job = torch, buffer, job
        self.local_experts = job.experts // job.ranks
        self.choices = [routing.choices(torch, rank, job.tokens, job.topk, job.experts, job.seed, "cuda") for rank in range(job.ranks)]
        self._below = routing.modulus(max(job.topk, job.ranks if job.kernel == "normal" else 1))
        self.peers_away = [rank for rank in range(job.ranks) if self._away(rank)]

    def check(self, seed: int) -> tuple[int, int]:
        """Wrong elements after dispatch and after combine, with the data of `seed`."""
        raise NotImplementedError

    def time(self, warmup: int, timed: int, say: Callable[[str], None]) -> tuple[list[float], list[float]]:
        """Seconds of every dispatch and of every combine."""
        raise NotImplementedError

    def payload(self, operation: str) -> int:
        """Bytes of one operation as upstream counts them."""
        raise NotImplementedError

    def moved(self, operation: str) -> tuple[int, int]:
        """Bytes of one operation that went to and came from elsewhere."""
        raise NotImplementedError

    def _away(self, rank: int) -> bool:
        """Whether a rank is on another node, or is another one where all are on one node."""
        job = self.job
        if job.ranks == job.local_ranks:
            return rank != job.rank
        return rank // job.local_ranks != job.node

    def _values(self, rank: int, seed: int) -> Any:
        return routing.token_values(self.torch, rank, self.job.tokens, seed, self._below, "cuda")

    def _own_tokens(self, seed: int) -> Any:
        values = self._values(self.job.rank, seed).to(self.torch.bfloat16)
        return values.unsqueeze(1).expand(self.job.tokens, self.job.hidden).contiguous()

    def _events(self, count: int) -> list[Any]:
        return [self.torch.cuda.Event(enable_timing=True) for _ in range(count)]


class _Normal(_Kernel):
    """High-throughput kernels inside one node."""

    # check() dispatches with a layout of its own, and again with the cached one that is timed.
    extra_launches = (2, 1)

    def __init__(self, torch: Any, buffer: Any, job: Job) -> None:
        super().__init__(torch, buffer, job)
        self.tables = [routing.in_rank(torch, choice, job.ranks, job.experts) for choice in self.choices]
        self._dispatch_config = buffer.get_dispatch_config(job.ranks)
        self._combine_config = buffer.get_combine_config(job.ranks)
        self._handle: Any = None
        self._received: Any = None
        self._x: Any = None

    def check(self, seed: int) -> tuple[int, int]:
        torch, job = self.torch, self.job
        self._x = self._own_tokens(seed)
        per_rank, _, per_expert, table, _ = self.buffer.get_dispatch_layout(self.choices[job.rank], job.experts)
        received, _, _, _, self._handle, _ = self.buffer.dispatch(self._x, num_tokens_per_rank=per_rank, is_token_in_rank=table,
                                                                  num_tokens_per_expert=per_expert, config=self._dispatch_config)
        wanted = torch.cat([self._values(rank, seed)[self.tables[rank][:, job.rank]] for rank in range(job.ranks)])
        wrong = routing.differing(torch, received, wanted)
        again = self.buffer.dispatch(self._x, handle=self._handle, config=self._dispatch_config)[0]
        wrong += routing.differing(torch, again, wanted)
        self._received = again
        combined = self.buffer.combine(again, self._handle, config=self._combine_config)[0]
        copies = self.tables[job.rank].sum(dim=1).to(torch.float32)
        return wrong, routing.differing(torch, combined, self._values(job.rank, seed) * copies)

    def time(self, warmup: int, timed: int, say: Callable[[str], None]) -> tuple[list[float], list[float]]:
        dispatch = lambda: self.buffer.dispatch(self._x, handle=self._handle, config=self._dispatch_config)  # noqa: E731
        combine = lambda: self.buffer.combine(self._received, self._handle, config=self._combine_config)  # noqa: E731
        say("dispatch: measuring")
        first = self._loop(dispatch, warmup, timed)
        say("combine: measuring")
        return first, self._loop(combine, warmup, timed)

    def payload(self, operation: str) -> int:  # noqa: ARG002 - combine sends back what dispatch received
        return int(self._received.numel()) * BF16_BYTES

    def moved(self, operation: str) -> tuple[int, int]:
        row = self.job.hidden * BF16_BYTES
        out = sum(int(self.tables[self.job.rank][:, rank].sum().item()) for rank in self.peers_away) * row
        back = sum(int(self.tables[rank][:, self.job.rank].sum().item()) for rank in self.peers_away) * row
        return (out, back) if operation == "dispatch" else (back, out)

    def _loop(self, run: Callable[[], Any], warmup: int, timed: int) -> list[float]:
        starts, ends = self._events(timed), self._events(timed)
        for _ in range(warmup):
            run()
        for start, end in zip(starts, ends, strict=True):
            start.record()
            run()
            end.record()
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in zip(starts, ends, strict=True)]


class _LowLatency(_Kernel):
    """Low-latency kernels, between nodes or inside one. Weights of 1 keep the combined sums whole numbers."""

    def __init__(self, torch: Any, buffer: Any, job: Job) -> None:
        super().__init__(torch, buffer, job)
        self._weights = torch.ones((job.tokens, job.topk), dtype=torch.float32, device="cuda")
        self._x: Any = None

    def check(self, seed: int) -> tuple[int, int]:
        torch, job = self.torch, self.job
        self._x = self._own_tokens(seed)
        received, counts, handle = self._dispatch()
        plain = _from_fp8(torch, *received) if job.fp8 else received
        wrong = sum(self._wrong_of_expert(plain[expert], int(count), handle, expert, seed) for expert, count in enumerate(counts.tolist()))
        combined = self._combine(plain.clone(), handle)
        return wrong, routing.differing(torch, combined, self._values(job.rank, seed) * job.topk)

    def time(self, warmup: int, timed: int, say: Callable[[str], None]) -> tuple[list[float], list[float]]:
        say("dispatch and combine: measuring")
        marks = self._events(3 * timed)
        for iteration in range(warmup + timed):
            at = 3 * (iteration - warmup)
            if iteration >= warmup:
                marks[at].record()
            received, _, handle = self._dispatch()
            if iteration >= warmup:
                marks[at + 1].record()
            self._combine(received[0].to(self.torch.bfloat16) if self.job.fp8 else received, handle)
            if iteration >= warmup:
                marks[at + 2].record()
        self.torch.cuda.synchronize()
        steps = [[marks[3 * i + k].elapsed_time(marks[3 * i + k + 1]) * 1e-3 for i in range(timed)] for k in (0, 1)]
        return steps[0], steps[1]

    def payload(self, operation: str) -> int:
        return self.job.tokens * self.job.topk * self._row(operation)

    def moved(self, operation: str) -> tuple[int, int]:
        job = self.job
        owners = [choice // self.local_experts for choice in self.choices]
        out = sum(int((owners[job.rank] == rank).sum().item()) for rank in self.peers_away)
        back = sum(int((owners[rank] == job.rank).sum().item()) for rank in self.peers_away)
        row = self._row(operation)
        return (out * row, back * row) if operation == "dispatch" else (back * row, out * row)

    def _row(self, operation: str) -> int:
        """Bytes of one token for one expert: uccl ep/bench/test_low_latency.py."""
        hidden = self.job.hidden
        return hidden + hidden // 32 + 16 if operation == "dispatch" and self.job.fp8 else hidden * BF16_BYTES

    def _dispatch(self) -> tuple[Any, Any, Any]:
        job = self.job
        received, counts, handle, _, _ = self.buffer.low_latency_dispatch(self._x, self.choices[job.rank], job.tokens, job.experts,
                                                                          use_fp8=job.fp8, async_finish=False, return_recv_hook=False)
        return received, counts, handle

    def _combine(self, x: Any, handle: Any) -> Any:
        return self.buffer.low_latency_combine(x, self.choices[self.job.rank], self._weights, handle, async_finish=False,
                                               return_recv_hook=False)[0]

    def _wrong_of_expert(self, rows: Any, count: int, handle: Any, expert: int, seed: int) -> int:
        torch, job = self.torch, self.job
        number = job.rank * self.local_experts + expert
        sources, layout = handle[0][expert], handle[1][expert]
        wrong = 0
        for rank in range(job.ranks):
            sent = (self.choices[rank] == number).any(dim=1).nonzero().flatten()
            begin, arrived = int(layout[rank].item()) >> 32, int(layout[rank].item()) & 0xFFFFFFFF
            tokens = sources[begin : begin + arrived].to(torch.int64) % job.tokens
            if not torch.equal(tokens.sort().values, sent):
                wrong += job.hidden * max(int(sent.numel()), arrived)
                continue
            wrong += routing.differing(torch, rows[begin : begin + arrived], self._values(rank, seed)[tokens])
        total = sum(int((choice == number).sum().item()) for choice in self.choices)
        return wrong + job.hidden * abs(count - total)


def _from_fp8(torch: Any, values: Any, scales: Any) -> Any:
    """Per-token FP8 back to bfloat16: 128 columns share a scale."""
    wide = values.to(torch.float32).view(*values.shape[:-1], -1, 128) * scales.contiguous().unsqueeze(-1)
    return wide.view(values.shape).to(torch.bfloat16)


def main() -> None:
    """Entry of the process."""
    link = lane_link()
    Lane(Job.model_validate_json(lane_job()), link).run()
    sys.stdout.flush()
    # The teardown of uccl's proxy threads can hang; everything that matters has been told.
    os._exit(0)
