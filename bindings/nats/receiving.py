"""The receiving side of NATS: the subjects of an endpoint, and the gateway; see :mod:`bindings.receiving`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bindings.gateways import Connection, Gateway, GatewayCounters, Limits, RowStore, Subscription
from bindings.nats import subjects
from bindings.receiving import Receiving, templates_of
from catalog.model import Catalog, Endpoint


def _addresses(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    named = subjects.subject_of_options(endpoint.options)
    if named is not None:
        return (named,)
    return tuple(subjects.subjects_of_templates(templates_of(endpoint, catalog, "subject")))


def _gateway(
    connection: Connection,
    subscriptions: Sequence[Subscription],
    store: RowStore,
    *,
    client_id: str,
    limits: Limits,
    counters: GatewayCounters,
) -> Gateway:
    from bindings.nats.gateway import NatsGateway

    return NatsGateway(connection, subscriptions, store, name=client_id, limits=limits, counters=counters)


NATS: Final = Receiving(_addresses, subjects.overlap, _gateway)
