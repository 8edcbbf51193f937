"""What a broker is asked for on behalf of an endpoint: topic filters, nodes and subjects.

The endpoint's own options say it; where they do not, the definitions expected there do: each placeholder of a topic or
subject becomes the wildcard of its protocol (architecture.md section 2). How filters are made and held against each
other is the matter of each binding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from bindings.amqp.options import node_of
from bindings.mqtt import filters
from bindings.nats import subjects
from catalog.model import Catalog, Endpoint
from catalog.values import text_of

_PROPERTIES: Final = {"MQTT/5.0": "topic_name", "MQTT/3.1.1": "topic_name", "NATS": "subject"}


def addresses_of(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    """Return what to subscribe to for an endpoint, the widest ones only; empty when nothing says.

    A definition whose topic no filter can be made of is passed over: no message can have that topic, and lint says so.

    Raises:
        ValueError: an option of the endpoint, or its address, names no topic filter; the text says what is wrong.
    """
    if endpoint.protocol == "AMQP/1.0":
        node = node_of(endpoint.options)
        return (node,) if node is not None else tuple(dict.fromkeys(_paths(endpoint)))
    if endpoint.protocol == "NATS":
        subject = subjects.subject_of_options(endpoint.options)
        if subject is not None:
            return (subject,)
        return tuple(subjects.subjects_of_templates(_declared(endpoint, catalog)))
    told = filters.filter_of_options(endpoint.options)
    found = [told] if told is not None else [filters.checked(path) for path in _paths(endpoint)]
    return tuple(filters.uncovered(found) or filters.filters_of_templates(_filterable(endpoint, catalog)))


def overlap(one: str, other: str, protocol: str) -> bool:
    """Tell whether some topic or subject, or for AMQP the node, fits both."""
    if protocol == "NATS":
        return subjects.overlap(one, other)
    return one == other if protocol == "AMQP/1.0" else filters.overlap(one, other)


def _paths(endpoint: Endpoint) -> Iterator[str]:
    """Give the addresses that stand in the path of a URI."""
    for uri in endpoint.uris:
        path = unquote(urlsplit(uri).path).strip("/")
        if path:
            yield path


def _filterable(endpoint: Endpoint, catalog: Catalog) -> Iterator[str]:
    for template in _declared(endpoint, catalog):
        try:
            filters.filter_of_template(template)
        except filters.FilterError:
            continue  # its finding is publish-wildcard; one such definition must not cost the endpoint
        yield template


def _declared(endpoint: Endpoint, catalog: Catalog) -> Iterator[str]:
    """Give the topics or subjects that the endpoint's definitions of its protocol have."""
    name = _PROPERTIES.get(endpoint.protocol or "")
    for xid in endpoint.candidates:
        definition = catalog.definitions.get(xid)
        if definition is None or definition.protocol not in (None, endpoint.protocol):
            continue
        for prop in definition.protocoloptions:
            if prop.name == name and prop.value is not None:
                yield text_of(prop.value)
