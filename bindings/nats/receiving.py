"""The receiving side of NATS: the subjects of an endpoint, and the gateway; see :mod:`bindings.receiving`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bindings.gateways import Gateway, Subscription, Terms
from bindings.nats import subjects
from bindings.nats.options import plans_of
from bindings.receiving import Receiving, templates_of
from catalog.model import Catalog, Endpoint


def _addresses(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    named = subjects.subject_of_options(endpoint.options)
    if named is not None:
        return (named,)
    return tuple(subjects.subjects_of_templates(templates_of(endpoint, catalog, "subject")))


def _gateway(terms: Terms) -> Gateway:
    from bindings.nats.gateway import NatsGateway

    return NatsGateway(terms)


def _check(subscriptions: Sequence[Subscription]) -> None:
    plans_of(subscriptions, {})


NATS: Final = Receiving(_addresses, subjects.overlap, _gateway, _check)
