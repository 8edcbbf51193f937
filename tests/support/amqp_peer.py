"""AMQP peers without a broker, for what no broker does: one settles what it sends, and sends what is no message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from proton import Link
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support.ports import LOOPBACK, free_ports

SECONDS = 120.0


class Listener(MessagingHandler):
    """Listens at a free port; a subclass says what it does with those who connect."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        (port,) = free_ports(1)
        self.address = f"{LOOPBACK}:{port}"
        self.listening = threading.Event()
        self.acceptor: Any = None

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen(self.address)
        self.listening.set()


L = TypeVar("L", bound=Listener)


class Serving(Generic[L]):
    """Runs a listener on a thread of its own while the context lasts; ``end`` makes it end where nothing else does."""

    def __init__(self, listener: L, end: Callable[[], None] = lambda: None) -> None:
        self.uri = f"amqp://{listener.address}"
        self._listener = listener
        self._end = end
        self._thread = threading.Thread(target=Container(listener).run, name="amqp-peer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listener.listening.wait(SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._thread.join(SECONDS)


class _Sender(Listener):
    def __init__(self, payloads: Sequence[bytes], settled: bool) -> None:
        super().__init__()
        self._payloads, self._settled = list(payloads), settled
        self.outcomes: list[str] = []

    def on_link_opening(self, event: Any) -> None:
        if event.link.is_sender:
            event.link.source.address = event.link.remote_source.address
            event.link.snd_settle_mode = Link.SND_SETTLED if self._settled else Link.SND_UNSETTLED

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._payloads:
            delivery = event.sender.delivery(str(len(self._payloads)))
            event.sender.stream(self._payloads.pop(0))
            event.sender.advance()
            if self._settled:
                delivery.settle()

    def on_accepted(self, event: Any) -> None:
        self.outcomes.append("accepted")

    def on_rejected(self, event: Any) -> None:
        self.outcomes.append("rejected")

    def on_released(self, event: Any) -> None:
        self.outcomes.append("released")

    def on_connection_closed(self, event: Any) -> None:
        self.acceptor.close()


class Peer(Serving[_Sender]):
    """Serves one client, and sends it *payloads* as they are."""

    def __init__(self, payloads: Sequence[bytes], *, settled: bool) -> None:
        super().__init__(_Sender(payloads, settled))

    @property
    def outcomes(self) -> list[str]:
        """What the client said of the messages, in order."""
        return list(self._listener.outcomes)
