"""Honest HTTP senders that keep their connections, repeat what was not answered, and note how long they waited."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections import Counter
from typing import Final

PAUSE_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 60.0


class HonestSenders:
    """Threads that send numbered events, one after the other each, until they are stopped.

    ``worst`` is the longest wait for an answer in seconds, with all reconnecting and repeating in it. ``confirmed`` are
    the ids that were answered 202.
    """

    def __init__(self, port: int, key: str, *, tls: ssl.SSLContext | None, count: int = 4) -> None:
        self._port = port
        self._key = key
        self._tls = tls
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.worst = 0.0
        self.confirmed: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.reconnects = 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after what is under way; what nobody answers is given up."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_SECONDS)
            assert not thread.is_alive(), "a sender waits for an answer"

    def _run(self, number: int) -> None:
        connection = self._connection()
        sent = 0
        while not self._stop.wait(PAUSE_SECONDS):
            sent += 1
            event = f"{number}-{sent}"
            began = time.monotonic()
            while True:
                try:
                    status = self._post(connection, event)
                    break
                except (OSError, http.client.HTTPException):
                    connection.close()
                    connection = self._connection()
                    with self._lock:
                        self.reconnects += 1
                    if self._stop.wait(PAUSE_SECONDS):
                        return  # not answered, and nobody waits any more
            with self._lock:
                self.worst = max(self.worst, time.monotonic() - began)
                self.statuses[status] += 1
                if status == 202:
                    self.confirmed.append(event)
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, event: str) -> int:
        headers = {
            "X-Api-Key": self._key,
            "ce-specversion": "1.0",
            "ce-id": event,
            "ce-source": "/honest",
            "ce-type": "honest",
            "content-type": "text/plain",
        }
        connection.request("POST", "/events", body=event, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS, context=self._tls)
