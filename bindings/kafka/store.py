"""A Kafka topic as the inbox: rows as Kafka messages, for gateways that run as separate processes.

The body is the value, so that Spark reads it unchanged; the rest of a row is in headers. Rows of one endpoint and
topic, subject or path share a key, and so keep their order. A row counts as stored when all in-sync replicas have it
(``acks=all``, idempotent producer).
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from bindings.background import Background
from bindings.gateways import JOIN_SECONDS
from bindings.inbox.log import ORDER_KEYS
from bindings.inbox.source import READ_SCHEMA
from bindings.inbox.space import InboxClosed, InboxError, InboxFull, InboxRowError
from bindings.kafka.client import POLL_SECONDS, KafkaClient
from bindings.parts import InboxRow
from catalog.values import YEAR_10000, parse_whole_number

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Headers of Kafka rows as columns of Spark.


def first_header_text(entries: str, name: str) -> Column:
    """Return the value of the first entry with that name as text; null if it is not UTF-8."""
    from pyspark.sql import functions as F

    position = F.array_position(F.col(f"{entries}.key"), name).cast("int")
    return F.try_validate_utf8(F.get(F.col(f"{entries}.value"), position - 1).cast("string"))


ENDPOINT: Final = "xrouter-in-endpoint"
PROTOCOL: Final = "xrouter-in-protocol"
RECEIVED: Final = "xrouter-in-received"
PART: Final = "xrouter-in:"
"""Begins the name of a header that is a part of the record: ``xrouter-in:KIND:KEY``."""
_PROPERTIES: Final = "array<struct<key:string,value:binary,type:string>>"
_ASK_SECONDS: Final = 5.0
"""Seconds between two checks whether brokers that refused rows accept them again."""
_ANSWER_SECONDS: Final = 1.0


class KafkaStore:
    """The writing side of an inbox topic; a ``RowStore`` of gateways. Methods may be called from any thread."""

    def __init__(self, client: KafkaClient, topic: str, *, max_message_bytes: int) -> None:
        """Prepare to write to *topic*, which must exist and retain its messages until they are routed."""
        self._topic = topic
        # Its gateways differ from those of other hosts by their client ids.
        self.identity = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
        self._producer = Producer(
            {
                **client.librdkafka_config(),
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
                "message.max.bytes": max_message_bytes,
                "message.timeout.ms": 30_000,
            }
        )
        self._closed = threading.Event()
        self._trouble = "the inbox topic has not answered yet; see its brokers"
        self._checked_at = 0.0
        self._poller = Background("kafka-inbox", self._poll_producer)
        self._poller.start()

    def append_many(self, rows: Sequence[InboxRow]) -> Future[None]:
        """Store rows; the future completes once the brokers have them all.

        It fails with ``InboxFull`` if they do not accept them now, and ``InboxRowError`` for rows they never accept. It
        is not a transaction: rows of a failed call may be stored, and are stored twice after a retry.
        """
        group = _DeliveryGroup(len(rows), self._set_trouble)
        if self._closed.is_set():
            group.fail(InboxClosed("the inbox topic is closed"))
            return group.future
        for row in rows:
            try:
                self._producer.produce(
                    self._topic,
                    value=row.body,
                    key=_message_key(row),
                    headers=build_headers(row),
                    timestamp=row.received // 1000,
                    on_delivery=group.on_delivered,
                )
            except BufferError:
                group.fail(InboxFull("too many messages are waiting for the brokers of the inbox topic"))
                break
            except KafkaException as error:
                group.fail(_to_inbox_error(error.args[0]))
                break
        if not rows:
            group.future.set_result(None)
        return group.future

    def measure_size(self) -> int:
        """Return 0: it has no bytes on this disk."""
        return 0

    max_size = measure_size

    def refusal_reason(self) -> str:
        """Return why the brokers accept no rows now; empty if they do. They are asked at intervals."""
        if self._trouble and time.monotonic() - self._checked_at > _ASK_SECONDS:
            seconds = _ANSWER_SECONDS if self._checked_at else _ASK_SECONDS
            self._checked_at = time.monotonic()
            with contextlib.suppress(KafkaException):
                topic = self._producer.list_topics(self._topic, seconds).topics[self._topic]
                led = [each.leader >= 0 for each in topic.partitions.values()]
                if topic.error is None and led and all(led):
                    self._trouble = ""
        return self._trouble

    def _set_trouble(self, trouble: str) -> None:
        self._trouble = trouble

    def close(self) -> None:
        """Wait up to ten seconds until the brokers have all pending rows, then disconnect."""
        if not self._closed.is_set():
            self._producer.flush(JOIN_SECONDS)
            self._closed.set()
            self._poller.ask_to_end()
            self._poller.join(JOIN_SECONDS)

    def _poll_producer(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(POLL_SECONDS)


class _DeliveryGroup:
    """One future for several deliveries, each of which the producer's thread reports."""

    def __init__(self, count: int, say: Callable[[str], None]) -> None:
        self._set_trouble = say
        self.future: Future[None] = Future()
        self._pending = count
        self._lock = threading.Lock()

    def on_delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.fail(_to_inbox_error(error))
            return
        with self._lock:
            self._pending -= 1
            done = self._pending == 0 and not self.future.done()
        self._set_trouble("")
        if done:
            self.future.set_result(None)

    def fail(self, error: InboxError) -> None:
        if isinstance(error, InboxFull):
            self._set_trouble(str(error))
        with self._lock:
            if self.future.done():
                return
            self.future.set_exception(error)


