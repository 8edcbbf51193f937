"""What the sinks of all message protocols but Kafka have in common."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from router.settings.addresses import parse_address
from router.settings.logins import PLAIN_TEXT, TlsSettings
from router.settings.names import NameTemplateError
from router.settings.routes import MISSING_TEXT, Missing
from router.settings.sinks.contract import Fault, RemoteSink
from router.settings.values import ENDPOINT, Duration, Size

ENDPOINT_TEXT: Final = (
    "A `producer` endpoint of the catalog; its address, options and definitions then shape what is sent."
)
MOST_TEXT: Final = "Most distinct destinations since the router's start; past them `sink-rejected`."
EITHER: Final = "and endpoint exclude each other; leave out one"


class MessageSink(RemoteSink):
    """What the sinks of all message protocols but Kafka have in common: at least once, each message confirmed."""

    endpoint: str | None = Field(None, description=ENDPOINT_TEXT, pattern=ENDPOINT)
    mode: Literal["binary", "structured"] | None = Field(
        None, description="CloudEvents content mode; unset is what definition and endpoint ask for, else binary."
    )
    lineage: bool = Field(True, description="Whether `xrouter-*` properties are added where the mode has properties.")
    pass_headers: bool = Field(
        True,
        description="Whether headers that were no attributes of the event are passed on, where the target has any.",
    )
    max_destinations: int = Field(10_000, ge=1, description=MOST_TEXT)
    missing: Missing = Field("placeholder", description=MISSING_TEXT)
    username: str | None = Field(None, description="User name at the target.")
    password: SecretStr | None = Field(None, description="Password, by reference: `${VAR}` or `file:/path`.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates; `{}` is TLS with the system's authorities.")
    timeout: Duration = Field(timedelta(seconds=30), gt=timedelta(0), description="Longest wait for a confirmation.")
    max_body: Size | None = Field(
        None,
        ge=1,
        description="Largest body sent, for targets that cannot say theirs; a larger one is `sink-rejected`.",
    )

    schemes: ClassVar[tuple[str, ...]]
    """What addresses may begin with."""

    @property
    def content_mode(self) -> Literal["binary", "structured"] | None:
        """The mode of the settings."""
        return self.mode

    @property
    def taken_headers(self) -> frozenset[str] | None:
        """Nothing, or None where no headers are passed on."""
        return frozenset() if self.pass_headers else None

    @property
    def body_limit(self) -> int | None:
        """The limit of the settings."""
        return self.max_body

    @property
    def seconds(self) -> float:
        """The longest wait for a confirmation."""
        return self.timeout.total_seconds()

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what is wrong with destination and addresses."""
        field = f"{key}.{self.template_field}"
        if not self.has_template and self.endpoint is None:
            yield field, "is required; add it, or name a producer endpoint"
        if self.has_template and self.endpoint is not None:
            yield field, EITHER
        if self.has_template:
            try:
                parse_address(self.template, self.sending)
            except NameTemplateError as error:
                yield field, str(error)
        yield from self.address_faults(key)

    def address_faults(self, key: str) -> Iterator[Fault]:
        """Yield what is wrong with the addresses of the server."""
        if not self.own_addresses and self.endpoint is None:
            yield f"{key}.uri", "is required; add the broker's address, or name a producer endpoint"
        for uri in self.own_addresses:
            yield from uri_faults(f"{key}.uri", uri, self.schemes)

    @property
    def has_template(self) -> bool:
        """Whether the settings say the destination."""
        return getattr(self, self.template_field) is not None


def rival_ways(sink: MessageSink, *ways: str) -> tuple[str, ...]:
    """Return which of several ways to log in a sink has; there should be one."""
    return tuple(name for name in ways if getattr(sink, name) is not None)


def uri_faults(key: str, uri: str, schemes: tuple[str, ...]) -> Iterator[Fault]:
    """Yield what is wrong with one address."""
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        yield key, f"is no address: {error}"
        return
    if parts.scheme.lower() not in schemes or not host:
        yield key, f"must be {' or '.join(f'{scheme}://' for scheme in schemes)} and a host"
    if parts.password is not None:
        yield key, "holds a password; write username and password of the sink instead"
