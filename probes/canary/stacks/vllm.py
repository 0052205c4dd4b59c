"""vLLM with a KV connector, the canary as the router: a prefill leg and a decode leg with `kv_transfer_params`.

NIXL in pull mode is serial: the prefill worker's reply names the blocks, the decode worker fetches them. A handle serves once and within
the lease (30 s by default). A reply without one means that the worker did not act as prefill worker (it is decided per request): the
decode worker would then do the prompt itself, with a normal answer. Mooncake is concurrent, and needs the engine id of the prefill worker.
Behind a router (smg, for instance) one plain request is sent; the baseline is a decode worker without any of these fields.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from probes.canary.endpoint import parse_endpoint
from probes.canary.stacks.base import Ask, Connector, HandoverError, Json, Leg, Lookup, Plain, Plan, Route, StackName, prefill_body

if TYPE_CHECKING:
    from probes.canary.params import CanaryParams

ASK_FOR_HANDLE: Json = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
                        "remote_host": None, "remote_port": None}
"""`kv_transfer_params` of a prefill leg, as the llm-d sidecar sends them."""


class Vllm(Plain):
    """One worker, or two with the canary between them."""

    name: StackName = "vllm"
    routes: frozenset[Route] = frozenset({"router", "pair", "baseline"})
    connectors: tuple[Connector, ...] = ("nixl", "mooncake")

    def check(self, params: CanaryParams) -> None:
        """Raise ValueError where the canary's own hand-over would be overwritten."""
        if params.route == "pair" and "kv_transfer_params" in params.extra_body:
            raise ValueError("extra_body: kv_transfer_params are set by the canary itself on the route pair")

    def plan(self, ask: Ask) -> Plan:
        """One leg, or two by the connector."""
        params = ask.params
        if ask.given is not None:
            return Plan(Leg(params.url, ask.body | ask.given))
        if params.route != "pair" or params.prefill is None:
            return Plan(Leg(params.url, ask.body))
        if params.wire_connector == "mooncake":
            return self._mooncake(ask, params.prefill)
        prefill = prefill_body(ask.body) | {"kv_transfer_params": ASK_FOR_HANDLE}
        return Plan(Leg(params.url, ask.body), Leg(params.prefill, prefill), "serial", handle_of)

    def _mooncake(self, ask: Ask, prefill: str) -> Plan:
        params = ask.params
        transfer = f"xfer-{uuid.UUID(bytes=ask.entropy(16), version=4)}"
        endpoint = parse_endpoint(prefill)
        host = params.bootstrap_host or endpoint.host
        bootstrap = f"http://{f'[{host}]' if ':' in host else host}:{params.bootstrap_port}"

        def fields(reply: Json) -> tuple[Json, Json]:
            engine = _engine_of(reply)
            return {}, {"kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": True, "remote_bootstrap_addr": bootstrap,
                                               "remote_engine_id": engine, "transfer_id": transfer}}

        body = prefill_body(ask.body) | {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False,
                                                                "transfer_id": transfer}}
        return Plan(Leg(params.url, ask.body), Leg(prefill, body, {"X-Data-Parallel-Rank": "0"}), "concurrent",
                    lookup=Lookup(f"{bootstrap}/query", fields), ttft_has_prefill=False)


def handle_of(reply: Json) -> Json:
    """The fields a decode leg gets from a prefill worker's reply. Raises HandoverError when it has no usable handle."""
    params = reply.get("kv_transfer_params")
    if not isinstance(params, dict) or not params:
        said = "no kv_transfer_params" if "kv_transfer_params" not in reply else f"kv_transfer_params {_kind(params)}"
        raise HandoverError(f"the prefill worker's reply has {said}: it did not act as prefill worker")
    if params.get("do_remote_prefill") is not True:
        raise HandoverError("the prefill worker's kv_transfer_params lack do_remote_prefill: it offers no KV")
    return {"kv_transfer_params": params}


def _engine_of(reply: Json) -> str:
    """The engine id of data-parallel rank 0 from Mooncake's bootstrap server."""
    rank = reply.get("0")
    engine = rank.get("engine_id") if isinstance(rank, dict) else None
    if not isinstance(engine, str) or not engine:
        raise HandoverError("the bootstrap server names no engine_id for rank 0")
    return engine


def _kind(value: Any) -> str:
    return "null" if value is None else "empty" if value == {} else f"of type {type(value).__name__}"