def to_inbox_columns(rows: DataFrame) -> DataFrame:
    """Convert messages of an inbox topic, read by Spark's Kafka source with headers, to rows of the inbox.

    A message that no gateway wrote becomes a row with fewer members, never an error. Without Spark,
    :func:`to_inbox_rows` does the same.
    """
    from pyspark.sql import functions as F

    def text(name: str) -> Column:
        return first_header_text("headers", name)

    def step(key: Column, number: int) -> Column:
        return F.get(F.split(key, ":", 3), F.lit(number))

    parts = F.filter("headers", lambda entry: entry["key"].startswith(PART) & step(entry["key"], 2).isNotNull())
    properties = F.transform(
        parts,
        lambda entry: F.struct(
            step(entry["key"], 2).alias("key"),
            entry["value"].alias("value"),
            F.nullif(step(entry["key"], 1), F.lit("")).alias("type"),
        ),
    )
    received = text(RECEIVED).try_cast("long")
    is_time = (received >= 0) & (received < YEAR_10000 * 1000)
    return rows.select(
        text(ENDPOINT).alias("endpoint"),
        F.coalesce(text(PROTOCOL), F.lit("")).alias("protocol"),
        F.timestamp_micros(F.when(is_time, received)).alias("received"),
        F.coalesce(properties, F.array().cast(_PROPERTIES)).alias("properties"),
        F.col("value").alias("body"),
        F.concat_ws("-", "topic", "partition", "offset").alias("position"),
    )


def build_headers(row: InboxRow) -> list[tuple[str, str | bytes | None]]:
    """Return the headers of a row's message, with the parts in order."""
    headers: list[tuple[str, str | bytes | None]] = [
        (ENDPOINT, row.endpoint.encode()),
        (PROTOCOL, row.protocol.encode()),
        (RECEIVED, str(row.received).encode()),
    ]
    headers += [(f"{PART}{part.kind or ''}:{part.key}", part.value) for part in row.properties]
    return headers


def _message_key(row: InboxRow) -> bytes:
    order_value = next((part.value or b"" for part in row.properties if part.key in ORDER_KEYS), b"")
    return f"{zlib.crc32(row.endpoint.encode() + bytes(1) + order_value):08x}".encode()


def _to_inbox_error(error: Any) -> InboxError:
    if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG):
        return InboxRowError(f"the inbox topic can never store this row: {error.str()}")
    return InboxFull(f"the inbox topic accepts no rows now: {error.str()}; see its brokers")


# Messages of an inbox topic as rows of the inbox, without Spark; equivalent to :func:`to_inbox_columns`.

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS: Final = 2


def to_inbox_rows(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of Kafka's source to rows of the inbox with their positions.

    A message that no gateway wrote becomes a row with fewer members, never an error.
    """
    return pa.RecordBatch.from_pylist([_to_inbox_row(each) for each in messages.to_pylist()], READ_SCHEMA)


def _to_inbox_row(message: Mapping[str, Any]) -> dict[str, Any]:
    headers: Sequence[Mapping[str, Any]] = message["headers"] or ()
    received = parse_whole_number(_header_text(headers, RECEIVED) or "")
    is_time = received is not None and received < YEAR_10000 * 1000
    steps = [(each["key"].split(":", _STEPS), each["value"]) for each in headers if each["key"].startswith(PART)]
    return {
        "endpoint": _header_text(headers, ENDPOINT),
        "protocol": _header_text(headers, PROTOCOL) or "",
        "received": _EPOCH + timedelta(microseconds=received) if is_time and received is not None else None,
        "properties": [
            {"key": key[_STEPS], "value": value, "type": key[1] or None} for key, value in steps if len(key) > _STEPS
        ],
        "body": message["value"],
        "position": f"{message['topic']}-{message['partition']}-{message['offset']}",
    }


def _header_text(headers: Sequence[Mapping[str, Any]], name: str) -> str | None:
    """Return the first header with that name as text; None for bytes that are not UTF-8."""
    value = next((each["value"] for each in headers if each["key"] == name), None)
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None
