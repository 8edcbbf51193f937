"""Connect to an AMQP broker, and pass work from other threads to proton's thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import proton
from proton import UNDESCRIBED, Array, Data, SSLDomain, SSLException, symbol
from proton.reactor import ApplicationEvent, AtLeastOnce, Container, EventInjector

from bindings.amqp.binding import AmqpSending, read_string_map
from bindings.background import Backoff
from bindings.certificates import parse_addresses, with_login
from bindings.gateways import Connection, GatewayError, Tls, to_line

# Connecting to a broker: addresses, TLS, SASL, and the pauses between attempts.

HEARTBEAT_SECONDS: Final = 30.0
"""A peer that is silent for this long is considered gone; both sides send empty frames in between."""


def create_backoff() -> Backoff:
    """Return a new backoff for attempts to connect or attach."""
    return Backoff(0.2, 15.0)


class Dialer:
    """Opens connections to the addresses of one :class:`Connection` in turn.

    SASL: PLAIN with a user name (without TLS only if the URI says ``amqp``), else EXTERNAL with a client certificate,
    else ANONYMOUS. TLS always verifies the certificate chain and the host name.

    Raises:
        GatewayError: a malformed address, one without TLS although certificates are configured, an unreadable
            certificate, or properties that are not a map.
    """

    def __init__(self, connection: Connection, container_id: str) -> None:
        if not connection.uris:
            raise GatewayError("an AMQP connection needs a URI, such as amqps://host; set one in the endpoint")
        self.addresses = tuple(
            with_login(each, connection.login) for each in parse_addresses(AmqpSending.address_form, connection)
        )
        self._container_id = container_id
        self._properties = read_string_map(connection.options, "connectionproperties")
        self._certified = connection.tls is not None and connection.tls.certificate is not None
        plain = next((address for address in self.addresses if not address.tls), None)
        if connection.tls is not None and plain is not None:
            raise GatewayError(f"tls is set, but {plain.url} does not use TLS; write amqps, or remove tls")
        secure = any(address.tls for address in self.addresses)
        self._ssl_domain = _create_ssl_domain(connection.tls or Tls()) if secure else None
        self._attempts = 0
        self.last_url = ""
        """The address dialled last, without credentials."""

    def dial(self, container: Container) -> proton.Connection:
        """Start connecting to the next address; called on the container's thread.

        Raises:
            OSError: its name cannot be resolved.
        """
        address = self.addresses[self._attempts % len(self.addresses)]
        self._attempts += 1
        self.last_url = address.url
        # proton resolves the name again, and an error there would end its thread
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        mechanism = "PLAIN" if address.username else "ANONYMOUS"
        if not address.username and self._certified and address.tls:
            mechanism = "EXTERNAL"
        return container.connect(
            url=address.url,
            reconnect=False,
            heartbeat=HEARTBEAT_SECONDS,
            ssl_domain=self._ssl_domain,
            container_id=self._container_id,
            user=address.username or None,
            password=address.password,
            allowed_mechs=mechanism,
            allow_insecure_mechs=not address.tls,
            properties={symbol(name): value for name, value in self._properties.items()} or None,
        )


def abort_connection(container: Container, connection: proton.Connection | None) -> None:
    """Stop a container without waiting for the broker, and close the socket."""
    transport = connection.transport if connection is not None else None
    if transport is not None:
        transport.close_tail()
        transport.close_head()
    container.stop()


def condition_text(*conditions: proton.Condition | None) -> str:
    """Return the first condition as one line of text; empty if there is none."""
    for condition in conditions:
        if condition is not None:
            return to_line(": ".join(filter(None, (condition.name, condition.description))))
    return ""


def symbols(names: Iterable[str]) -> Array:
    """Return an array of symbols."""
    return Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, names))  # type: ignore[arg-type]  # proton's own constant


class LinkModes(AtLeastOnce):
    """Delivery at least once: the receiver settles first (AMQP part 2, 2.6.12). A peer that insists on it may do so.

    The peer gets the option ``link-properties`` with the link.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._properties = read_string_map(options, "linkproperties")

    def apply(self, link: proton.Link) -> None:
        super().apply(link)
        if self._properties:
            link.properties = {symbol(name): value for name, value in self._properties.items()}


def _create_ssl_domain(tls: Tls) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    try:
        if tls.ca is not None:
            domain.set_trusted_ca_db(str(tls.ca))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    except SSLException as error:
        raise GatewayError(f"the certificates {tls.ca} cannot be read; set ca to a PEM file") from error
    if tls.certificate is None and tls.key is None:
        return domain
    if tls.certificate is None or tls.key is None:
        raise GatewayError("a client certificate needs a key, and a key needs a certificate; set both, or neither")
    try:
        domain.set_credentials(str(tls.certificate), str(tls.key), None)
    except SSLException as error:
        raise GatewayError(
            f"the client certificate {tls.certificate} with the key {tls.key} cannot be used; both must be PEM files"
        ) from error
    return domain


# Messages to a proton container's thread. Other threads must not use the container's objects directly.


class Mailbox:
    """The mailbox of one container, whose handler gets each item as ``subject`` of an event ``on_mail``.

    Items posted after :meth:`close` are dropped.
    """

    def __init__(self) -> None:
        self._injector = EventInjector()
        self._lock = threading.Lock()
        self._closed = False

    def attach(self, container: Container) -> None:
        """Register the mailbox with *container*; called once, on the container's thread."""
        container.selectable(self._injector)

    def post_item(self, item: Callable[[], None]) -> None:
        """Pass *item* to the container's thread; callable from any thread."""
        with self._lock:
            if not self._closed:
                self._injector.trigger(ApplicationEvent("mail", subject=item))

    def close(self) -> None:
        """Close the pipe; called once, after the container has ended."""
        with self._lock:
            self._closed = True
            for end in self._injector.pipe:
                os.close(end)
