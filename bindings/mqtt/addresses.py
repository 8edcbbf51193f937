"""Where a broker is and how to come in: URIs, TLS, login, and the endpoint options that concern a connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from bindings.gateways import Connection, GatewayError, Tls, without_websockets
from catalog.protocols.properties import squash
from catalog.values import whole_number

DEFAULT_SESSION_SECONDS: Final = 86_400
"""How long a broker keeps our session, and what it queues for it, while we are away: a night's outage loses nothing."""
DEFAULT_KEEPALIVE_SECONDS: Final = 60
_SCHEMES: Final = frozenset({"mqtt", "tcp", "mqtts", "ssl", "tls"})
_SECURE: Final = frozenset({"mqtts", "ssl", "tls"})


@dataclass(frozen=True, slots=True)
class Address:
    """One place to connect to. ``tls`` None is a connection in the clear.

    The text form names the place without user and password.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


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
    known = {squash(name): value for name, value in options.items()}
    return SessionOptions(
        expiry=_whole(known, "sessionexpiryinterval", DEFAULT_SESSION_SECONDS, 1, 2**32 - 1),
        keepalive=_whole(known, "keepalive", DEFAULT_KEEPALIVE_SECONDS, 1, 65_535),
    )


def addresses_of(connection: Connection) -> tuple[Address, ...]:
    """Return the addresses in the order in which they are tried.

    Settings for TLS make every connection use it, whatever the scheme of its URI says: a login that somebody meant
    to protect must not leave in the clear.

    Raises:
        GatewayError: there is none, one is no MQTT URI, or a certificate cannot be read.
    """
    if not connection.uris:
        raise GatewayError("an MQTT connection has no address; give the endpoint one, such as mqtts://host:8883")
    context: ssl.SSLContext | None = None
    found = []
    for uri in without_websockets(connection.uris, "MQTT", "mqtts://host:8883"):
        scheme, place = _split(uri)
        if scheme in _SECURE or connection.tls is not None:
            context = context or _context(connection.tls or Tls())
        found.append(_address(scheme, place, connection, context))
    return tuple(found)


def _split(uri: str) -> tuple[str, str]:
    scheme, separator, rest = uri.strip().partition("://")
    if not separator:
        scheme, rest = "mqtt", uri.strip()
    if scheme.lower() not in _SCHEMES or not rest:
        raise GatewayError(f"{_masked(uri)} is no MQTT address; write mqtt://host:1883 or mqtts://host:8883")
    return scheme.lower(), rest


def _address(scheme: str, place: str, connection: Connection, context: ssl.SSLContext | None) -> Address:
    secure = scheme in _SECURE or connection.tls is not None
    default = 8883 if secure else 1883
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise GatewayError(f"{_masked(place)} is no MQTT address: its host or port is none") from error
    if not host or port == 0:
        raise GatewayError(f"{_masked(place)} is no MQTT address: it lacks a host or a port; write mqtt://host:1883")
    login = connection.login
    username, password = login.username, login.password
    if username is None and password is None and parts.username is not None:
        username = unquote(parts.username)
        password = unquote(parts.password) if parts.password is not None else None
    if password is not None and username is None:
        # MQTT 3.1.1 allows no password without a user name.
        username = ""
    return Address(host, port or default, context if secure else None, username, password)


def _context(tls: Tls) -> ssl.SSLContext:
    if tls.key is not None and tls.certificate is None:
        raise GatewayError(f"key {tls.key} has no certificate; give both, or neither")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as error:
        raise GatewayError(f"certificate authority {tls.ca} cannot be read: {error}") from error
    if tls.certificate is not None:
        try:
            # An empty password: a key that is encrypted fails here, instead of asking on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            pair = f"certificate {tls.certificate} with key {tls.key or tls.certificate}"
            raise GatewayError(f"{pair} cannot be used: {error}; it must be PEM, its key without a password") from error
    return context


def _whole(options: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    given = value = options.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        value = whole_number(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise GatewayError(f"option {name} must be a whole number of seconds from {low} to {high}, not {given!r:.40}")
    return value


def _masked(uri: str) -> str:
    """Return an address for a message: without what stands before an ``@``."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "", uri
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"[:200]
