"""Logging in to Kafka by SASL: one description, as options of the JVM client and of librdkafka."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final, Literal

Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512", "oauthbearer"]

_SECURITY: Final = "org.apache.kafka.common.security"
_MODULES: Final = {
    "plain": f"{_SECURITY}.plain.PlainLoginModule",
    "scram-sha-256": f"{_SECURITY}.scram.ScramLoginModule",
    "scram-sha-512": f"{_SECURITY}.scram.ScramLoginModule",
    "oauthbearer": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule",
}
_TOKEN_GETTER: Final = f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """Who we are, and how we prove it; the password is not in the representation.

    With ``oauthbearer``, ``username`` and ``password`` are client id and secret, for which ``token_endpoint`` gives
    tokens of ``token_scope`` (OAuth 2 client credentials); ``token_ca`` are the authorities of that endpoint, PEM.
    Both clients get new tokens by themselves before the old ones end.
    """

    username: str
    password: str = field(repr=False)
    mechanism: Mechanism = "plain"
    token_endpoint: str = ""
    token_scope: str | None = None
    token_ca: str | None = None

    def jvm(self) -> dict[str, str]:
        """Return the options of the JVM client."""
        options = {"sasl.mechanism": self.mechanism.upper(), "sasl.jaas.config": self._jaas()}
        if self.mechanism == "oauthbearer":
            options |= {
                "sasl.login.callback.handler.class": _TOKEN_GETTER,
                "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
            }
        return options

    def librdkafka(self) -> dict[str, str]:
        """Return the configuration for confluent-kafka."""
        configuration = {"sasl.mechanism": self.mechanism.upper()}
        if self.mechanism != "oauthbearer":
            return configuration | {"sasl.username": self.username, "sasl.password": self.password}
        configuration |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.username,
            "sasl.oauthbearer.client.secret": self.password,
            "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
        }
        if self.token_scope:
            configuration["sasl.oauthbearer.scope"] = self.token_scope
        if trusted := self.token_ca or _system_authorities():
            configuration["https.ca.location"] = trusted
        return configuration

    def _jaas(self) -> str:
        if self.mechanism != "oauthbearer":
            credentials = {"username": self.username, "password": self.password}
        else:
            credentials = {"clientId": self.username, "clientSecret": self.password}
            if self.token_scope:
                credentials["scope"] = self.token_scope
            if self.token_ca:
                credentials |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.token_ca}
        pairs = " ".join(f"{name}={_quoted(value)}" for name, value in credentials.items())
        return f"{_MODULES[self.mechanism]} required {pairs};"


def _system_authorities() -> str | None:
    """Return where this system keeps its authorities: librdkafka's HTTPS looks where the one it was built on did."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
