"""Which probes exist and where they live. Nothing is imported before a probe is asked for: an engine may be missing.

A probe of one's own is named by its place, `package.module:Class`, and follows `probes.worker.Probe`.
"""

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


def exists(name: str) -> bool:
    """Whether `name` is one of the list or names a place."""
    return name in PROBES or ":" in name


def load(name: str) -> Probe:
    """An instance of the named probe. Raises KeyError for a name that does not exist, ImportError or AttributeError for a wrong place."""
    module, _, attribute = (name if ":" in name else PROBES[name]).partition(":")
    return cast("Probe", getattr(importlib.import_module(module), attribute)())
