"""Parameters of the node preflight probe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from probes.units import Duration, Size


class NodeParams(BaseModel):
    """What the preflight expects of a node. A field left out is not expected, only shown. Sizes are bytes, times seconds.

    `expected_devices` wins over the instance table. `allocatable` is what Kubernetes lists for `vpc.amazonaws.com/efa` on the node; the
    launcher fills it in where it knows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    instance_type: str | None = Field(default=None, max_length=64, description="EC2 instance type, looked up in the instance table")
    expected_devices: int | None = Field(default=None, ge=0, le=128, description="EFA devices the node must show; default: from the table")
    allocatable: int | None = Field(default=None, ge=0, le=128, description="EFA devices Kubernetes lists as allocatable on the node")
    min_memlock: Size = Field(default=16 * 2**30, ge=0, description="locked memory the worker must be allowed, bytes")
    min_hugepages: Size = Field(default=0, ge=0, description="2 MiB huge pages that must be free, bytes; 0: only shown")
    fi_info: bool = Field(default=True, description="ask `fi_info -p efa -t FI_EP_RDM` for RDM domains, where the tool is installed")
    nixl_agent: bool = Field(default=True, description="start a NIXL agent (LIBFABRIC, provider efa), where nixl is installed")
    tool_timeout: Duration = Field(default=15.0, gt=0, le=120, description="deadline of each tool, seconds")
