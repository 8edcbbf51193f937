"""What a broker is asked for on behalf of an endpoint: topic filters, nodes and subjects.

The endpoint's own options say it; where they do not, the definitions expected there do: each placeholder of a topic or
subject becomes the wildcard of its protocol (architecture.md section 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

from catalog.model import Catalog, Endpoint
from catalog.values import text_of

_BRACES: Final = re.compile(r"\{[A-Za-z0-9_.\-]+\}", re.ASCII)
_MQTT_OPTIONS: Final = ("topicfilter", "topic-filter", "topic")
_NATS_OPTIONS: Final = ("subjectfilter", "subject-filter", "subject")
_PROPERTIES: Final = {"MQTT/5.0": "topic_name", "MQTT/3.1.1": "topic_name", "NATS": "subject"}


def addresses_of(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    """Return what to subscribe to for an endpoint, the widest ones only; empty when nothing says."""
    protocol = endpoint.protocol or ""
    if protocol == "AMQP/1.0":
        found = [str(endpoint.options["node"])] if endpoint.options.get("node") else list(_paths(endpoint))
    elif protocol == "NATS":
        found = [nats_filter(text) for text in _option(endpoint, _NATS_OPTIONS)]
        found = found or [nats_filter(text) for text in _declared(endpoint, catalog)]
    else:
        found = [mqtt_filter(text) for text in _option(endpoint, _MQTT_OPTIONS)] or list(_paths(endpoint))
        found = found or [mqtt_filter(text) for text in _declared(endpoint, catalog)]
    distinct = tuple(dict.fromkeys(found))
    return tuple(
        one for one in distinct if not any(other != one and covers(other, one, protocol) for other in distinct)
    )


def mqtt_filter(template: str) -> str:
    """Return the topic filter that takes every topic of a template; a level with any placeholder becomes ``+``."""
    return "/".join("+" if _BRACES.search(level) else level for level in template.split("/"))


def nats_filter(template: str) -> str:
    """Return the subject that takes every subject of a template; a token with any placeholder becomes ``*``."""
    blank = _BRACES.sub("{}", template)  # names of placeholders may have dots
    return ".".join("*" if "{}" in token else token for token in blank.split("."))


def covers(wide: str, narrow: str, protocol: str) -> bool:
    """Tell whether the filter *wide* takes whatever *narrow* takes."""
    return _walk(_tokens(wide, protocol), _tokens(narrow, protocol), covering=True)


def overlap(one: str, other: str, protocol: str) -> bool:
    """Tell whether some topic or subject, or for AMQP the node, fits both."""
    return _walk(_tokens(one, protocol), _tokens(other, protocol), covering=False)


def _tokens(address: str, protocol: str) -> list[str]:
    if protocol == "AMQP/1.0":
        return [address]
    return address.split("." if protocol == "NATS" else "/")


def _walk(one: list[str], other: list[str], *, covering: bool) -> bool:
    for at, token in enumerate(one):
        if token in ("#", ">"):
            return True
        if at >= len(other):
            return False
        beside = other[at]
        if beside in ("#", ">"):
            return not covering
        if token in ("+", "*") or token == beside:
            continue
        if covering or beside not in ("+", "*"):
            return False
    return len(one) == len(other) or (not covering and len(other) > len(one) and other[len(one)] in ("#", ">"))


def _option(endpoint: Endpoint, names: tuple[str, ...]) -> list[str]:
    for name in names:
        value = endpoint.options.get(name)
        if isinstance(value, str) and value:
            return [value]
    return []


def _paths(endpoint: Endpoint) -> Iterator[str]:
    """Give the addresses that stand in the path of a URI."""
    for uri in endpoint.uris:
        path = unquote(urlsplit(uri).path).strip("/")
        if path:
            yield path


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
