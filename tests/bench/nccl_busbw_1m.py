"""Does the NCCL worker see the same all_reduce bandwidth at 1 MiB as nccl-tests on the same GPUs in the same minute?"""

from __future__ import annotations

from typing import Any

from bench.nccl_peer import busbw_row


def run() -> list[dict[str, Any]]:
    """One row."""
    return [busbw_row("nccl_busbw_1m", 1 << 20, "1 MiB", 0.10)]
