"""How to reach an AMQP broker, and how other threads hand work to proton's."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from typing import Any, Final

import proton
from proton import SSLDomain, SSLException, symbol
from proton.reactor import ApplicationEvent, Container, EventInjector

from bindings.amqp.binding import AmqpSending, option_map
from bindings.background import Backoff
from bindings.certificates import addresses_of, with_login
from bindings.gateways import Connection, GatewayError, Tls

# How to reach a broker: addresses, TLS, SASL, and the waits between attempts.

HEARTBEAT_SECONDS: Final = 30.0
"""A peer that is silent for so many seconds is gone; both sides send empty frames in between."""
FIRST_WAIT_SECONDS: Final = 0.2
LONGEST_WAIT_SECONDS: Final = 15.0
MAX_REASON: Final = 300


def reconnecting() -> Backoff:
    """Return the pauses between attempts to connect or attach."""
    return Backoff(FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS)


class Dialer:
    """Opens connections to the addresses of one :class:`Connection` in turn.

    SASL: PLAIN with a user name, and without TLS only because the URI says ``amqp``; else EXTERNAL with a client
    certificate; else ANONYMOUS. TLS always checks the chain and the host name.

    Raises:
        GatewayError: a malformed address, or one without TLS where certificates are given, a certificate that cannot be
            read, properties that are no map.
    """

    def __init__(self, connection: Connection, container_id: str) -> None:
        if not connection.uris:
            raise GatewayError("an AMQP connection needs a URI, such as amqps://host; name one in the endpoint")
        self.addresses = tuple(
            with_login(each, connection.login) for each in addresses_of(AmqpSending.form, connection)
        )
        self._container_id = container_id
        self._properties = option_map(connection.options, "connectionproperties")
        self._certified = connection.tls is not None and connection.tls.certificate is not None
        plain = next((address for address in self.addresses if not address.tls), None)
        if connection.tls is not None and plain is not None:
            raise GatewayError(f"tls is set, and {plain.url} is spoken without TLS; write amqps, or leave out tls")
        secure = any(address.tls for address in self.addresses)
        self._domain = _domain(connection.tls or Tls()) if secure else None
        self._attempts = 0
        self.last = ""
        """The address that was dialled last, without credentials."""

    def dial(self, container: Container) -> proton.Connection:
        """Begin to connect to the next address; called on the container's thread.

        Raises:
            OSError: its name cannot be resolved.
        """
        address = self.addresses[self._attempts % len(self.addresses)]
        self._attempts += 1
        self.last = address.url
        # proton resolves it again, and would die of a failure
        socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        mechanism = "PLAIN" if address.username else "ANONYMOUS"
        if not address.username and self._certified and address.tls:
            mechanism = "EXTERNAL"
        return container.connect(
            url=address.url,
            reconnect=False,
            heartbeat=HEARTBEAT_SECONDS,
            ssl_domain=self._domain,
            container_id=self._container_id,
            user=address.username or None,
            password=address.password,
            allowed_mechs=mechanism,
            allow_insecure_mechs=not address.tls,
            properties={symbol(name): value for name, value in self._properties.items()} or None,
        )


def hang_up(container: Container, connection: proton.Connection | None) -> None:
    """End a container's run without waiting for the broker, and close the socket."""
    transport = connection.transport if connection is not None else None
    if transport is not None:
        transport.close_tail()
        transport.close_head()
    container.stop()


def reason_of(*conditions: proton.Condition | None) -> str:
    """Return the first of these conditions as one line, or an empty text."""
    for condition in conditions:
        if condition is not None:
            text = ": ".join(filter(None, (condition.name, condition.description)))
            return " ".join(text.split())[:MAX_REASON]
    return ""


def _domain(tls: Tls) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    try:
        if tls.ca is not None:
            domain.set_trusted_ca_db(str(tls.ca))
        domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    except SSLException as error:
        raise GatewayError(f"the certificates {tls.ca} cannot be read; name a PEM file as ca") from error
    if tls.certificate is None and tls.key is None:
        return domain
    if tls.certificate is None or tls.key is None:
        raise GatewayError("a client certificate needs its key, and the key its certificate; give both, or neither")
    try:
        domain.set_credentials(str(tls.certificate), str(tls.key), None)
    except SSLException as error:
        raise GatewayError(
            f"the client certificate {tls.certificate} with the key {tls.key} cannot be used; both are PEM files"
        ) from error
    return domain


# Messages to the thread of a proton container: the only way in which other threads may touch what it holds.

EVENT: Final = "mail"
"""The handler of the container gets ``on_mail`` when there is something to :meth:`Mailbox.take`."""


class Mailbox:
    """Of one container, for the time that it runs. What is posted after :meth:`close` is dropped.

    Many posts before the container looks cost one wake-up, so that its pipe can never fill and block the posting
    thread.
    """

    def __init__(self) -> None:
        self._injector = EventInjector()
        self._lock = threading.Lock()
        self._waiting: deque[Any] = deque()
        self._signalled = False
        self._closed = False

    def attach(self, container: Container) -> None:
        """Let *container* watch it; called once, on the container's thread."""
        container.selectable(self._injector)

    def post(self, item: Any) -> None:
        """Hand *item* to the container's thread; from any thread."""
        with self._lock:
            if self._closed:
                return
            self._waiting.append(item)
            if not self._signalled:
                self._signalled = True
                self._injector.trigger(ApplicationEvent(EVENT))

    def take(self) -> list[Any]:
        """Return what was posted since the last call, in order."""
        with self._lock:
            self._signalled = False
            items = list(self._waiting)
            self._waiting.clear()
        return items

    def close(self) -> None:
        """Drop what waits and let go of the pipe; called after the container has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.clear()
                for end in self._injector.pipe:
                    os.close(end)
