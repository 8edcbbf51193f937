"""The receiving side of AMQP 1.0: the nodes of an endpoint, and the gateway; see :mod:`bindings.receiving`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final

from bindings.amqp.options import check_options, node_of
from bindings.gateways import Gateway, Subscription, Terms
from bindings.receiving import Receiving, paths_of
from catalog.model import Catalog, Endpoint


def _addresses(endpoint: Endpoint, _catalog: Catalog) -> tuple[str, ...]:
    node = node_of(endpoint.options)
    return (node,) if node is not None else tuple(dict.fromkeys(paths_of(endpoint)))


def _gateway(terms: Terms) -> Gateway:
    from bindings.amqp.gateway import AmqpGateway

    return AmqpGateway(terms)


def _check(subscriptions: Sequence[Subscription]) -> None:
    for subscription in subscriptions:
        check_options(subscription)


AMQP: Final = Receiving(_addresses, operator.eq, _gateway, _check)
