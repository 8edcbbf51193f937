"""An AMQP peer that accepts messages, and ends the connection at some: what a broker does that cannot read one."""

from __future__ import annotations

from typing import Any

from proton import Condition
from proton.reactor import ApplicationEvent, EventInjector

from tests.support.amqp_peer import Listener, Serving

SILENT = b"end without a word"
TOLD = b"end with a condition"


class _Receiver(Listener):
    def __init__(self) -> None:
        super().__init__(auto_accept=False)
        self._connections: list[Any] = []
        self._injector = EventInjector()
        self.taken: list[bytes] = []

    def end(self) -> None:
        self._injector.trigger(ApplicationEvent("over"))

    def on_start(self, event: Any) -> None:
        event.container.selectable(self._injector)
        super().on_start(event)

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
        self.acceptor.close()
        self._injector.close()
        for connection in self._connections:
            _hang_up(connection)


def _hang_up(connection: Any) -> None:
    if connection.transport is not None:
        connection.transport.close_tail()
        connection.transport.close_head()


class ChoosyPeer(Serving[_Receiver]):
    """Accepts messages until the context ends."""

    def __init__(self) -> None:
        receiver = _Receiver()
        super().__init__(receiver, receiver.end)

    @property
    def taken(self) -> list[bytes]:
        """The bodies of the messages that it accepted, in order."""
        return list(self._listener.taken)
