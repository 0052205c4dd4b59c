"""The configuration witness: what arguments and environment of an engine say of connector, backend and role."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.discovery.configured import configured
from exporter.discovery.model import Configured
from exporter.discovery.ray import service_configured

NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}


def vllm(config: object, *, joined: bool = False) -> list[str]:
    text = json.dumps(config)
    return ["vllm", "serve", "m", f"--kv-transfer-config={text}"] if joined else ["vllm", "serve", "m", "--kv-transfer-config", text]


def extra(**more: object) -> dict[str, object]:
    return {**NIXL, "kv_connector_extra_config": more}


ROWS: list[tuple[str, list[str], dict[str, str], Configured]] = [
    ("NIXL by default is UCX", vllm(NIXL), {}, Configured("vllm", "prefill", "nixl", "UCX", by_default=True)),
    ("NIXL with LIBFABRIC", vllm(extra(backends=["UCX", "LIBFABRIC"]), joined=True), {},
     Configured("vllm", "prefill", "nixl", "LIBFABRIC")),
    ("environment variables do not choose NIXL's backend in vLLM (#41814)", vllm(NIXL), {"NIXL_BACKEND": "LIBFABRIC"},
     Configured("vllm", "prefill", "nixl", "UCX", by_default=True)),
    ("a shell line",
     ["/bin/sh", "-c", "vllm serve m \\\n  --port 8000 --kv-transfer-config '" + json.dumps(extra(backends=["UCX"])) + "'"], {},
     Configured("vllm", "prefill", "nixl", "UCX")),
    ("Mooncake", vllm({"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer",
                       "kv_connector_extra_config": {"mooncake_protocol": "efa"}}), {}, Configured("vllm", "decode", "mooncake", "efa")),
    ("Mooncake by default", vllm({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}), {},
     Configured("vllm", "mixed", "mooncake", "rdma", by_default=True)),
    ("several connectors, one of them a store", vllm({"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "connectors": [{"kv_connector": "NixlConnector", "kv_role": "kv_both"}, {"kv_connector": "OffloadingConnector"}]}}), {},
     Configured("vllm", "mixed", "nixl", "UCX", by_default=True, shared_store=True)),
    ("LMCache", vllm({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}), {},
     Configured("vllm", "mixed", "LMCacheConnectorV1", shared_store=True)),
    ("no transfer at all", ["vllm", "serve", "m"], {}, Configured("vllm")),
    ("SGLang by default is Mooncake over rdma", ["python3", "-m", "sglang.launch_server", "--disaggregation-mode", "prefill"], {},
     Configured("sglang", "prefill", "mooncake", "rdma", by_default=True)),
    ("SGLang with NIXL", ["sglang", "--disaggregation-mode=decode", "--disaggregation-transfer-backend=nixl"],
     {"SGLANG_DISAGGREGATION_NIXL_BACKEND": "LIBFABRIC"}, Configured("sglang", "decode", "nixl", "LIBFABRIC")),
    ("SGLang, Mooncake over TCP", ["sglang", "--disaggregation-mode=decode"], {"MOONCAKE_PROTOCOL": "tcp"},
     Configured("sglang", "decode", "mooncake", "tcp")),
    ("SGLang without disaggregation", ["sglang", "--model", "m"], {}, Configured("sglang", "mixed", "mooncake", "rdma", by_default=True)),
    ("something else", ["nginx", "-g", "daemon off;"], {}, Configured()),
    ("broken JSON", ["vllm", "serve", "--kv-transfer-config", "{"], {}, Configured("vllm")),
    ("a list where an object belongs", vllm([1]), {}, Configured("vllm")),
    ("an option at the very end", ["vllm", "serve", "--kv-transfer-config"], {}, Configured("vllm")),
    ("a quote that is never closed", ["sh", "-c", "vllm serve 'm --kv-transfer-config"], {}, Configured("vllm")),
]


@pytest.mark.parametrize(("command", "env", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_a_command_says(command: list[str], env: dict[str, str], expected: Configured) -> None:
    assert configured(command, env) == expected


@pytest.mark.parametrize(("backend", "efa"), [("LIBFABRIC", True), ("efa", True), ("UCX", False), ("rdma", False), ("tcp", False),
                                             (None, None)])
def test_whether_a_backend_is_efa(backend: str | None, efa: bool | None) -> None:
    assert Configured(backend=backend).efa is efa


KEYS = ("kv_connector", "kv_role", "kv_connector_extra_config", "backends", "connectors", "x")
json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
                           max_leaves=12)


@given(json_values, st.lists(st.text(max_size=20), max_size=4))
def test_any_configuration_is_read_without_an_error(value: object, words: list[str]) -> None:
    configured([*words, *vllm(value)], {})
    service_configured(json.dumps({"applications": [{"args": {"kv_transfer_config": value}}]}))


def test_a_multi_connector_without_connectors_says_nothing_of_a_backend() -> None:
    config = {"kv_connector": "MultiConnector", "kv_role": "kv_producer", "kv_connector_extra_config": {"connectors": []}}
    assert configured(vllm(config), {}) == Configured("vllm", "prefill")


SERVICE = """
applications:
- name: llm
  import_path: ray.serve.llm:build_pd_openai_app
  args:
    prefill_config:
      engine_kwargs:
        kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both, kv_connector_extra_config: {backends: [LIBFABRIC]}}
    decode_config:
      engine_kwargs:
        kv_transfer_config: {kv_connector: NixlConnector, kv_role: kv_both}
"""


def test_a_ray_service_says_it_for_both_sides() -> None:
    found = service_configured(SERVICE)
    assert (found["prefill"].backend, found["prefill"].by_default) == ("LIBFABRIC", False)
    assert (found["decode"].backend, found["decode"].by_default) == ("UCX", True)


ALIASES = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 25))])


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "&a [*a]", "&a [*a, *a, *a]", "x: " * 2000, ALIASES])
def test_a_service_that_cannot_be_read_says_nothing(text: str) -> None:
    assert service_configured(text) == {}
