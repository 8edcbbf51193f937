"""The AMQP 1.0 gateway: receives from nodes of one broker, stores in the inbox, and then accepts (bindings.gateways).

What a broker may rely on: a message is settled as ``accepted`` only after the store said that it survives a crash. A
message is ``released`` when the store has no room or the gateway stops; whatever is not settled when the connection is
lost is the broker's to deliver again. A sender that settled before (at most once) is served as well as can be: what it
sent is kept in memory while the store takes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from bindings.amqp.binding import check_options
from bindings.amqp.client import Dialer, reconnecting
from bindings.amqp.connection import ReceivingConnection, Replace, Shared, Stop
from bindings.gateways import EndpointSubscription, GatewayConfig

_JOIN_SECONDS: Final = 10.0

_logger = logging.getLogger(__name__)


class AmqpGateway:
    """Takes the messages of some nodes; started once, stopped once. A ``bindings.gateways.Gateway``.

    Raises:
        GatewayError: the connection or a subscription has something that waiting does not repair.
    """

    def __init__(self, terms: GatewayConfig) -> None:
        self._terms = terms
        self._subscriptions = tuple(terms.subscriptions)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._grace = 0.0
        self._connection: ReceivingConnection | None = None
        self._shared: Shared | None = None
        self._thread: threading.Thread | None = None
        self._failure = ""

    @property
    def connected(self) -> bool:
        """Whether the broker serves all subscriptions now."""
        return self._shared is not None and self._shared.connected

    @property
    def alive(self) -> bool:
        """Whether it runs; False before the start, after the stop, and after a fault of its own."""
        return self._thread is not None and self._thread.is_alive() and not self._failure

    @property
    def trouble(self) -> str:
        """What keeps it from taking messages, in one line; empty when nothing does."""
        return self._failure or (self._shared.trouble if self._shared is not None else "")

    def start(self) -> None:
        """Begin to connect, and return at once.

        Raises:
            GatewayError: an address, certificate, node or option that waiting does not repair.
        """
        for subscription in self._subscriptions:
            check_options(subscription)
        self._shared = Shared(Dialer(self._terms.connection, self._terms.client_id), self._terms)
        self._thread = threading.Thread(target=self._run, args=(self._shared,), name="amqp-gateway", daemon=True)
        self._thread.start()

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other subscriptions from now on; what is in flight is finished.

        Raises:
            GatewayError: one of them can never work; the old ones stay.
        """
        for subscription in subscriptions:
            check_options(subscription)
        with self._lock:
            self._subscriptions = tuple(subscriptions)
            if self._connection is not None:
                self._connection.mailbox.post(Replace(self._subscriptions))

    def stop(self, grace: float) -> None:
        """Take nothing more, finish what is in flight for up to *grace* seconds, and disconnect.

        What is not stored by then is released to the broker. Does nothing when not running.
        """
        thread = self._thread
        if thread is None:
            return
        with self._lock:
            self._grace = grace
            self._stopped.set()
            if self._connection is not None:
                self._connection.mailbox.post(Stop(grace))
        thread.join(grace + _JOIN_SECONDS)
        if thread.is_alive():
            _logger.warning("the AMQP gateway did not end within %s s; its broker takes back what it holds", grace)

    def _run(self, shared: Shared) -> None:
        backoff = reconnecting()
        try:
            while not self._stopped.is_set():
                with self._lock:
                    connection = self._connection = ReceivingConnection(shared, self._subscriptions)
                    if self._stopped.is_set():
                        break
                connection.live()
                if self._stopped.is_set():
                    break
                if shared.opened:
                    backoff.reset()
                wait = backoff.pause()
                _logger.warning("AMQP connection: %s; trying again in %.1f s", shared.trouble, wait)
                self._stopped.wait(wait)
        except Exception as error:
            # A fault of this module; whoever watches `alive` and `trouble` decides.
            self._failure = f"the AMQP gateway ended by a fault of its own: {type(error).__name__}: {error}"
            _logger.exception("the AMQP gateway ended")
        finally:
            shared.connected = False
            if shared.kept:
                _logger.error("%s messages that their sender had settled are lost", len(shared.kept))
