"""What a canary run is told of the engines it goes to: addresses, pages, what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exporter.config.canary import CanaryTarget
from exporter.config.pd import PdServing
from exporter.discovery.model import EnginePod, Found
from exporter.discovery.visits import Pair, Topology
from probes.canary.pd.params import MAX_PAGES, Learned, Page, PdParams

PAIR_STACKS = frozenset({"vllm", "sglang", "llm-d"})
"""Stacks whose workers take the requests of a canary that plays the router."""
SALTED = frozenset({"vllm", "llm-d"})


def router_params(serving: PdServing, found: Found, topology: Topology, learned: Learned | None) -> dict[str, Any]:
    """`pd` of a request through the router: the pages of every pod that may serve it, of the router and of the picker."""
    others = [_plain(url, "router", index) for index, url in enumerate(serving.router_metrics)]
    others += [_plain(url, "epp", index) for index, url in enumerate(serving.picker_metrics)]
    engines = _pages([pod for pod in found.pods if pod.metrics], topology, serving)
    room = MAX_PAGES - len(others)
    whole = found.seen and not found.trouble and len(engines) <= room and all(pod.metrics for pod in found.pods if pod.ready)
    return _params(serving, [*engines[:room], *others], learned, complete=whole)


def pair_params(target: CanaryTarget, serving: PdServing, pair: Pair, topology: Topology, learned: Learned | None) -> dict[str, Any]:
    """The whole request of a visit to `pair`."""
    prove = serving.provenance and pair.first_contact and target.stack in SALTED
    shared = pair.prefill.configured.shared_store or pair.decode.configured.shared_store
    pd = _params(serving, _pages([pair.prefill, pair.decode], topology, serving), learned, first_contact=pair.first_contact,
                 provenance=prove, shared_store=shared)
    spec = {**target.spec(serving.prompt), **_tls(target, serving), "route": "pair", "url": pair.decode.url, "prefill": pair.prefill.url,
            "pd": pd}
    return {**spec, "cache_salt": True} if prove else spec


def baseline_params(target: CanaryTarget, serving: PdServing, pod: EnginePod, topology: Topology) -> dict[str, Any]:
    """What a baseline request to a decode pod alone needs beside its prompt."""
    return {**_tls(target, serving), "url": pod.url, "pd": _params(serving, _pages([pod], topology, serving), None)}


def _params(serving: PdServing, pages: Sequence[Page], learned: Learned | None, **more: Any) -> dict[str, Any]:
    params = PdParams(pages=tuple(pages), min_prompt_tokens=serving.min_prompt_tokens, shape=serving.shape, learned=learned, **more)
    return params.model_dump(mode="json", exclude_defaults=True)


def _tls(target: CanaryTarget, serving: PdServing) -> dict[str, Any]:
    """Pods have certificates of their own making, and no names that one could be for."""
    secure = serving.scheme == "https"
    given = target.params.model_dump(exclude_unset=True)
    said: dict[str, Any] = {"insecure": True} if secure and serving.insecure else {}
    if not secure:
        said |= {name: None if name == "server_name" else False for name in ("server_name", "insecure") if given.get(name)}
        said |= {"ca_file": None} if target.ca_file is not None else {}
    elif serving.insecure and target.ca_file is not None:
        said["ca_file"] = None
    return said


def _pages(pods: Sequence[EnginePod], topology: Topology, serving: PdServing) -> list[Page]:
    """One page for each address: replicas of one Ray node share theirs, and one that has both roles is a mixed one."""
    found: dict[str, Page] = {}
    for pod in pods:
        zone, instance_type, placement_group = topology(pod.node)
        known = found.get(pod.metrics)
        role = pod.role if known is None or known.role == pod.role else "mixed"
        found[pod.metrics] = Page(url=pod.metrics, role=role, pod=known.pod if known else pod.name, node=pod.node, zone=zone,
                                  instance_type=instance_type, placement_group=placement_group, insecure=serving.insecure)
    return list(found.values())


def _plain(url: str, role: Any, index: int) -> Page:
    return Page(url=url, role=role, pod=f"{role}-{index}")
