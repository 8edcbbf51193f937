"""Addresses of brokers and servers: how each protocol writes them, and how one is split into server, TLS and login.

Kafka's have a form of their own: :mod:`bindings.kafka.binding`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from catalog.values import over_websockets


@dataclass(frozen=True, slots=True)
class Address:
    """One server and our login there; ``scheme`` says whether TLS is used. The text form leaves the login out."""

    scheme: str
    host: str
    port: int
    tls: bool
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The address with its scheme."""
        return f"{self.scheme}://{self}"


@dataclass(frozen=True, slots=True)
class AddressForm:
    """How one protocol writes addresses: ports by scheme, without TLS (``plain``) and with it (``secure``).

    An address without a scheme has the scheme ``bare``, unless that is empty. With ``raised``, settings for TLS make
    plain addresses use it: a login that somebody meant to protect must not leave in the clear. The texts say what is
    wrong with an address; ``{address}`` in them is without login.
    """

    protocol: str
    plain: Mapping[str, int]
    secure: Mapping[str, int]
    unknown_scheme: str = ""
    no_port: str = ""
    no_host: str = ""
    bare: str = ""
    raised: bool = False

    @property
    def ports(self) -> Mapping[str, int]:
        """The port that each scheme means."""
        return {**self.plain, **self.secure}

    @property
    def secure_port(self) -> int:
        """The port for TLS, whatever the scheme."""
        return next(iter(self.secure.values()))

    def is_plain(self, address: str, *, tls: bool) -> bool:
        """Tell whether a connection to *address* would be without TLS; *tls* is whether there are settings for it."""
        scheme = address.partition("://")[0].lower() if "://" in address else self.bare
        return scheme in self.plain and not (tls and self.raised)

    def read(self, uri: str, *, tls: bool) -> Address:
        """Split an address; *tls* is whether there are settings for TLS.

        Raises:
            GatewayError: it is not an address of this protocol.
        """
        scheme, mark, place = uri.strip().partition("://")
        scheme, place = (scheme.lower(), place) if mark else (self.bare, scheme)
        shown = f"{scheme}{mark}" if mark else ""
        shown = f"{shown}{place.rpartition('@')[2]}"[:200]
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise GatewayError(self.no_port.format(address=shown)) from error
        if not host or port == 0:
            raise GatewayError(self.no_host.format(address=shown))
        if scheme not in self.ports:
            raise GatewayError(self.unknown_scheme.format(address=shown, host=host, scheme=scheme))
        secure = scheme in self.secure or (tls and self.raised)
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        usual = self.secure_port if secure else self.ports[scheme]
        spoken = next(iter(self.secure if secure else self.plain))
        return Address(spoken, host, port or usual, secure, username, password)


def addresses_of(form: AddressForm, connection: Connection) -> tuple[Address, ...]:
    """Return the addresses of a connection, in the order in which they are tried; all but those over WebSockets.

    Raises:
        GatewayError: one is not an address of this protocol, or all are over WebSockets.
    """
    uris = [uri for uri in connection.uris if not over_websockets(uri)]
    if connection.uris and not uris:
        example = f"{next(iter(form.secure))}://host:{form.secure_port}"
        text = f"{form.protocol} over WebSockets (ws, wss) is not spoken; give an address such as {example}"
        raise GatewayError(text)
    return tuple(form.read(uri, tls=connection.tls is not None) for uri in uris)


def with_login(address: Address, login: BrokerLogin) -> Address:
    """Return an address with the login of the settings, which goes before its own."""
    username = login.username if login.username is not None else address.username
    given = login.username is not None or login.password is not None
    return replace(address, username=username, password=login.password if given else address.password)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a client; it always checks certificates and host names.

    Raises:
        GatewayError: a certificate or key cannot be used; names the file.
    """
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
