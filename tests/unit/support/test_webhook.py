"""The webhook of the tests says nothing of clients that leave, and prints a fault of its own."""

from __future__ import annotations

import socket
import struct
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import wait_until
from tests.support.web import Answer, Taken, Webhook

REQUEST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"


def ask_and_reset(hook: Webhook) -> None:
    """Send a request and leave at once, by a reset, so that the answer cannot be written."""
    with socket.create_connection(("127.0.0.1", urlsplit(hook.url).port or 0), 30) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(REQUEST)
        wait_until(lambda: hook.seen, 30, "the request")


def test_a_client_that_leaves_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    # Far more than the buffers of both sockets hold.
    with Webhook(lambda request: Answer(body=bytes(50_000_000))) as hook:
        ask_and_reset(hook)
    assert capfd.readouterr().err == ""


def test_a_fault_of_a_test_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: Taken) -> Answer:
        raise ValueError("a fault of the test")

    with Webhook(fail) as hook, socket.create_connection(("127.0.0.1", urlsplit(hook.url).port or 0), 30) as client:
        client.sendall(REQUEST)
        assert client.recv(10) == b""
    assert "ValueError: a fault of the test" in capfd.readouterr().err
