"""How many KV bytes a request moves, learned from the engine's own counters: a slope and a constant. The formula only cross-checks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from statistics import median

from probes.canary.pd.params import KvShape, Learned

APART = 2.0
"""The longest prompt must be so many times the shortest for a slope to mean anything."""
MOST_LENGTHS = 16


def padded(tokens: int, block_tokens: int | None) -> int:
    """Tokens rounded up to whole blocks, which is what engines move."""
    return tokens if not block_tokens else math.ceil(tokens / block_tokens) * block_tokens


def learn(samples: Iterable[tuple[int, int]], block_tokens: int | None = None) -> Learned | None:
    """Slope and constant from `(prompt tokens, bytes)` of requests that were alone. None below two lengths that are `APART`.

    The median of each length, then the median of the slopes between lengths (Theil-Sen): one request that shared its window with another
    moves neither.
    """
    by_length: dict[int, list[int]] = {}
    for tokens, moved in samples:
        if tokens > 0 and moved > 0:
            by_length.setdefault(padded(tokens, block_tokens), []).append(moved)
    points = sorted((tokens, median(moved)) for tokens, moved in by_length.items())
    if len(points) > MOST_LENGTHS:
        points = points[:: math.ceil(len(points) / MOST_LENGTHS)] + points[-1:]
    if len(points) < 2 or points[-1][0] < APART * points[0][0]:
        return None
    slopes = [(there[1] - here[1]) / (there[0] - here[0]) for here, there in itertools.combinations(points, 2) if there[0] > here[0]]
    slope = median(slopes)
    if slope <= 0:
        return None
    return Learned(slope=slope, constant=median(moved - slope * tokens for tokens, moved in points), block_tokens=block_tokens)


def predict(learned: Learned, tokens: int) -> int:
    """Bytes that a prompt of this length moves."""
    return max(0, round(learned.constant + learned.slope * padded(tokens, learned.block_tokens)))


def formula(shape: KvShape, tokens: int, block_tokens: int | None = None) -> int:
    """Bytes by the shape of the model with full attention on every layer: `blocks * layers * 2 * kv_heads * head_dim * dtype`, and with
    a latent cache `blocks * layers * head_dim * dtype`."""
    per_token = shape.layers * shape.head_dim * shape.dtype_bytes * (1 if shape.latent else 2 * shape.kv_heads)
    return round(padded(tokens, block_tokens) * per_token)
