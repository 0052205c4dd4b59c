"""Which probes exist and where they live. Nothing is imported before a probe is asked for: an engine may be missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from probes.worker import Probe

PROBES: dict[str, str] = {
    "node": "probes.node:NodeProbe",
    "mooncake": "probes.kv.mooncake:MooncakeProbe",
    "nixl": "probes.kv.nixl:NixlProbe",
    "nccl": "probes.nccl.probe:NcclProbe",
    "uccl-ep": "probes.uccl_ep.probe:UcclEpProbe",
    "canary": "probes.canary.probe:CanaryProbe",
}


def load(name: str) -> Probe:
    """An instance of the named probe. Raises KeyError for a name that does not exist."""
    module, _, attribute = PROBES[name].partition(":")
    return cast("Probe", getattr(importlib.import_module(module), attribute)())
