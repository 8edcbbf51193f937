"""The receiving side of protocols with brokers: what to subscribe to for an endpoint, and the gateway that does.

Each protocol has it in its folder, and :data:`bindings.protocols.BINDINGS` names it. How gateways of brokers behave is
in :mod:`bindings.gateways`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from bindings.gateways import Gateway, Subscription, Terms
from catalog.model import Catalog, Endpoint
from catalog.values import text_of


def _any_fits(_subscriptions: Sequence[Subscription]) -> None:
    """Accept all subscriptions."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """How messages of one protocol are taken from brokers.

    ``addresses`` returns what to subscribe to for an endpoint (topic filters, nodes, subjects), the widest ones only:
    what the endpoint's options name, else the path of its address, else a filter for each definition expected there
    (JUDGING.md#sources), else nothing. It raises ValueError, with what is wrong, for a malformed option or path.
    ``overlap`` tells whether one message may come by both of two addresses. ``gateway`` makes what does not connect
    before its start, and raises GatewayError for a subscription that can never work. ``check`` raises the same for the
    subscriptions of one connection, without the client's library.
    """

    addresses: Callable[[Endpoint, Catalog], tuple[str, ...]]
    overlap: Callable[[str, str], bool]
    gateway: Callable[[Terms], Gateway]
    check: Callable[[Sequence[Subscription]], None] = _any_fits


def paths_of(endpoint: Endpoint) -> Iterator[str]:
    """Give the addresses that stand in the path of a URI."""
    for uri in endpoint.uris:
        path = unquote(urlsplit(uri).path).strip("/")
        if path:
            yield path


def templates_of(endpoint: Endpoint, catalog: Catalog, name: str) -> Iterator[str]:
    """Give the values of the option *name*, such as a topic, that the endpoint's definitions of its protocol have."""
    for xid in endpoint.candidates:
        definition = catalog.definitions.get(xid)
        if definition is None or definition.protocol not in (None, endpoint.protocol):
            continue
        for prop in definition.protocoloptions:
            if prop.name == name and prop.value is not None:
                yield text_of(prop.value)
