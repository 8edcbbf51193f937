"""Connections to Kafka: one configuration, as options of the JVM client and of librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bindings.certificates import find_system_authorities
from bindings.kafka.binding import security_protocol_of
from catalog.parsing.regular import open_regular, read_regular

# SASL login to Kafka: one configuration, as options of the JVM client and of librdkafka.

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
    """Our login and its mechanism; the password is not in the representation.

    With ``oauthbearer``, ``username`` and ``password`` are client id and secret, for which ``token_endpoint`` issues
    tokens of ``token_scope`` (OAuth 2 client credentials); ``token_ca`` are that endpoint's authorities, PEM. Both
    clients renew tokens before they expire.
    """

    username: str
    password: str = field(repr=False)
    mechanism: Mechanism = "plain"
    token_endpoint: str = ""
    token_scope: str | None = None
    token_ca: str | None = None

    def jvm_options(self) -> dict[str, str]:
        """Return the options of the JVM client."""
        options = {"sasl.mechanism": self.mechanism.upper(), "sasl.jaas.config": self._jaas_config()}
        if self.mechanism == "oauthbearer":
            options |= {
                "sasl.login.callback.handler.class": _TOKEN_GETTER,
                "sasl.oauthbearer.token.endpoint.url": self.token_endpoint,
            }
        return options

    def librdkafka_config(self) -> dict[str, str]:
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
        if trusted := self.token_ca or find_system_authorities():
            configuration["https.ca.location"] = trusted
        return configuration

    def _jaas_config(self) -> str:
        if self.mechanism != "oauthbearer":
            credentials = {"username": self.username, "password": self.password}
        else:
            credentials = {"clientId": self.username, "clientSecret": self.password}
            if self.token_scope:
                credentials["scope"] = self.token_scope
            if self.token_ca:
                credentials |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.token_ca}
        pairs = " ".join(f"{name}={_quote(value)}" for name, value in credentials.items())
        return f"{_MODULES[self.mechanism]} required {pairs};"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


TIMEOUT_SECONDS: Final = 10.0
QUERY_SECONDS: Final = 3.0
"""Maximum duration of a query that may fail, such as for an estimate."""
POLL_SECONDS: Final = 0.2
"""How long a client waits for a record, or the end of one, before it looks at the time."""
_SHARED: Final = ("security.protocol", "client.id")
"""Options with the same name and meaning in both clients."""
_READING: Final = {"max.poll.records": "3000"}
"""After each poll Spark asks the broker where its partition begins and ends, so a poll should return most of a fetch.
Spark also keeps the records of a poll, for each partition: more would fill the memory with hundreds of partitions.
"""
_ENDING: Final = {"fetch.max.wait.ms": "20"}
"""At the end of a partition the broker holds a fetch for that long, and answers nothing else on its connection. Spark
requests the partition's ends behind it, so Kafka's 500 ms would be added to each batch that reads to the end.
"""
ISOLATION: Final = "isolation.level"
COMMITTED: Final = "read_committed"
"""What readers see by default: no record of a transaction that is aborted or not yet committed."""
_WRITING: Final = {"compression.type": "lz4", "linger.ms": "5", "max.block.ms": "20000"}
"""Headers of lineage repeat in every record, so compression reduces batches of them to a third. Waiting for fuller
batches saves requests (the default of Kafka 4), and nobody waits for it: a task flushes when it ends. A missing topic
blocks each try only 20 s, where Kafka's own default is a minute.
"""


class KafkaUnreachable(Exception):
    """No broker answered, or it refused us. The message names the servers and the broker's own reason.

    ``refused``: waiting does not help, because a login or certificate is not accepted, or a local file is missing.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How to connect to a cluster. ``login`` and ``options`` may contain secrets and are never printed.

    ``security`` is the protocol of the addresses, empty if they have none: then ``tls`` decides whether TLS is used.
    TLS verifies certificates and host names. ``ca``, ``cert`` and ``key`` are PEM files; without ``ca`` the system's
    authorities are trusted.
    """

    servers: str
    login: SaslLogin | None = None
    tls: bool = False
    security: str = ""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def isolation_level(self) -> str:
        """Which records readers see: :data:`COMMITTED`, or ``read_uncommitted`` if the options say so."""
        return self.options.get(ISOLATION, COMMITTED)

    def jvm_options(self) -> dict[str, str]:
        """Return the connection options of Spark's Kafka source and sink; each name begins with ``kafka.``.

        Raises:
            OSError: the certificate or key cannot be read.
        """
        options = {"bootstrap.servers": self.servers, "security.protocol": self._security_protocol()}
        # The files are on this machine, so executors elsewhere get their content.
        if self.tls and self.ca:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _read_pem(self.ca)}
        if self.tls and self.cert and self.key:
            chain, private = _read_pem(self.cert), _read_pem(self.key)
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": private,
            }
        if self.login is not None:
            options |= self.login.jvm_options()
        return _add_kafka_prefix(options | dict(self.options))

    def source_options(self, *, waits: bool = False) -> dict[str, str]:
        """Return the options of Spark's Kafka source, with our defaults for fast, committed reads unless the settings
        differ.

        *waits* is for real-time mode, whose fetches wait for records at the broker; those of batches do not.

        Raises:
            OSError: as :meth:`jvm_options`.
        """
        ours = {**_READING, ISOLATION: self.isolation_level} | ({} if waits else _ENDING)
        return _add_kafka_prefix(ours) | self.jvm_options()

    def sink_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka sink for batches, with compression unless the settings differ.

        Raises:
            OSError: as :meth:`jvm_options`.
        """
        return _add_kafka_prefix(_WRITING) | self.jvm_options()

    def librdkafka_config(self, *, elsewhere: bool = False) -> dict[str, Any]:
        """Return the configuration for confluent-kafka; *elsewhere* is for another machine, without our files.

        Raises:
            OSError: what is to be sent elsewhere cannot be read.
        """
        configuration = {"bootstrap.servers": self.servers, "security.protocol": self._security_protocol()}
        for name, value in (("ca", self.ca), ("certificate", self.cert), ("key", self.key)):
            if self.tls and value:
                configuration |= {f"ssl.{name}.pem": _read_pem(value)} if elsewhere else {f"ssl.{name}.location": value}
        if self.login is not None:
            configuration |= self.login.librdkafka_config()
        return configuration | {name: value for name, value in self.options.items() if name in _SHARED}

    def check_files(self) -> None:
        """Raise unless all files can be read; librdkafka's own error only names the option.

        Raises:
            KafkaUnreachable: one cannot.
        """
        for file in (self.ca, self.cert, self.key, self.login.token_ca if self.login else None):
            try:
                if file is not None:
                    open(file, "rb", opener=open_regular).close()
            except OSError as error:
                text = f"Kafka at {self.servers}: cannot read {file}: {error.strerror}"
                raise KafkaUnreachable(text, refused=True) from error

    def _security_protocol(self) -> str:
        return security_protocol_of(self.security, tls=self.tls, login=self.login is not None, options={})


def _add_kafka_prefix(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


def _read_pem(file: str) -> str:
    return read_regular(file).decode("utf-8")
