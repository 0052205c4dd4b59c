"""Which network interface has an address: gloo and uccl want a name where everybody else takes an address."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str | None:
    """The interface that holds this IPv4 address, None when none does or the address is not IPv4."""
    try:
        wanted = socket.inet_aton(address)
        names = [name for _, name in socket.if_nameindex()]
    except OSError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for name in names:
            try:
                answer = fcntl.ioctl(link.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if answer[20:24] == wanted:
                return name
    return None
