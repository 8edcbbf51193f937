"""A target that speaks HTTP/2 and nothing else, over TLS, for the sink's ``version: "2"``; our gateway speaks 1.1."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

IDLE_SECONDS = 60.0


@dataclass(slots=True)
class Taken:
    """One request, answered 202."""

    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


class Http2Target:
    """Takes every request, from the time it is entered until it is left; one thread for each connection."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.taken: list[Taken] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._context.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(IDLE_SECONDS)
            try:
                connection = self._context.wrap_socket(plain, server_side=True)
            except OSError:  # A client that does not trust us.
                plain.close()
                continue
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        protocol = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        protocol.initiate_connection()
        requests: dict[int, Taken] = {}
        try:
            connection.sendall(protocol.data_to_send())
            while data := connection.recv(65_536):
                for event in protocol.receive_data(data):
                    if isinstance(event, RequestReceived):
                        requests[event.stream_id] = Taken({str(name): str(value) for name, value in event.headers})
                    elif isinstance(event, DataReceived):
                        requests[event.stream_id].body += event.data
                        protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, StreamEnded):
                        self.taken.append(requests.pop(event.stream_id))
                        protocol.send_headers(event.stream_id, [(":status", "202")], end_stream=True)
                connection.sendall(protocol.data_to_send())
        except OSError:
            return  # The client or the test has ended.
