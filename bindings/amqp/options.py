"""The endpoint options of AMQP, which go by any of their spellings (``distributionmode``, ``distribution-mode``).

The specification has ``node``, ``durable`` (for producers; here it makes a subscription durable), ``link-properties``,
``connection-properties`` and ``distribution-mode``. Real catalogs write ``address`` for ``node`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bindings.gateways import GatewayError
from catalog.protocols.properties import squash

_NODE_OPTIONS: Final = ("node", "address")


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
