"""All connections of an HTTP server: how many there may be, and which makes room for a new one.

At a limit the connection that matters least is closed: one whose client has never sent anything that was taken, the
oldest first; then one that is idle, the longest first. At the limit of an address it is one of that address. So those
who only keep connections open do not keep out those who send. A request that waits for its answer is never cut off.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from bindings.http.connection import HttpConnection, Phase
from bindings.http.limits import ServerLimits


class Ranking:
    """Connections in the order in which they make room for others."""

    def __init__(self) -> None:
        self._strangers: dict[HttpConnection, None] = {}
        self._known: dict[HttpConnection, None] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __iter__(self) -> Iterator[HttpConnection]:
        return chain(self._strangers, self._known)

    def __contains__(self, connection: HttpConnection) -> bool:
        return connection in self._strangers or connection in self._known

    def add(self, connection: HttpConnection) -> None:
        """Add one of which nothing has been taken yet."""
        self._strangers[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        """Remove one that is in."""
        if connection in self._strangers:
            del self._strangers[connection]
        else:
            del self._known[connection]

    def promote(self, connection: HttpConnection) -> bool:
        """Put one behind all others; False when it is not in."""
        if connection in self._known:
            del self._known[connection]
        elif connection in self._strangers:
            del self._strangers[connection]
        else:
            return False
        self._known[connection] = None
        return True


class Connections:
    """Used on one thread. ``held`` are the bytes of all bodies that are in memory."""

    def __init__(self, limits: ServerLimits, most: int) -> None:
        self._limits = limits
        self._most = most
        self._all = Ranking()
        self._by_address: defaultdict[str, Ranking] = defaultdict(Ranking)
        self.held = 0

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(list(self._all))

    @property
    def busy(self) -> int:
        """How many requests were accepted and have no answer yet."""
        return sum(each.phase in (Phase.BODY, Phase.ANSWER) for each in self._all)

    def has_room(self, address: str) -> bool:
        """Tell whether one more may come from an address; closes another if that is what it takes."""
        if address in self._by_address and len(self._by_address[address]) >= self._limits.max_per_address:
            return self._close_one(self._by_address[address])
        return len(self._all) < self._most or self.make_room()

    def add(self, connection: HttpConnection) -> None:
        """Count a connection in."""
        self._all.add(connection)
        self._by_address[connection.address].add(connection)

    def remove(self, connection: HttpConnection) -> None:
        """Count a connection out; does nothing when it is not in."""
        if connection not in self._all:
            return
        self._all.remove(connection)
        neighbours = self._by_address[connection.address]
        neighbours.remove(connection)
        if not len(neighbours):
            del self._by_address[connection.address]

    def accepted(self, connection: HttpConnection) -> None:
        """Note that a request of it was taken; of all connections it is now the last to make room."""
        if self._all.promote(connection):
            self._by_address[connection.address].promote(connection)

    def make_room(self) -> bool:
        """Close the connection that matters least; False when all wait for answers."""
        return self._close_one(self._all)

    def hold(self, size: int) -> bool:
        """Count bytes of bodies in, or out when below 0; False when they are too many and nobody can make room.

        Bodies that are not yet whole give way, in the order of :meth:`make_room`.
        """
        self.held += size
        while size > 0 and self.held > self._limits.max_held_bytes:
            connection = next((each for each in self._all if each.held and each.phase is Phase.BODY), None)
            if connection is None:
                return False
            connection.abort()
        return True

    def _close_one(self, ranking: Ranking) -> bool:
        connection = next((each for each in ranking if not each.waiting), None)
        if connection is None:
            return False
        self.remove(connection)
        connection.abort()
        return True


def address_group(peer: Any) -> str:
    """Return what a client is counted under: its address, or its IPv6 network of 64 bits, which one host has whole."""
    address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)
