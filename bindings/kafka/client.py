"""Connections to Kafka: one description, as options of the JVM client and of librdkafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

TIMEOUT_SECONDS: Final = 10.0


class KafkaUnreachable(Exception):
    """No broker answered, or it refused us. The message names the servers and the broker's own reason."""


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How to reach a cluster. ``password`` and ``options`` may hold secrets and are never printed.

    TLS is used when ``tls`` is set, and then verifies certificates and host names.
    """

    servers: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def jvm(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source and sink, names with ``kafka.`` in front."""
        made = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        if self.tls and self.ca:
            made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if self.tls and self.cert and self.key:
            with open(self.cert, encoding="utf-8") as cert, open(self.key, encoding="utf-8") as key:
                chain, private = cert.read(), key.read()
            made |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": private}
        if self.username is not None:
            made |= {"sasl.mechanism": "PLAIN", "sasl.jaas.config": self._jaas()}
        return {f"kafka.{name}": value for name, value in (made | dict(self.options)).items()}

    def librdkafka(self) -> dict[str, str]:
        """Return the configuration for confluent-kafka."""
        made = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        for name, value in (("ca", self.ca), ("certificate", self.cert), ("key", self.key)):
            if self.tls and value:
                made[f"ssl.{name}.location"] = value
        if self.username is not None:
            made |= {"sasl.mechanism": "PLAIN", "sasl.username": self.username, "sasl.password": self.password or ""}
        shared = ("sasl.mechanism", "security.protocol", "client.id")
        return made | {name: value for name, value in self.options.items() if name in shared}

    def partitions(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partitions of those topics that exist.

        Raises:
            KafkaUnreachable: no broker answered within ten seconds.
        """
        wanted = set(topics)
        try:
            admin = AdminClient({**self.librdkafka(), "log_level": 0, "socket.timeout.ms": 5000})
            found = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        except KafkaException as error:
            reason = error.args[0].str() if error.args else str(error)
            raise KafkaUnreachable(f"Kafka at {self.servers} does not answer: {reason}") from error
        return {name: sorted(topic.partitions) for name, topic in found.items() if name in wanted and not topic.error}

    def _protocol(self) -> str:
        return f"{'SASL_' if self.username is not None else ''}{'SSL' if self.tls else 'PLAINTEXT'}"

    def _jaas(self) -> str:
        def quoted(text: str) -> str:
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return f"{module} required username={quoted(self.username or '')} password={quoted(self.password or '')};"
