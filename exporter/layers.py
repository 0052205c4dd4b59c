"""Which probe stands on which: what fails in a lower layer explains what fails above it."""

from __future__ import annotations

LAYERS: dict[str, int] = {"node": 0, "nccl": 1, "mooncake": 2, "nixl": 2, "uccl-ep": 3, "canary": 4}
"""Layer of each probe, the lowest first: the node itself, NCCL, the KV engines, UCCL-EP, the serving path."""
