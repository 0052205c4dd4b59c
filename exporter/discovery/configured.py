"""The configuration witness: connector, backend and protocol from an engine's arguments and environment.

vLLM: `--kv-transfer-config` (JSON). NIXL's backend is `kv_connector_extra_config.backends`, by default UCX; environment variables are
ignored there (vllm #41814). SGLang: `--disaggregation-mode`, `--disaggregation-transfer-backend` (default mooncake), NIXL's backend by
SGLANG_DISAGGREGATION_NIXL_BACKEND (default UCX), Mooncake's protocol by MOONCAKE_PROTOCOL (default rdma). Ray: `kv_transfer_config` in
the RayService.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exporter.discovery.model import Configured, Role

STORES = ("lmcache", "store", "offloading", "sharedstorage", "hicache")
"""Connectors that keep KV beyond one request, where others can find it. vLLM writes the names without separators."""
KV_ROLES: dict[str, Role] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "mixed"}
DISAGGREGATION_MODES: dict[str, Role] = {"prefill": "prefill", "decode": "decode", "null": "mixed"}
WORDS_LIMIT = 2000
DEPTH_LIMIT = 20


def configured(command: Sequence[str], env: Mapping[str, str]) -> Configured:
    """What command and environment of one container say. Never an error: what cannot be read says nothing."""
    words = list(_words(command))[:WORDS_LIMIT]
    joined = " ".join(words[:40]).lower()
    if "sglang" in joined or any(word.startswith("--disaggregation-mode") for word in words):
        return _sglang(words, env)
    if "vllm" in joined or any(word.startswith("--kv-transfer-config") for word in words):
        return of_vllm(_json(_option(words, "--kv-transfer-config")))
    return Configured()


def of_vllm(config: Any) -> Configured:
    """What a `kv_transfer_config` of vLLM says."""
    if not isinstance(config, dict):
        return Configured(engine="vllm")
    parts = list(_connectors(config))
    names = [str(part.get("kv_connector") or "") for part in parts]
    plain = [name.lower().replace("connector", "") for name in names]
    moving = next((index for index, name in enumerate(plain) if name in ("nixl", "mooncake", "p2pnccl", "moriio")), None)
    store = any(word in name for name in plain for word in STORES)
    role = KV_ROLES.get(str(config.get("kv_role")))
    if moving is None:
        return Configured("vllm", role, next(filter(None, names), None), None, shared_store=store)
    extra = parts[moving].get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    backend: str | None = None
    default = False
    if plain[moving] == "nixl":
        backends = extra.get("backends")
        given = [str(one) for one in backends] if isinstance(backends, list) else []
        backend, default = (_best(given), False) if given else ("UCX", True)
    elif plain[moving] == "mooncake":
        protocol = extra.get("mooncake_protocol")
        backend, default = (str(protocol), False) if protocol else ("rdma", True)
    return Configured("vllm", role, plain[moving], backend, default, store)


def _sglang(words: Sequence[str], env: Mapping[str, str]) -> Configured:
    role = DISAGGREGATION_MODES.get(_option(words, "--disaggregation-mode") or "null")
    connector = (_option(words, "--disaggregation-transfer-backend") or "mooncake").lower()
    store = any(word.startswith(("--enable-hierarchical-cache", "--hicache-storage-backend")) for word in words)
    if connector == "nixl":
        given = env.get("SGLANG_DISAGGREGATION_NIXL_BACKEND")
        return Configured("sglang", role, connector, given or "UCX", given is None, store)
    if connector == "mooncake":
        given = env.get("MOONCAKE_PROTOCOL") or env.get("MC_PROTOCOL")
        return Configured("sglang", role, connector, given or "rdma", given is None, store)
    return Configured("sglang", role, connector, shared_store=store)


def _connectors(config: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """A connector, or those that a MultiConnector holds."""
    extra = config.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    if "multi" in str(config.get("kv_connector", "")).lower() and isinstance(inner, list) and depth < DEPTH_LIMIT:
        for one in inner:
            if isinstance(one, dict):
                yield from _connectors(one, depth + 1)
        return
    yield config


def _best(backends: Sequence[str]) -> str:
    """Of several backends the one that uses EFA, since NIXL takes any that can."""
    return next((one for one in backends if one.upper() == "LIBFABRIC"), backends[0])


def _words(command: Sequence[str]) -> Iterator[str]:
    """Every word, with those of shell lines taken apart."""
    for word in command:
        if " " in word.strip() and not word.lstrip().startswith(("{", "[", "-")):
            try:
                yield from shlex.split(word.replace("\\\n", " "), comments=False)
            except ValueError:
                yield from word.split()
        else:
            yield word


def _option(words: Sequence[str], name: str) -> str | None:
    for index, word in enumerate(words):
        if word == name:
            return words[index + 1] if index + 1 < len(words) else None
        if word.startswith(f"{name}="):
            return word[len(name) + 1:]
    return None


def _json(text: str | None) -> Any:
    if text is None or len(text) > 65_536:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
