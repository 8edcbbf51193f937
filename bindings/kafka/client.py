"""Connections to Kafka: one description, as options of the JVM client and of librdkafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bindings.kafka.addresses import protocol_of
from bindings.kafka.login import SaslLogin
from catalog.parsing.regular import open_regular, read_regular

TIMEOUT_SECONDS: Final = 10.0
_SHARED: Final = ("security.protocol", "client.id")
"""Options that both clients know by the same name and in the same sense."""
_READING: Final = {"max.poll.records": "3000"}
"""After each poll Spark asks the broker where its partition begins and ends, so a poll should take most of a fetch.
Spark also keeps the records of a poll, for each partition: more would fill the memory where there are hundreds.
"""
_ENDING: Final = {"fetch.max.wait.ms": "20"}
"""At the end of a partition the broker keeps a fetch for that long, and answers nothing else on its connection. Spark
asks for the partition's ends behind it, so that Kafka's 500 ms would be added to each batch that reads to the end.
"""
ISOLATION: Final = "isolation.level"
COMMITTED: Final = "read_committed"
"""What readers see unless the settings differ: no record of a transaction that is aborted, or not yet committed."""
_WRITING: Final = {"compression.type": "lz4", "max.block.ms": "20000"}
"""Headers of lineage repeat from record to record, so batches of them shrink to a third: brokers have less to do. And
a topic that does not exist is waited for as long at each try, which is a minute by Kafka's own default.
"""


class KafkaUnreachable(Exception):
    """No broker answered, or it refused us. The message names the servers and the broker's own reason.

    ``refused`` is whether waiting mends nothing: a login or certificate is not accepted, or a file of ours not there.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class KafkaClient:
    """How to reach a cluster. ``login`` and ``options`` may hold secrets and are never printed.

    ``security`` is the protocol that the addresses ask for, empty where they say nothing: then TLS is used when ``tls``
    is set. TLS verifies certificates and host names. ``ca``, ``cert`` and ``key`` are PEM
    files; without ``ca`` the system's authorities are trusted.
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
    def isolation(self) -> str:
        """Which records readers see: :data:`COMMITTED`, or ``read_uncommitted`` where the options say so."""
        return self.options.get(ISOLATION, COMMITTED)

    def jvm(self) -> dict[str, str]:
        """Return the options that Spark's Kafka source and sink connect with; each name begins with ``kafka.``.

        Raises:
            OSError: the certificate or key cannot be read.
        """
        options = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        # The files are on this machine, so executors elsewhere get their content.
        if self.tls and self.ca:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text_of(self.ca)}
        if self.tls and self.cert and self.key:
            chain, private = _text_of(self.cert), _text_of(self.key)
            options |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": private,
            }
        if self.login is not None:
            options |= self.login.jvm()
        return _prefixed(options | dict(self.options))

    def reading(self, *, waits: bool = False) -> dict[str, str]:
        """Return the options of Spark's Kafka source: ours for quick and committed reading, unless the settings differ.

        *waits* is for real-time mode, which waits for records at the broker; batches end where the records do.

        Raises:
            OSError: as :meth:`jvm`.
        """
        ours = {**_READING, ISOLATION: self.isolation} | ({} if waits else _ENDING)
        return _prefixed(ours) | self.jvm()

    def writing(self) -> dict[str, str]:
        """Return the options of Spark's Kafka sink for batches, which compresses them unless told otherwise.

        Raises:
            OSError: as :meth:`jvm`.
        """
        return _prefixed(_WRITING) | self.jvm()

    def librdkafka(self, *, elsewhere: bool = False) -> dict[str, Any]:
        """Return the configuration for confluent-kafka; *elsewhere* is for another machine, without our files.

        Raises:
            OSError: what is to be sent elsewhere cannot be read.
        """
        configuration = {"bootstrap.servers": self.servers, "security.protocol": self._protocol()}
        for name, value in (("ca", self.ca), ("certificate", self.cert), ("key", self.key)):
            if self.tls and value:
                configuration |= {f"ssl.{name}.pem": _text_of(value)} if elsewhere else {f"ssl.{name}.location": value}
        if self.login is not None:
            configuration |= self.login.librdkafka()
        return configuration | {name: value for name, value in self.options.items() if name in _SHARED}

    def check_files(self) -> None:
        """Make sure that all files can be read; librdkafka would only say which option failed.

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

    def _protocol(self) -> str:
        return protocol_of(self.security, tls=self.tls, login=self.login is not None, options={})


def _prefixed(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}


def _text_of(file: str) -> str:
    return read_regular(file).decode("utf-8")
