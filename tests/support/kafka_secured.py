"""A real Kafka broker with security: SASL over TLS with every mechanism that the router speaks, and mutual TLS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.authority import Authority
from tests.support.brokers import KafkaBroker
from tests.support.ports import LOOPBACK, free_ports
from tests.support.tokens import AUDIENCE, TokenServer

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_SECURITY: Final = "org.apache.kafka.common.security"
_PROPERTIES: Final = """\
listeners=PLAINTEXT://{host}:{plain},SASL://{host}:{sasl},MUTUAL://{host}:{mutual},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{plain},SASL://{host}:{sasl},MUTUAL://{host}:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.mutual.ssl.client.auth=required
listener.name.sasl.ssl.client.auth=none
sasl.enabled.mechanisms={mechanisms}
listener.name.sasl.plain.sasl.jaas.config={security}.plain.PlainLoginModule required {users};
listener.name.sasl.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
"""
_TOKENS: Final = """\
listener.name.sasl.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required \
unsecuredLoginStringClaim_sub="broker" ssl.truststore.type="PEM" ssl.truststore.location="{truststore}";
listener.name.sasl.oauthbearer.sasl.server.callback.handler.class=\
{security}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url={url}/keys
sasl.oauthbearer.expected.audience={audience}
sasl.oauthbearer.expected.issuer={url}
"""


class SecuredKafka(KafkaBroker):
    """A broker whose certificate is for 127.0.0.1 alone, so that ``localhost`` is a wrong name for it.

    ``users`` log in by PLAIN and by SCRAM, clients of *tokens* by OAUTHBEARER, all at :attr:`sasl`; a certificate of
    *authority* is asked for at :attr:`mutual`. ``bootstrap`` asks for nothing, and is for the tests' own use.
    """

    def __init__(
        self, folder: Path, authority: Authority, users: Mapping[str, str], tokens: TokenServer | None = None
    ) -> None:
        super().__init__(folder)
        self._authority = authority
        self._users = dict(users)
        self._tokens = tokens
        self._ports = free_ports(2)

    @property
    def sasl(self) -> str:
        """The bootstrap servers of the listener with SASL over TLS."""
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def mutual(self) -> str:
        """The bootstrap servers of the listener with TLS and client certificates."""
        return f"{LOOPBACK}:{self._ports[1]}"

    def _more_properties(self) -> str:
        pair = self._authority.sign("kafka", alternatives=f"IP:{LOOPBACK}")
        keystore = self._folder / "keystore.pem"
        keystore.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        sasl, mutual = self._ports
        told = {
            "host": LOOPBACK,
            "plain": self._port,
            "sasl": sasl,
            "mutual": mutual,
            "controller": self._controller_port,
            "keystore": keystore,
            "truststore": self._authority.certificate,
            "security": _SECURITY,
            "users": " ".join(f'user_{name}="{secret}"' for name, secret in self._users.items()),
            "mechanisms": ",".join(("PLAIN", *SCRAM, *(("OAUTHBEARER",) if self._tokens else ()))),
        }
        lines = _PROPERTIES.format(**told)
        if self._tokens is not None:
            lines += _TOKENS.format(**told, url=self._tokens.url, audience=AUDIENCE)
        return lines

    def _format_options(self) -> Sequence[str]:
        added = [
            f'{mechanism}=[name="{name}",password="{secret}"]'
            for mechanism in SCRAM
            for name, secret in self._users.items()
        ]
        return [option for each in added for option in ("--add-scram", each)]

    def _system_properties(self) -> Sequence[str]:
        # Kafka 4 fetches keys from addresses only that somebody has allowed.
        if self._tokens is None:
            return ()
        return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.url}/keys",)
