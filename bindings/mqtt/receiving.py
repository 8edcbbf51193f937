"""The receiving side of MQTT: topic filters for an endpoint, and the gateway; see :mod:`bindings.receiving`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from bindings.gateways import Gateway, Subscription, Terms
from bindings.mqtt import filters
from bindings.receiving import Receiving, paths_of, templates_of
from catalog.model import Catalog, Endpoint

if TYPE_CHECKING:
    from bindings.mqtt.messages import Version


def _addresses(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    named = filters.filter_of_options(endpoint.options)
    chosen = [named] if named is not None else [filters.checked(path) for path in paths_of(endpoint)]
    return tuple(filters.uncovered(chosen) or filters.filters_of_templates(_filterable(endpoint, catalog)))


def _filterable(endpoint: Endpoint, catalog: Catalog) -> Iterator[str]:
    """Give topics that a filter can be made of; no message can have another one, and lint says so."""
    for template in templates_of(endpoint, catalog, "topic_name"):
        try:
            filters.filter_of_template(template)
        except filters.FilterError:
            continue  # its finding is publish-wildcard; one such definition must not cost the endpoint
        yield template


def _gateway(version: Version, terms: Terms) -> Gateway:
    from bindings.mqtt.gateway import MqttGateway

    return MqttGateway(terms, version)


def _check(subscriptions: Sequence[Subscription]) -> None:
    filters.requests_of(subscriptions)


MQTT_5: Final = Receiving(_addresses, filters.overlap, partial(_gateway, "MQTT/5.0"), _check)
MQTT_3: Final = Receiving(_addresses, filters.overlap, partial(_gateway, "MQTT/3.1.1"), _check)
