"""The endpoint options of MQTT that concern a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bindings.gateways import GatewayError
from catalog.protocols.properties import squashed
from catalog.values import whole_number

DEFAULT_SESSION_SECONDS: Final = 86_400
"""How long a broker keeps our session, and what it queues for it, while we are away: a night's outage loses nothing."""
DEFAULT_KEEPALIVE_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What endpoint options say of a connection, in seconds.

    ``expiry`` is MQTT 5's session expiry (option ``sessionexpiryinterval``; in 3.1.1 the broker decides), ``keepalive``
    how long a connection may be silent (option ``keepalive``). ``cleansession`` is not honoured by gateways: a session
    that ends with its connection loses what arrives in between.
    """

    expiry: int = DEFAULT_SESSION_SECONDS
    keepalive: int = DEFAULT_KEEPALIVE_SECONDS


def session_options(options: Mapping[str, Any]) -> SessionOptions:
    """Read the options; names count without regard to case, dashes and underscores.

    Raises:
        GatewayError: a value is no whole number in range.
    """
    known = squashed(options)
    return SessionOptions(
        expiry=_whole(known, "sessionexpiryinterval", DEFAULT_SESSION_SECONDS, 1, 2**32 - 1),
        keepalive=_whole(known, "keepalive", DEFAULT_KEEPALIVE_SECONDS, 1, 65_535),
    )


def _whole(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    given = value = options.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        value = whole_number(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise GatewayError(f"option {name} must be a whole number of seconds from {low} to {high}, not {given!r:.40}")
    return value
