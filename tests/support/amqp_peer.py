"""An AMQP peer without a broker, for what no broker does: it settles what it sends, and sends what is no message."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from proton import Link
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.support.ports import LOOPBACK, free_ports

SECONDS = 120.0


class _Handler(MessagingHandler):
    def __init__(self, port: int, payloads: Sequence[bytes], settled: bool) -> None:
        super().__init__()
        self._port, self._payloads, self._settled = port, list(payloads), settled
        self.listening = threading.Event()
        self.outcomes: list[str] = []
        self._acceptor: Any = None

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen(f"{LOOPBACK}:{self._port}")
        self.listening.set()

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
        self._acceptor.close()


class Peer:
    """Listens while the context lasts, serves one client, and sends it *payloads* as they are."""

    def __init__(self, payloads: Sequence[bytes], *, settled: bool) -> None:
        (port,) = free_ports(1)
        self.uri = f"amqp://{LOOPBACK}:{port}"
        self._handler = _Handler(port, payloads, settled)
        self._thread = threading.Thread(target=Container(self._handler).run, name="amqp-peer", daemon=True)

    @property
    def outcomes(self) -> list[str]:
        """What the client said of the messages, in order."""
        return list(self._handler.outcomes)

    def __enter__(self) -> Peer:
        self._thread.start()
        assert self._handler.listening.wait(SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(SECONDS)
