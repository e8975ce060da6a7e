"""The Host headers that a local service trusts, for `steep serve` and `steep browse`.

A page of another site can reach a service on this machine by a name that its site points at this
machine's address (DNS rebinding), and the web browser then lets it read the answers. Such a request
names the other site's host. Input: a Host header. Output: whether to answer it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

_HEADER = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^:\[\]@/?#\s]+))(?::\d*)?")
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's loopback interface."""
    address = _address(host)
    return host.lower() in _LOOPBACK_NAMES if address is None else address.is_loopback


def is_trusted(header: str, names: Collection[str] = ()) -> bool:
    """Whether a Host header has an IP address, localhost, or one of ``names`` (in lower case).

    No other site can have an IP address as its name.
    """
    parts = _HEADER.fullmatch(header)
    if parts is None:
        return False
    if parts["ipv6"]:
        return _address(parts["ipv6"]) is not None
    host = parts["name"].lower()
    return _address(host) is not None or host in _LOOPBACK_NAMES or host in names


def own_names(host: str) -> set[str]:
    """The names of a service on ``host`` in lower case: none on the loopback interface."""
    if is_loopback(host):
        return set()
    return {name.lower() for name in (host, socket.gethostname(), socket.getfqdn())}


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
