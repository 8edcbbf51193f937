"""The endpoint options of AMQP, which go by any of their spellings (``distributionmode``, ``distribution-mode``).

The specification has ``node``, ``durable`` (for producers; here it makes a subscription durable), ``link-properties``,
``connection-properties``, ``distribution-mode``, ``source-filters`` and ``node-capabilities``. Real catalogs write
``address`` for ``node`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bindings.gateways import GatewayError, Subscription
from catalog.protocols.properties import squash

_NODE_OPTIONS: Final = ("node", "address")
_MODES: Final = ("move", "copy")
_DESCRIPTORS: Final[Mapping[str, str]] = {
    "selector": "apache.org:selector-filter:string",
    "jmsselector": "apache.org:selector-filter:string",
    "nolocal": "apache.org:no-local-filter:list",
    "legacyamqpdirectbinding": "apache.org:legacy-amqp-direct-binding:string",
    "legacyamqptopicbinding": "apache.org:legacy-amqp-topic-binding:string",
    "legacyamqpheadersbinding": "apache.org:legacy-amqp-headers-binding:map",
}
"""The filters that AMQP has registered, by their squashed short names."""
_NO_LOCAL: Final = _DESCRIPTORS["nolocal"]


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """One filter of a link's source: its name in the filter set, its descriptor, and its value."""

    name: str
    descriptor: str
    value: Any


def option(options: Mapping[str, Any], name: str) -> Any:
    """Return an endpoint option by its squashed name; None when there is none."""
    for key, value in options.items():
        if squash(key) == name:
            return value
    return None


def node_of(options: Mapping[str, Any]) -> str | None:
    """Return the node that the options name; None when they name none, and the path of the address counts."""
    values = (option(options, name) for name in _NODE_OPTIONS)
    return next((str(value) for value in values if value), None)


def option_map(options: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return an option that is a map of texts.

    Raises:
        GatewayError: it is no such map.
    """
    value = option(options, name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise GatewayError(f"the option {name} is no map of texts to texts; write it as {{name: value}}")
    return dict(value)


def source_filters(options: Mapping[str, Any]) -> tuple[SourceFilter, ...]:
    """Return the filters of the option ``source-filters``: by short name or descriptor, or ``{descriptor, value}``.

    Raises:
        GatewayError: it is no map, or has a filter without descriptor or value.
    """
    written = option(options, "sourcefilters")
    if written is None:
        return ()
    if not isinstance(written, Mapping):
        raise GatewayError("the option source-filters is no map; write it as {selector: EXPRESSION}")
    return tuple(_filter(str(name), value) for name, value in written.items() if value is not None)


def _filter(name: str, written: Any) -> SourceFilter:
    if isinstance(written, Mapping) and "descriptor" in written:
        descriptor, value = written["descriptor"], written.get("value")
    else:
        descriptor, value = _DESCRIPTORS.get(squash(name), name if ":" in name else None), written
    if not isinstance(descriptor, str) or not descriptor.isascii() or not descriptor:
        raise GatewayError(
            f"the source filter {name!r:.80} is not known; write selector, no-local, a descriptor such as "
            f"apache.org:selector-filter:string, or {{descriptor, value}}"
        )
    if descriptor == _NO_LOCAL:
        if value is False:
            raise GatewayError(f"the source filter {name} is false; remove it")
        return SourceFilter(name, descriptor, [])
    if value is None or (descriptor.endswith(":string") and not isinstance(value, str)):
        raise GatewayError(
            f"the source filter {name!r:.80} has no text as value, but {value!r:.80}; write an expression"
        )
    return SourceFilter(name, descriptor, value)


def capabilities_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the option ``node-capabilities``, a text or several.

    Raises:
        GatewayError: it is something else.
    """
    written = option(options, "nodecapabilities")
    listed = [] if written is None else [written] if isinstance(written, str) else written
    if not isinstance(listed, list) or not all(isinstance(each, str) and each.isascii() for each in listed):
        raise GatewayError("the option node-capabilities is no list of texts; write it as [queue]")
    return tuple(listed)


def check_options(subscription: Subscription) -> None:
    """Make sure that a subscription can be attached.

    Raises:
        GatewayError: it has no address, or an option has a value that AMQP does not know.
    """
    if not subscription.address:
        raise GatewayError(f"{subscription.endpoint} has no AMQP node; give the endpoint the option node")
    try:
        option_map(subscription.options, "linkproperties")
        source_filters(subscription.options)
        capabilities_of(subscription.options)
    except GatewayError as error:
        raise GatewayError(f"{subscription.endpoint}: {error}") from error
    mode = option(subscription.options, "distributionmode")
    if mode is not None and mode not in _MODES:
        raise GatewayError(f"{subscription.endpoint}: distributionmode is move or copy, not {mode!r}")
