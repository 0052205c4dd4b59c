"""Metrics pages of engines, made from the names and labels that the real ones were recorded with."""

from __future__ import annotations

BLOCK_TOKENS = 128
VLLM = """
# HELP vllm:prompt_tokens_by_source_total Prompt tokens by source
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{{engine="0",model_name="m",source="local_compute"}} {local}
vllm:prompt_tokens_by_source_total{{engine="0",model_name="m",source="local_cache_hit"}} 0.0
vllm:prompt_tokens_by_source_total{{engine="0",model_name="m",source="external_kv_transfer"}} {external}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {prompt}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {requests}
vllm:request_success_total{{engine="0",finished_reason="error",model_name="m"}} 0.0
vllm:nixl_bytes_transferred_sum{{engine="0",model_name="m"}} {moved}
vllm:nixl_bytes_transferred_count{{engine="0",model_name="m"}} {requests}
vllm:nixl_xfer_time_seconds_sum{{engine="0",model_name="m"}} {seconds}
vllm:nixl_xfer_time_seconds_count{{engine="0",model_name="m"}} {requests}
vllm:nixl_num_failed_transfers_total{{engine="0",model_name="m"}} 0.0
vllm:num_requests_running{{engine="0",model_name="m"}} 2.0
vllm:num_requests_running{{engine="1",model_name="m"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.5
vllm:cache_config_info{{block_size="128",cache_dtype="auto",engine="0"}} 1.0
process_start_time_seconds {started}
"""


def vllm(**values: float) -> str:
    """A page of vLLM 0.32 with the NIXL connector; `values` replace those of one disaggregated request of 456 tokens."""
    return VLLM.format(**{"local": 1.0, "external": 455.0, "prompt": 456.0, "requests": 1.0, "moved": 1048576.0, "seconds": 0.006,
                          "started": 1.7e9, **values})
