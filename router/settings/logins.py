"""What the settings of several clients say about logging in: certificates, and the ways that Kafka knows."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from router.settings.section import Section

Sasl = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]
SASL_TEXT: Final = "How to log in to Kafka; unset is plain where there is a username."
TOKENS_TEXT: Final = "Kafka, sasl oauthbearer: URL that gives tokens for client id `username` and secret `password`."
SCOPE_TEXT: Final = "Kafka, sasl oauthbearer: scope asked for."
TOKEN_CA_TEXT: Final = "Kafka, sasl oauthbearer: authorities of `token_endpoint`, PEM; unset trusts the system's."
PLAIN_TEXT: Final = "Whether secrets may be sent without TLS; else it is an error, for loopback addresses too."
HTTP_URL: Final = "^https?://"


class TlsSettings(Section):
    """Certificates of a connection; all PEM files."""

    ca: str | None = Field(None, description="Certificates of the authorities to trust; unset trusts the system's.")
    cert: str | None = Field(None, description="Our own certificate, for brokers that ask for one.")
    key: str | None = Field(None, description="The private key of `cert`.")
