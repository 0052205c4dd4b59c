"""The test data of dispatch and combine: every rank can compute what every other rank sends, so every received value is checked.

A token's value is one small whole number, the same in all its columns. Whole numbers up to 256 are exact in bfloat16, so values are small
enough that the sum over all copies of a token stays below that.
"""

from __future__ import annotations

from typing import Any

LARGEST_EXACT = 256


def modulus(copies: int) -> int:
    """Values below this stay exact when `copies` of them are added. Raises ValueError where not even 0 and 1 would."""
    if copies >= LARGEST_EXACT:
        raise ValueError(f"the sum of {copies} copies of a token is not exact in bfloat16")
    return LARGEST_EXACT // copies


def token_values(torch: Any, rank: int, tokens: int, seed: int, below: int, device: str) -> Any:
    """`[tokens]` in float: the value of each token of `rank`, whole numbers from 0 to `below` - 1."""
    index = torch.arange(tokens, device=device, dtype=torch.int64)
    return ((index * 7 + rank * 13 + seed * 5) % below).to(torch.float32)


def choices(torch: Any, rank: int, tokens: int, topk: int, experts: int, seed: int, device: str) -> Any:
    """`[tokens, topk]` experts of each token of `rank`, distinct within a token, the same wherever it is computed."""
    generator = torch.Generator().manual_seed(seed * 100003 + rank)
    scores = torch.rand((tokens, experts), generator=generator)
    return scores.topk(topk, dim=1).indices.to(device)


def in_rank(torch: Any, topk_idx: Any, ranks: int, experts: int) -> Any:
    """`[tokens, ranks]`: whether a token goes to a rank."""
    owner = topk_idx // (experts // ranks)
    table = torch.zeros((topk_idx.size(0), ranks), dtype=torch.bool, device=topk_idx.device)
    return table.scatter_(1, owner, True)


def differing(torch: Any, seen: Any, wanted: Any) -> int:
    """Elements of `seen` [n, hidden] that are not `wanted` [n]. Rows too many or too few count in full."""
    common = min(seen.size(0), wanted.size(0))
    different = int((seen[:common].to(torch.float32) != wanted[:common].unsqueeze(1)).sum().item())
    return different + abs(int(seen.size(0)) - int(wanted.size(0))) * int(seen.size(1))
