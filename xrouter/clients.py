"""Convert messages of client libraries to native records, by their attributes: none of the libraries is imported.

And the body of a record to the data of its event in JSON.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bindings.cloudevents import format_moment, record_of_cloudevent
from catalog.record import Record, text_or_base64
from catalog.schemas.contract import is_json_data

_MQTT_PROPERTIES: Final = (
    ("PayloadFormatIndicator", "payload_format"),
    ("MessageExpiryInterval", "message_expiry_interval"),
    ("ResponseTopic", "response_topic"),
    ("ContentType", "content_type"),
)
_MAX_MESSAGE: Final = 64 * 1024 * 1024


def to_record(message: Any) -> Record:
    """Return a message of a client library as a native record (MATCHING.md#records).

    It may be a ``Message`` of confluent-kafka, an ``MQTTMessage`` of paho, a ``Msg`` of nats-py, a ``Message`` of
    proton, or a CloudEvent of the SDK, which becomes a structured event over HTTP.

    Raises:
        TypeError: it is none of these, or its key or value is not bytes or text.
        ValueError: it is an error that confluent-kafka reports as a message.
    """
    for attribute, convert in _CONVERTERS:
        if hasattr(message, attribute):
            return convert(message)
    raise TypeError(
        f"{type(message).__name__} is not a record: give a dict with protocol, native and body, a CloudEvent, "
        "or a message of confluent-kafka, paho, proton or nats-py"
    )


def _from_kafka(message: Any) -> Record:
    if message.error() is not None:
        raise ValueError(f"the message is no record, but an error: {message.error()}")
    kind, milliseconds = message.timestamp()
    native: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": milliseconds if kind else None,
        "headers": _to_list(message.headers() or ()),
    }
    if message.key() is not None:
        native |= text_or_base64("key", _to_bytes(message.key()))
    value = message.value()
    return Record("KAFKA", _without_nulls(native), None if value is None else _to_bytes(value))


def _from_mqtt(message: Any) -> Record:
    native: dict[str, Any] = {"topic_name": message.topic, "qos": message.qos, "retain": bool(message.retain)}
    properties = getattr(message, "properties", None)
    for name, member in _MQTT_PROPERTIES:
        native[member] = getattr(properties, name, None)
    correlation = getattr(properties, "CorrelationData", None)
    if correlation is not None:
        native["correlation_data"] = base64.b64encode(correlation).decode()
    native["user_properties"] = _to_list(getattr(properties, "UserProperty", ()))
    return Record("MQTT/3.1.1" if properties is None else "MQTT/5.0", _without_nulls(native), bytes(message.payload))


def _from_nats(message: Any) -> Record:
    from bindings.nats.binding import parse_ack_subject

    stored = parse_ack_subject((message.reply or "").encode())
    native: dict[str, Any] = {"subject": message.subject, "headers": _to_list((message.headers or {}).items())}
    native["reply-to"] = None if stored else message.reply or None
    native |= {"stream": stored.stream.decode(), "sequence": stored.sequence} if stored else {}
    time = None if stored is None else format_moment(datetime.fromtimestamp(stored.time / 1_000_000, UTC))
    return Record("NATS", _without_nulls(native), bytes(message.data) or None, time=time)


def _from_amqp(message: Any) -> Record:
    from bindings.amqp.values import to_row
    from bindings.protocols import BINDINGS

    row = to_row(message.encode(), "", int(time.time() * 1_000_000), _MAX_MESSAGE)
    return Record("AMQP/1.0", BINDINGS["AMQP/1.0"].build(list(row.properties)), row.body)


def _to_list(pairs: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return names and values as a list of a native record; a value of None stays."""
    entries = ((name, None if value is None else _to_bytes(value)) for name, value in pairs)
    return [
        {"name": name, **({"value": None} if raw is None else text_or_base64("value", raw))} for name, raw in entries
    ]


def _to_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def _without_nulls(native: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in native.items() if value not in (None, [])}


_CONVERTERS: Final[tuple[tuple[str, Callable[[Any], Record]], ...]] = (
    ("get_attributes", record_of_cloudevent),
    ("partition", _from_kafka),
    ("annotations", _from_amqp),
    ("qos", _from_mqtt),
    ("subject", _from_nats),
)
"""An attribute that messages of one library have, and those after it have not, with what converts these."""


def data_members(body: bytes | None, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that an event in the JSON form of CloudEvents has for its data, from the record's body.

    *attributes* are those of the event. A body that is this event in structured mode has the members itself.
    """
    structured = _structured_event(body)
    if structured is not None and all(
        structured.get(name) == attributes.get(name) for name in ("id", "source", "type")
    ):
        return {name: value for name, value in structured.items() if name.startswith("data")}
    if body is None:
        return {}
    if not is_json_data(attributes.get("datacontenttype")):
        return dict(text_or_base64("data", body))
    try:
        return {"data": msgspec.json.decode(body)}
    except msgspec.DecodeError:
        return {"data_base64": base64.b64encode(body).decode()}


def _structured_event(body: bytes | None) -> dict[str, Any] | None:
    """Return the event that a body is in structured mode; None for any other body."""
    try:
        form = msgspec.json.decode(body or b"")
    except msgspec.DecodeError:
        return None
    return form if isinstance(form, dict) and form.get("specversion") == "1.0" else None
