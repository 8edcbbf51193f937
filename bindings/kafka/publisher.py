"""Send to Kafka from this process; Spark writes to topics without this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from bindings.kafka.client import POLL_SECONDS, KafkaClient
from bindings.parts import Part
from bindings.sending import MessageRefusal, Outbound, Unsettled, iter_headers

_NEVER: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors that a retry does not fix: the record is too large or invalid, or its topic cannot have that name."""


class KafkaPublisher:
    """Implements :data:`~bindings.sending.Publisher`: all in-sync replicas confirm; order is kept per partition."""

    def __init__(self, client: KafkaClient, *, max_message_bytes: int, timeout: float) -> None:
        self._servers = client.servers
        self._timeout = timeout
        self._config = {
            **client.librdkafka_config(),
            "acks": "all",
            "enable.idempotence": True,
            "message.max.bytes": max_message_bytes,
            "message.timeout.ms": int(timeout * 1000),
            "linger.ms": 5,
            "log_level": 0,
        }
        self._producer: Producer | None = None

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        """Send messages and wait until each is confirmed.

        Raises:
            Unsettled: some were not confirmed in time.
        """
        settled: dict[int, MessageRefusal | None] = {}
        troubles: list[str] = []
        producer = self._producer = self._producer or Producer(self._config)
        for index, message in enumerate(messages):
            self._produce_record(producer, index, message, settled, troubles)
        left = producer.flush(self._timeout)
        if left or troubles:
            # The next call creates a new producer: records that this one still has must not arrive after later ones.
            producer.purge()
            self._producer = None
            reason = troubles[0] if troubles else f"no answer in {self._timeout:g} s"
            missing = len(messages) - len(settled)
            raise Unsettled(f"Kafka at {self._servers} did not confirm {missing}: {reason}", settled)
        return [settled[index] for index in range(len(messages))]

    def close(self) -> None:
        """Disconnect; no record is in flight between two calls of :meth:`send`."""
        self._producer = None

    def _produce_record(
        self,
        producer: Producer,
        index: int,
        message: Outbound,
        settled: dict[int, MessageRefusal | None],
        troubles: list[str],
    ) -> None:
        def on_delivered(error: KafkaError | None, _: object) -> None:
            if error is None or error.code() in _NEVER:
                settled[index] = None if error is None else MessageRefusal(error.str())
            else:
                troubles.append(error.str())

        while not troubles:
            try:
                producer.produce(message.address, message.body, on_delivery=on_delivered, **to_record(message.parts))
                producer.poll(0)
                return
            except BufferError:
                producer.poll(POLL_SECONDS)
            except KafkaException as error:
                on_delivered(error.args[0], None)
                return


def to_record(parts: Sequence[Part]) -> dict[str, Any]:
    """Return key, headers and partition of a record with these parts."""
    record: dict[str, Any] = {"headers": [(name, part.value) for name, part in iter_headers(parts)]}
    for part in parts:
        if part.key == "key":
            record["key"] = part.value
        elif part.key == "partition" and part.text is not None:
            record["partition"] = int(part.text)
    return record
