"""Parameters of the `uccl-ep` probe. Sizes are bytes, durations seconds. Imports no engine."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from probes.units import Duration, Size


class UcclEpParams(BaseModel):
    """What one UCCL-EP run measures: MoE dispatch and combine between all GPUs of all its nodes.

    `driver` is our own short loop over the DeepEP-compatible Buffer API and takes seconds; the other modes start the upstream bench of the
    image: `low-latency` (test_low_latency.py), `intranode` (one node, throughput), `internode` (throughput, minutes).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["driver", "low-latency", "intranode", "internode"] = "driver"
    kernel: Literal["auto", "low-latency", "normal"] = Field(
        default="auto", description="kernels the driver uses: auto takes normal on one node and low-latency across nodes"
    )
    tokens: int | None = Field(default=None, ge=1, le=8192, description="of each rank; default: 128, or 4096 for the throughput kernels")
    hidden: int = Field(default=7168, ge=128, le=16384)
    topk: int = Field(default=8, ge=1, le=32)
    experts: int | None = Field(default=None, ge=1, le=4096, description="default: 288, or 256 for the throughput kernels, evenly spread")
    fp8: bool = Field(default=False, description="dispatch in FP8; combine is always BF16")
    iterations: int = Field(default=20, ge=2, le=1000)
    warmup: int = Field(default=5, ge=1, le=100)
    disable_nvlink: bool = Field(default=False, description="send to the GPUs of the own node over the network as well")

    gpus: int | Literal["all"] = "all"
    allow_busy: bool = False
    min_free_bytes: Size = Field(default=8 * 1024**3, ge=0)
    nics: int | None = Field(default=None, ge=1, description="EFA devices that must be visible; uccl asserts a whole node")
    bench_folder: str | None = Field(default=None, description="folder with the upstream test_*.py; default: the usual ones of the image")
    engine_timeout: Duration = Field(default=20.0, gt=0, le=600, description="UCCL_EP_CPU_TIMEOUT_SECS: the engine's own give-up time")

    @model_validator(mode="after")
    def _consistent(self) -> UcclEpParams:
        if self.experts is not None and self.topk > self.experts:
            raise ValueError(f"topk {self.topk} is more than the {self.experts} experts")
        if self.hidden % 128:
            raise ValueError(f"hidden {self.hidden} is not a multiple of 128")
        return self
