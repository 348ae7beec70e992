"""Addresses and names of machines."""

from __future__ import annotations

import ipaddress

__all__ = ["address", "is_loopback"]


def is_loopback(host: str) -> bool:
    found = address(host)
    return host == "localhost" or (found is not None and found.is_loopback)


def address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """`name` as an IP address, or None."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
