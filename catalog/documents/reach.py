"""Which addresses of the network a load may connect to: what documents name is not what the operator named.

Sources are the operator's choice and may be anywhere. What a document refers to may only be a public address, unless
its host or network is allowed: else a catalog of strangers could ask services of this machine, of its neighbours, or of
the cloud it runs in. Files are the operator's own: their references may lead to private and loopback addresses too, but
not to link-local ones. Names are resolved once, all their addresses are judged, and the connection goes to one of
those. Where the environment has a proxy, it resolves names, and only addresses written as such are judged here.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from catalog.errors import DocumentError

EVERYWHERE: Final = "*"
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
_SHARED: Final = ipaddress.ip_network("100.64.0.0/10")


class Trust(IntEnum):
    """Who named an origin: a document of the network, a file of the operator, or the operator as a source."""

    NETWORK = 0
    FILE = 1
    OPERATOR = 2


class Reach:
    """What may be connected to. ``allowed`` are hosts (``registry.internal``), networks (``10.0.0.0/8``) or ``*``.

    Raises:
        ValueError: an entry that looks like a network is none.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._named: dict[str, Trust] = {}
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]")))
            except ValueError:
                if "/" in entry:
                    raise
                self._hosts.add(entry.lower().rstrip("."))

    def name(self, origin: str, trust: Trust) -> None:
        """Note who named an origin (scheme, host and port); more trust is never taken back."""
        self._named[origin] = max(trust, self._named.get(origin, Trust.NETWORK))

    def check(self, url: str, origin: str, host: str, address: str) -> None:
        """Make sure that *url* may be fetched from *address*, one that its host has.

        Raises:
            DocumentError: it may not; lasting.
        """
        trust = self._named.get(origin, Trust.NETWORK)
        if origin.startswith("https:"):  # where servers lead from their http address
            trust = max(trust, self._named.get(origin.replace("https:", "http:", 1), Trust.NETWORK))
        if trust is Trust.OPERATOR or self.admits(host, address):
            return
        parsed = _address(address)
        near = parsed.is_loopback or parsed.is_private or (parsed.version == 4 and parsed in _SHARED)
        if trust is Trust.FILE and near and not (parsed.is_link_local or parsed.is_unspecified):
            return
        hint = f"if references may go there, name {host} in catalog.allow_addresses (--allow-address)"
        text = f"{url} is not fetched: a document refers to it, and {host} is at {address}, no public address"
        raise DocumentError(text, file=url, hint=hint)

    def admits(self, host: str, address: str) -> bool:
        """Tell whether anybody may name a host to connect to, at an address that it has: a public or an allowed one."""
        parsed = _address(address)
        return self.allows(host, address) or (parsed.is_global and not parsed.is_multicast)

    def allows(self, host: str, address: str) -> bool:
        """Tell whether a host, or an address that it has, is among those that are allowed."""
        parsed = _address(address)
        known = EVERYWHERE in self._hosts or host.lower().rstrip(".") in self._hosts
        return known or any(parsed in network for network in self._networks if network.version == parsed.version)


def _address(text: str) -> IpAddress:
    """Read an address; of an IPv6 one that leads to an IPv4 one, the latter."""
    parsed = ipaddress.ip_address(text.partition("%")[0])
    return (_embedded(parsed) or parsed) if isinstance(parsed, ipaddress.IPv6Address) else parsed


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets for an IPv6 address end at, if there is one."""
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
