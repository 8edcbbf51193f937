"""The expiry of our certificates as a metric, broker addresses, and TLS contexts of clients."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bindings.gateways import BrokerLogin, Connection, GatewayError, Tls
from catalog.parsing.regular import read_regular
from catalog.values import is_websocket_address

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]{1,100000}-----END CERTIFICATE-----")
_VALIDITY: Final = re.compile(rb"(?:\x17\r[0-9]{12}|\x18\x0f[0-9]{14})Z(?:\x17\r([0-9]{12})|\x18\x0f([0-9]{14}))Z")
"""Begin and end of a certificate in DER (RFC 5280, 4.1.2.5): years of two or of four digits."""


class CertificateCollector(Collector):
    """Reports when certificates expire, by the settings key that names the file; the first of a chain counts.

    Files of *kept* are read once, as the server that uses them does; files of *renewed* each time.
    """

    def __init__(self, kept: Mapping[str, Path], renewed: Mapping[str, Path] | None = None) -> None:
        self._expiries = _read_expiries(kept)
        self._renewed = dict(renewed or {})

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the metric without values, which registers its name."""
        yield self._create_metric()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the current expiry times; an unreadable file has none."""
        family = self._create_metric()
        for key, end in {**self._expiries, **_read_expiries(self._renewed)}.items():
            family.add_metric([key], end)
        yield family

    @staticmethod
    def _create_metric() -> GaugeMetricFamily:
        text = "When a certificate of this router expires, in seconds since 1970."
        return GaugeMetricFamily("xrouter_certificate_end_timestamp_seconds", text, labels=["certificate"])


def parse_expiry(pem: str) -> float:
    """Return when the first certificate of a PEM text expires, in seconds since 1970.

    Raises:
        ValueError: it has none, or it is malformed.
    """
    block = _PEM.search(pem)
    # The standard library only gives the expiry of a peer's certificate.
    validity = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(block[0])) if block is not None else None
    if validity is None:
        raise ValueError("no certificate found")
    short, long = validity.groups()
    text = (long or (b"19" if short >= b"50" else b"20") + short).decode("ascii")
    return datetime.strptime(text, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()


def _read_expiries(files: Mapping[str, Path]) -> dict[str, float]:
    expiries: dict[str, float] = {}
    for key, path in files.items():
        # The server that uses the certificate reports what is wrong with it.
        with contextlib.suppress(OSError, ValueError):
            expiries[key] = parse_expiry(read_regular(path).decode("ascii", "replace"))
    return expiries


# Addresses of brokers and servers: how each protocol writes them, and how to split one into server, TLS and login.
#
# Kafka has its own form: :mod:`bindings.kafka.binding`.


@dataclass(frozen=True, slots=True)
class Address:
    """A server and our login there; ``scheme`` says whether TLS is used. The text form leaves the login out."""

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
    """How a protocol writes addresses: ports by scheme, without TLS (``plain_ports``) and with it (``secure_ports``).

    ``default_scheme`` is the scheme of an address without one; if empty, a scheme is required. With
    ``upgrades_to_tls``, TLS settings make plain addresses use TLS: a login that was meant to be protected must not be
    sent in the clear. The texts say what is wrong with an address; ``{address}`` in them is without login.
    """

    protocol: str
    plain_ports: Mapping[str, int]
    secure_ports: Mapping[str, int]
    unknown_scheme: str = ""
    no_port: str = ""
    no_host: str = ""
    default_scheme: str = ""
    upgrades_to_tls: bool = False

    @property
    def ports(self) -> Mapping[str, int]:
        """The default port of each scheme."""
        return {**self.plain_ports, **self.secure_ports}

    @property
    def secure_port(self) -> int:
        """The default port for TLS."""
        return next(iter(self.secure_ports.values()))

    def is_plain(self, address: str, *, tls: bool) -> bool:
        """Whether a connection to *address* would not use TLS; *tls* is whether TLS is configured."""
        scheme = address.partition("://")[0].lower() if "://" in address else self.default_scheme
        return scheme in self.plain_ports and not (tls and self.upgrades_to_tls)

    def parse_address(self, uri: str, *, tls: bool) -> Address:
        """Split an address; *tls* is whether TLS is configured.

        Raises:
            GatewayError: it is not an address of this protocol.
        """
        scheme, mark, place = uri.strip().partition("://")
        scheme, place = (scheme.lower(), place) if mark else (self.default_scheme, scheme)
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
        secure = scheme in self.secure_ports or (tls and self.upgrades_to_tls)
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password is not None else None
        usual = self.secure_port if secure else self.ports[scheme]
        spoken = next(iter(self.secure_ports if secure else self.plain_ports))
        return Address(spoken, host, port or usual, secure, username, password)


def parse_addresses(form: AddressForm, connection: Connection) -> tuple[Address, ...]:
    """Return the addresses of a connection in the order in which they are tried, without those over WebSockets.

    Raises:
        GatewayError: one is not an address of this protocol, or all are over WebSockets.
    """
    uris = [uri for uri in connection.uris if not is_websocket_address(uri)]
    if connection.uris and not uris:
        example = f"{next(iter(form.secure_ports))}://host:{form.secure_port}"
        text = f"{form.protocol} over WebSockets (ws, wss) is not supported; use an address such as {example}"
        raise GatewayError(text)
    return tuple(form.parse_address(uri, tls=connection.tls is not None) for uri in uris)


def with_login(address: Address, login: BrokerLogin) -> Address:
    """Return an address with the login of the settings in place of its own."""
    username = login.username if login.username is not None else address.username
    given = login.username is not None or login.password is not None
    return replace(address, username=username, password=login.password if given else address.password)


def create_tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a client; it always verifies certificates and host names.

    Raises:
        GatewayError: a certificate or key cannot be used; the text names the file.
    """
    if tls.key is not None and tls.certificate is None:
        raise GatewayError(f"key {tls.key} has no certificate; set both, or neither")
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as error:
        raise GatewayError(f"certificate authority {tls.ca} cannot be read: {error}") from error
    if tls.certificate is not None:
        try:
            # An empty password: an encrypted key fails here instead of prompting on the terminal.
            context.load_cert_chain(tls.certificate, tls.key, password="")
        except (OSError, ValueError) as error:
            pair = f"certificate {tls.certificate} with key {tls.key or tls.certificate}"
            raise GatewayError(f"{pair} cannot be used: {error}; both must be PEM, the key unencrypted") from error
    return context


def find_system_authorities() -> str | None:
    """Return the path of this system's certificate authorities; None if there are none.

    For libraries that would use their own, or those of the system on which they were built.
    """
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath
