"""How messages for Kafka are addressed and made. :mod:`bindings.kafka.publisher` sends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bindings.kafka.addresses import brokers_of, protocol_of
from bindings.parts import BINARY_KIND, Part
from bindings.sending import Sending, origin_of
from catalog.definitions.constraints import BASE64_KEY
from catalog.model import Property

_PORT: Final = 9092
"""The port that brokers usually have."""


class KafkaSending(Sending):
    """See :class:`~bindings.sending.Sending`; an address is a topic."""

    family = "kafka"
    literal = (re.compile(r"[A-Za-z0-9._-]*"), "letters, digits, '.', '_' and '-'")
    whole = (re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}"), "a topic has 1 to 249 of A-Z a-z 0-9 . _ -")
    most_bytes = 249
    escape = "_"
    address = "topic"
    key = "key"
    by_channel = frozenset({"topic", "key"})
    scalars = ("partition",)
    blobs = frozenset({BASE64_KEY})

    def exposed(self, addresses: Iterable[str], *, tls: bool, login: bool, options: Mapping[str, str]) -> str:
        """Return the brokers if the client would use no TLS; "" if it would, or if the addresses are contradictory."""
        try:
            brokers = brokers_of(addresses)
        except ValueError:
            return ""  # reported as a fault elsewhere
        protocol = protocol_of(brokers.security, tls=tls or brokers.tls, login=login, options=options)
        return brokers.servers if brokers.servers and not protocol.endswith("SSL") else ""

    def origins(self, addresses: Iterable[str]) -> Iterator[str]:
        """Give the brokers; their scheme is the security protocol that the addresses ask for."""
        brokers = brokers_of(addresses)
        scheme = brokers.security.lower() or self.family
        return (origin_of(f"{scheme}://{server}", {}, _PORT) for server in brokers.servers.split(","))

    def _part(self, prop: Property, text: str) -> Part:
        if prop.name == self.key and prop.type != "binary":
            return Part(prop.name, text.encode(), BINARY_KIND)
        part = super()._part(prop, text)
        return part._replace(key=self.key) if prop.name == BASE64_KEY else part
