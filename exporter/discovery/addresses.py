"""Where requests may go: only to addresses that a source gave, and of those only to such as a pod can have.

Whoever can write a pod's status or answer for Ray could else send the exporter's requests to its own loopback or to a cloud's metadata
service.
"""

from __future__ import annotations

import ipaddress


def usable(address: str) -> bool:
    """Whether a discovered address may be connected to: a unicast IP address that is neither loopback, link-local nor unspecified."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return not (found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or _metadata(found)
                or (isinstance(found, ipaddress.IPv4Address) and found.is_reserved))


def url(scheme: str, address: str, port: int, path: str = "") -> str:
    """An address as a URL."""
    host = f"[{address}]" if ":" in address else address
    return f"{scheme}://{host}:{port}{path}"


def _metadata(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """The metadata service of EC2 by IPv6; by IPv4 it is link-local anyway."""
    return address == ipaddress.ip_address("fd00:ec2::254") or address == ipaddress.ip_address("fd00:ec2::23")
