"""Messages to HTTP: the CloudEvents HTTP binding, by :mod:`bindings.http.poster`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bindings.http.poster import HttpPoster, OutRequest, PostError
from router.errors import SinkError
from router.settings.model import HttpSink
from router.settings.values import revealed
from router.sinks.messages.connecting import tls_of
from router.sinks.messages.events import Outbound
from router.sinks.messages.sink import TargetDown, reason_of

_HEADERS: Final = "headers."
_METHOD: Final = "method"


class HttpTarget:
    """Keeps :class:`~router.sinks.messages.sink.Target`."""

    def __init__(self, name: str, settings: HttpSink) -> None:
        basic = None
        if settings.username is not None and settings.password is not None:
            basic = (settings.username, settings.password.get_secret_value())
        try:
            self._poster = HttpPoster(
                headers=headers_of(settings),
                basic=basic,
                tls=tls_of(settings.tls),
                timeout=settings.timeout.total_seconds(),
                in_flight=settings.in_flight,
                version=settings.version,
                origin=settings.webhook_origin,
            )
        except OSError as error:
            raise SinkError(name, f"cannot use its certificates: {error}", hint="correct tls of the sink") from error
        self._method = settings.method

    def send(self, messages: Sequence[Outbound]) -> list[str | None]:
        """Send each message as one request; 2xx confirms it.

        Raises:
            TargetDown: a target takes nothing now.
        """
        try:
            return [reason_of(settled) for settled in self._poster.send([self.request(each) for each in messages])]
        except PostError as error:
            raise TargetDown.by(error) from error

    def request(self, message: Outbound) -> OutRequest:
        """Return the request for a message."""
        headers = tuple(
            (part.key.removeprefix(_HEADERS), part.value or b"")
            for part in message.parts
            if part.key.startswith(_HEADERS)
        )
        method = next((part.text for part in message.parts if part.key == _METHOD), None)
        return OutRequest(message.address, headers, message.body, method or self._method, message.lane)

    def close(self) -> None:
        """Disconnect."""
        self._poster.close()


def headers_of(settings: HttpSink) -> list[tuple[str, str]]:
    """Return the headers that go with every request; some are secrets."""
    made = list(revealed(settings.headers).items())
    if settings.bearer is not None:
        made.append(("Authorization", f"Bearer {settings.bearer.get_secret_value()}"))
    if settings.api_key is not None:
        made.append((settings.api_key_header, settings.api_key.get_secret_value()))
    return made
