"""What is asked of EC2 about the nodes.

What an installation must give it: AWS credentials by IRSA or Pod Identity of the service's ServiceAccount that allow
`ec2:DescribeInstances`, `ec2:DescribeInstanceTypes` and `ec2:DescribeInstanceTopology` on `*`. Each is optional: without one the facts
behind it are missing, which metric `efapulse_ec2_facts_known`, log and `efa-pulse status` say, and everything else goes on.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from exporter.config.base import Line, Model
from probes.units import Duration


class Ec2(Model):
    """Facts of the nodes from the EC2 API, in inventory mode `kubernetes`. Nodes that are no EC2 instances are never asked about."""

    enabled: bool = True
    """Ask EC2 at all."""
    region: Line | None = None
    """Region; default: that of the nodes."""
    endpoint: Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s]+$")] | None = None
    """Address of another service with the EC2 API; default: AWS."""
    refresh: Annotated[Duration, Field(ge=60, le=604800)] = 6 * 3600.0
    """How long what was answered is good. New nodes are asked about at once."""
    timeout: Annotated[Duration, Field(ge=1, le=300)] = 20.0
    """Longest time of one request."""
