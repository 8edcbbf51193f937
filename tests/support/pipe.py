"""A sixth protocol, as a folder of ``bindings/`` would hold it: PIPE, which is lines of JSON over TCP, with answers.

A message goes to a *pipe*; its headers carry CloudEvents attributes under ``ce_``. The answer is ``ok``, or why the
message will never be taken; a connection that ends says that the message is to be sent again.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import eq
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from pydantic import Field

from bindings.certificates import AddressForm
from bindings.envelope import AttributeRule
from bindings.gateways import EndpointSubscription, GatewayConfig, ReceivingBinding, templates_of
from bindings.parts import InboxRow, NativeForm, native_of, parts_of
from bindings.protocols import BINDINGS, Binding
from bindings.sending import MessageRefusal, Outbound, Publisher, SendingBinding, Unsettled, headers_of
from catalog.model import Catalog, Endpoint
from catalog.protocols import properties
from router.settings.sinks.messages import MessageSink
from router.settings.values import Texts
from tests.support.kinds import registered

PROTOCOL = "PIPE"
FORM = NativeForm(lists=("headers",))
RULE = AttributeRule(prefixes=("headers.ce_",), content_type="headers.content-type")


class PipeSending(SendingBinding):
    """An address is the name of a pipe: words between slashes."""

    family = "pipe"
    literal = (re.compile(r"[a-z/-]*"), "letters, '-' and '/'")
    whole = (re.compile(r"[A-Za-z0-9._%-]+(?:/[A-Za-z0-9._%-]+)*"), "a pipe has words between slashes")
    most_bytes = 100
    address = "pipe"
    by_channel = frozenset({"pipe"})
    form = AddressForm("PIPE", {"pipe": 1}, {})


class PipePublisher:
    """Keeps :data:`~bindings.sending.Publisher`, over a connection for each call."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._place = (host, port)
        self._timeout = timeout

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and read an answer for each."""
        settled: dict[int, MessageRefusal | None] = {}
        try:
            with (
                socket.create_connection(self._place, self._timeout) as connection,
                connection.makefile("rwb") as lines,
            ):
                for place, message in enumerate(messages):
                    lines.write(json.dumps(_form(message)).encode() + b"\n")
                    lines.flush()
                    answer = lines.readline().decode().strip()
                    if not answer:
                        raise Unsettled("the other end of the pipe is gone", settled)
                    settled[place] = None if answer == "ok" else MessageRefusal(answer)
        except OSError as error:
            raise Unsettled(f"nobody is at the other end of the pipe: {error}", settled) from error
        return [settled[place] for place in range(len(messages))]

    def close(self) -> None:
        """Nothing is kept open between two calls."""


class PipeGateway:
    """Keeps :class:`~bindings.gateways.Gateway`: names its pipes, and answers each message once it is stored."""

    def __init__(self, terms: GatewayConfig) -> None:
        self._uri = urlsplit(terms.connection.uris[0])
        self._pipes = {each.address: each.endpoint for each in terms.subscriptions}
        self._store = terms.store
        self._counters = terms.counters
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.trouble = ""

    @property
    def alive(self) -> bool:
        """Whether the far end is still there."""
        return self._thread.is_alive()

    connected = alive

    def start(self) -> None:
        """Connect."""
        self._thread.start()

    def replace(self, subscriptions: Sequence[EndpointSubscription]) -> None:
        """Take other pipes."""
        self._pipes = {each.address: each.endpoint for each in subscriptions}

    def stop(self, grace: float) -> None:
        """Wait for the far end to have said all."""
        self._thread.join(grace)

    def _serve(self) -> None:
        place = (self._uri.hostname or "", self._uri.port or 0)
        with socket.create_connection(place) as peer, peer.makefile("rwb") as lines:
            lines.write(json.dumps({"pipe": ",".join(self._pipes)}).encode() + b"\n")
            lines.flush()
            for line in lines:
                message = json.loads(line)
                endpoint = self._pipes[message["pipe"]]
                self._counters.received(endpoint)
                parts = parts_of({"pipe": message["pipe"], "headers": message["headers"]}, FORM)
                row = InboxRow(endpoint, PROTOCOL, 0, parts, base64.b64decode(message["body"]))
                self._store.append_many([row]).result()
                lines.write(b"ok\n")
                lines.flush()
                self._counters.acknowledged(endpoint)


def _pipes(endpoint: Endpoint, catalog: Catalog) -> tuple[str, ...]:
    return tuple(text for text in templates_of(endpoint, catalog, "pipe") if "{" not in text)


class PipeSink(MessageSink):
    """Pipes at one address."""

    family = "pipe"
    template_field = "pipe"
    schemes = ("pipe",)

    type: Literal["pipe"] = Field(description="`pipe`.")
    uri: Texts = Field((), description="Address such as pipe://host:1.")
    pipe: str | None = Field(None, description="Pipe, or a template.")

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client."""
        place = urlsplit(self.connection(name, endpoint).uris[0])
        return PipePublisher(place.hostname or "", place.port or 0, self.seconds)


def _form(message: Outbound) -> Mapping[str, Any]:
    headers = [{"name": name, "value": part.text} for name, part in headers_of(message.parts)]
    body = base64.b64encode(message.body or b"").decode()
    return {"pipe": message.address, "headers": headers, "body": body}


@contextmanager
def spoken() -> Iterator[None]:
    """Add the protocol for the time of the block: a line in each of three lists."""
    binding = Binding(
        PROTOCOL,
        partial(parts_of, form=FORM),
        partial(native_of, form=FORM),
        RULE,
        PipeSending(),
        ReceivingBinding(_pipes, eq, PipeGateway),
        versioned=True,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(BINDINGS, PROTOCOL, binding)
        table = properties.VOCABULARIES
        assert isinstance(table, dict)
        patched.setitem(table, PROTOCOL, properties.Vocabulary({"pipe": "uritemplate"}, ("headers",)))
        with registered(PipeSink):
            yield


@contextmanager
def far_end(
    answers: Mapping[str, str], gives: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Serve a far end; yields its address and what it got.

    *answers* are those of single pipes, ``ok`` of others. With *gives* it sends these to whoever takes pipes.
    """
    got: list[Mapping[str, Any]] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                got.append(json.loads(line))
                for message in gives:
                    self.wfile.write(json.dumps(message).encode() + b"\n")
                    got.append({"answer": self.rfile.readline().decode().strip()})
                if gives:
                    return
                self.wfile.write(answers.get(got[-1]["pipe"], "ok").encode() + b"\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"pipe://127.0.0.1:{server.server_address[1]}", got
        finally:
            server.shutdown()


def record_of(message: Mapping[str, Any]) -> bytes:
    """Return what a far end got as a line for ``match``."""
    native = {"pipe": message["pipe"], "headers": message["headers"]}
    return json.dumps({"protocol": PROTOCOL, "native": native, "body_base64": message["body"]}).encode()
