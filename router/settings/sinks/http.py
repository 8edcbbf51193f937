"""Sinks of type ``http``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from bindings.protocols import Binding
from bindings.sending import Publisher, Translating
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.logins import tls_of
from router.settings.sinks.contract import Fault
from router.settings.sinks.messages import MessageSink, rival_ways, uri_faults
from router.settings.values import Options, as_text, revealed


class HttpSink(MessageSink):
    """HTTP targets, each message confirmed by a 2xx answer."""

    family = "http"
    address_field = "url"
    template_field = "url"
    schemes = ("http", "https")

    type: Literal["http"] = Field(description="`http`.")
    url: str | None = Field(None, description="URL, or a template such as https://host/events/{messagegroup}/{type}.")
    method: str = Field("POST", description="Method, unless the endpoint or a definition has one.", pattern="^[A-Z]+$")
    headers: Options = Field({}, description="More headers, by name; those that are secret only by reference.")
    bearer: SecretStr | None = Field(None, description="Bearer token, by reference.")
    api_key: SecretStr | None = Field(None, description="API key, by reference, sent in the header `api_key_header`.")
    api_key_header: str = Field("X-API-Key", description="Header of `api_key`.", pattern="^[A-Za-z0-9-]+$")
    version: Annotated[Literal["1.1", "2"], BeforeValidator(as_text)] | None = Field(
        None, description="HTTP version; unset takes HTTP/2 where TLS offers it; 2 without TLS is prior knowledge."
    )
    in_flight: int = Field(8, ge=1, le=256, description="Most requests at a time; those of one partition keep order.")
    webhook_origin: str | None = Field(
        None, description="Our name in the validation handshake of webhooks; unset sends none."
    )

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Headers of every request."""
        return self.headers

    @property
    def taken_headers(self) -> frozenset[str] | None:
        """The headers of the settings."""
        if not self.pass_headers:
            return None
        key = [] if self.api_key is None else [self.api_key_header]
        return frozenset(name.lower() for name in (*self.headers, *key))

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with the URL, and headers that are made from each event."""
        if len(rival_ways(self, "username", "bearer")) > 1:
            yield f"{key}.bearer", "and username both make an Authorization header; keep one"
        if self.url is not None:
            yield from uri_faults(f"{key}.url", self.url.partition("{")[0], self.schemes)
            if self.tls is not None and self.url.lower().startswith("http:"):
                yield f"{key}.tls", "has no use with http://; write https:// or leave out tls"
        for name in self.headers:
            if name.lower().startswith("ce-") or name.lower() in ("content-type", "content-length", "host"):
                yield f"{key}.headers.{name}", "is set from each event; leave it out"

    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return a client; a 2xx answer confirms a message."""
        from bindings.http.poster import HttpPoster, request_of

        login = self.login()
        named = login.username is not None and login.password is not None
        try:
            client = HttpPoster(
                headers=self.own_headers(),
                basic=(login.username or "", login.password or "") if named else None,
                tls=tls_of(self.tls),
                timeout=self.seconds,
                in_flight=self.in_flight,
                version=self.version,
                origin=self.webhook_origin,
            )
        except OSError as error:
            raise SinkError(name, f"cannot use its certificates: {error}", hint="correct tls of the sink") from error
        return Translating(client, partial(request_of, self.method))

    def own_headers(self) -> list[tuple[str, str]]:
        """Return the headers that go with every request; some are secrets."""
        headers = list(revealed(self.headers).items())
        if self.bearer is not None:
            headers.append(("Authorization", f"Bearer {self.bearer.get_secret_value()}"))
        if self.api_key is not None:
            headers.append((self.api_key_header, self.api_key.get_secret_value()))
        return headers
