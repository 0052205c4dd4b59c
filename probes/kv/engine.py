"""What the measuring core needs of a transfer engine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from probes.kv.memory import Region
from probes.kv.params import KvParams, Operation
from probes.kv.timing import Budget, Samples
from probes.result import Evidence
from probes.units import show_size


class TransferFailedError(Exception):
    """The engine said that an operation failed, or did not end it in time. The text carries the engine's own words."""


@dataclass(frozen=True)
class Step:
    """One size of one operation."""

    operation: Operation
    size: int
    blocks: int
    threads: int

    @property
    def writes(self) -> bool:
        """Whether the bytes go from rank 0 to rank 1."""
        return self.operation.endswith("write")

    @property
    def bytes_each(self) -> int:
        """Payload of one operation."""
        return self.size * self.blocks

    @property
    def name(self) -> str:
        """For messages: `batch_write of 8 x 64KiB`."""
        return f"{self.operation} of {f'{self.blocks} x ' if self.blocks > 1 else ''}{show_size(self.size)}"

    def pairs(self, thread: int) -> list[tuple[int, int]]:
        """(source offset, destination offset) of each block of one operation. The order is reversed on the way, so that neighbouring
        blocks stay separate transfers, as scattered KV blocks are, and a block in the wrong place is seen."""
        first = thread * self.blocks
        return [((first + block) * self.size, (first + self.blocks - 1 - block) * self.size) for block in range(self.blocks)]


def plan(params: KvParams) -> list[Step]:
    """All steps of a run, in order."""
    return [Step(operation, size, params.blocks(operation), params.threads) for operation in params.operations for size in params.sizes]


class Engine(Protocol):
    """One engine on one rank. Calls raise TransferFailedError or ProbeFailure; none waits longer than the engine's own time limit."""

    def open(self, region: Region, address: str) -> Any:
        """Start the engine and register the region. Returns what the peer must know, as JSON."""
        ...

    def connect(self, peer: Any) -> None:
        """Take the peer's `open` value and connect."""
        ...

    def lanes(self, step: Step) -> Sequence[Any]:
        """Prepare a step on the initiator: one lane, whatever the engine needs to repeat an operation, per thread."""
        ...

    def once(self, lanes: Sequence[Any]) -> None:
        """One operation on every lane."""
        ...

    def measure(self, lanes: Sequence[Any], budget: Budget) -> Samples:
        """Operations on all lanes at once until the budget (of each lane) is used up."""
        ...

    def confirm(self) -> None:
        """Initiator: return when the target has all bytes of all writes so far."""
        ...

    def serving(self) -> contextlib.AbstractContextManager[object]:
        """Target: what it must do while the initiator measures."""
        ...

    def release(self, lanes: Sequence[Any]) -> None:
        """Give back what `lanes` prepared."""
        ...

    def evidence(self, log: Path) -> Evidence:
        """What the engine and its log say about the transport. `log` holds what the engine has printed so far."""
        ...
