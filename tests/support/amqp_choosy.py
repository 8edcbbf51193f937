"""An AMQP peer that accepts messages, and ends the connection at some: what a broker does that cannot read one."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from proton import Condition
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector

from tests.support.ports import LOOPBACK, free_ports

SECONDS = 120.0
SILENT = b"end without a word"
TOLD = b"end with a condition"


class _Handler(MessagingHandler):
    def __init__(self, port: int) -> None:
        super().__init__(auto_accept=False)
        self._port = port
        self._acceptor: Any = None
        self._connections: list[Any] = []
        self.injector = EventInjector()
        self.listening = threading.Event()
        self.taken: list[bytes] = []

    def on_start(self, event: Any) -> None:
        event.container.selectable(self.injector)
        self._acceptor = event.container.listen(f"{LOOPBACK}:{self._port}")
        self.listening.set()

    def on_connection_opening(self, event: Any) -> None:
        self._connections.append(event.connection)

    def on_link_opening(self, event: Any) -> None:
        event.link.target.address = event.link.remote_target.address

    def on_message(self, event: Any) -> None:
        body = bytes(event.message.body or b"")
        if body == TOLD:
            event.connection.condition = Condition("amqp:decode-error", "no message at all")
            event.connection.close()
        elif body == SILENT:
            _hang_up(event.connection)
        else:
            self.taken.append(body)
            self.accept(event.delivery)

    def on_over(self, event: Any) -> None:
        self._acceptor.close()
        self.injector.close()
        for connection in self._connections:
            _hang_up(connection)


def _hang_up(connection: Any) -> None:
    if connection.transport is not None:
        connection.transport.close_tail()
        connection.transport.close_head()


class ChoosyPeer:
    """Listens while the context lasts."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        self.uri = f"amqp://{LOOPBACK}:{port}"
        self._handler = _Handler(port)
        self._thread = threading.Thread(target=Container(self._handler).run, name="choosy-peer", daemon=True)

    @property
    def taken(self) -> list[bytes]:
        """The bodies of the messages that it accepted, in order."""
        return list(self._handler.taken)

    def __enter__(self) -> ChoosyPeer:
        self._thread.start()
        assert self._handler.listening.wait(SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handler.injector.trigger(ApplicationEvent("over"))
        self._thread.join(SECONDS)
