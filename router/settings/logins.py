"""What the settings of several clients say about logging in: certificates, and the ways that Kafka knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, SecretStr

from bindings.gateways import Tls
from router.settings.section import Section

Sasl = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
PLAIN_TEXT: Final = "Whether secrets may be sent without TLS; else it is an error, for loopback addresses too."


class TlsSettings(Section):
    """Certificates of a connection; all PEM files."""

    ca: str | None = Field(None, description="Certificates of the authorities to trust; unset trusts the system's.")
    cert: str | None = Field(None, description="Our own certificate, for brokers that ask for one.")
    key: str | None = Field(None, description="The private key of `cert`.")


class KafkaLogin(Section):
    """Who we are to Kafka, or to another broker that a source names.

    The reference lists keys in the order of base classes, the last one first. So settings that have other keys before
    these inherit those from a class that follows this one.
    """

    username: str | None = Field(None, description="User name at the broker.")
    password: SecretStr | None = Field(None, description="Password, by reference: `${VAR}` or `file:/path`.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)
    tls: TlsSettings | None = Field(None, description="Certificates; `{}` is TLS with the system's authorities.")
    sasl: Sasl | None = Field(None, description="How to log in to Kafka; unset is plain where there is a username.")
    token_endpoint: str | None = Field(
        None,
        description="Kafka, sasl oauthbearer: URL that gives tokens for client id `username` and secret `password`.",
        pattern="^https?://",
    )
    token_scope: str | None = Field(None, description="Kafka, sasl oauthbearer: scope asked for.")
    token_ca: str | None = Field(
        None, description="Kafka, sasl oauthbearer: authorities of `token_endpoint`, PEM; unset trusts the system's."
    )


def tls_of(settings: TlsSettings | None) -> Tls | None:
    """Return the certificates of a connection."""
    if settings is None:
        return None
    return Tls(path_of(settings.ca), path_of(settings.cert), path_of(settings.key))


def path_of(text: str | None) -> Path | None:
    """Return a path of the settings, which are absolute by now."""
    return None if text is None else Path(text)


def login_faults(key: str, username: str | None, password: bool) -> Iterator[tuple[str, str]]:
    """Yield what is missing of a user name and its password."""
    if password and username is None:
        yield f"{key}.username", "is missing beside password; add it"
    if username is not None and not password:
        yield f"{key}.password", "is missing beside username; add it as ${VAR} or file:/path"


def clear_faults(key: str, uris: Sequence[str], tls: TlsSettings | None) -> Iterator[tuple[str, str]]:
    """Yield AMQP addresses whose scheme says no TLS where certificates say TLS."""
    for uri in uris:
        if tls is not None and uri.lower().startswith("amqp:"):
            yield key, "has an address without TLS, and tls is set; write amqps://, or leave out tls"
