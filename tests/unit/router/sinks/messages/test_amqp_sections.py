"""What an AMQP sink sends by a definition: every section, each value of its type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bindings.amqp.publisher import EncodingError, encode_message
from bindings.amqp.values import decode_message
from bindings.protocols import BINDINGS
from catalog.load import load
from router.commands.emit.producer import MessageProducer, require_match
from router.sinks.messages.sink import RoutedEvent
from tests.support.composed import OneByOne

MESSAGE = "/messagegroups/G/messages/T"
ANNOTATIONS = {"x-a": {"type": "symbol", "value": "north"}, "x-n": {"type": "int", "value": 5}}
OPTIONS: dict[str, Any] = {
    "header": {"priority": 7, "ttl": 60000, "durable": False, "first-acquirer": True, "delivery-count": 2},
    "delivery-annotations": ANNOTATIONS,
    "message-annotations": ANNOTATIONS,
    "footer": {**ANNOTATIONS, "x-b": {"type": "binary", "value": "/w=="}},
    "properties": {
        "message-id": {"type": "ulong", "value": 18446744073709551615},
        "correlation-id": {"type": "uuid", "value": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"},
        "user-id": {"value": "/w=="},
        "subject": {"value": "{plant}"},
        "group-sequence": 9,
        "absolute-expiry-time": {"value": "2126-01-02T03:04:05.678Z"},
    },
    "application-properties": {
        "int": {"type": "integer", "value": -7},
        "long": {"type": "integer", "value": 2147483648},
        "wide": {"type": "long", "value": 7},
        "short": {"type": "short", "value": 7},
        "double": {"type": "number", "value": 7},
        "float": {"type": "float", "value": 0.5},
        "truth": {"type": "boolean", "value": True},
        "when": {"type": "timestamp", "value": "2026-01-02T03:04:05.678Z"},
        "bytes": {"type": "binary", "value": "/w=="},
        "who": {"type": "uuid", "value": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"},
        "sign": {"type": "symbol", "value": "{plant}"},
        "any": {"type": "any", "value": 7},
        "text": {"value": "7"},
    },
}
WANTED: dict[str, Any] = {
    "header": {"durable": False, "priority": 7, "ttl": 60000, "first-acquirer": True, "delivery-count": 2},
    "delivery-annotations": {"x-a": "north", "x-n": 5},
    "message-annotations": {"x-a": "north", "x-n": 5},
    "footer": {"x-a": "north", "x-n": 5, "x-b": {"base64": "/w=="}},
    "properties": {
        "message-id": 18446744073709551615,
        "correlation-id": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
        "user-id": {"base64": "/w=="},
        "subject": "p1",
        "group-sequence": 9,
        "absolute-expiry-time": "2126-01-02T03:04:05.678Z",
    },
    "application-properties": {
        "int": -7,
        "long": 2147483648,
        "wide": 7,
        "short": 7,
        "double": 7.0,
        "float": 0.5,
        "truth": True,
        "when": "2026-01-02T03:04:05.678Z",
        "bytes": {"base64": "/w=="},
        "who": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0",
        "sign": "p1",
        "any": 7,
        "text": "7",
    },
}
TYPES = {
    **{f"{section}.x-a": "symbol" for section in ("delivery-annotations", "message-annotations", "footer")},
    **{f"{section}.x-n": "int" for section in ("delivery-annotations", "message-annotations", "footer")},
    "properties.message-id": "ulong",
    "properties.correlation-id": "uuid",
    "application-properties.int": "int",
    "application-properties.short": "short",
    "application-properties.float": "float",
    "application-properties.when": "timestamp",
    "application-properties.who": "uuid",
    "application-properties.sign": "symbol",
}
EVENT = RoutedEvent(
    {"specversion": "1.0", "id": "1", "source": "/s", "type": "T"}, b"{}", "/m", "/e", "e", "t-0-1", {"plant": "p1"}
)


def catalog(tmp_path: Path, options: dict[str, Any]) -> Any:
    message = {"protocol": "AMQP/1.0", "protocoloptions": options}
    out = {"usage": "producer", "protocol": "AMQP/1.0", "messagegroups": ["/messagegroups/G"]}
    tree = {"messagegroups": {"G": {"messages": {"T": message}}}, "endpoints": {"out": out}}
    (tmp_path / "c.json").write_text(json.dumps(tree))
    return load([tmp_path / "c.json"])


def sent(tmp_path: Path, options: dict[str, Any]) -> dict[str, Any]:
    found = catalog(tmp_path, options)
    shaping = OneByOne(found, found.endpoints["/endpoints/out"], BINDINGS["AMQP/1.0"], lineage=False)
    return BINDINGS["AMQP/1.0"].build(decode_message(encode_message(shaping.compose_one(EVENT))).parts)


def test_all_sections_are_sent_as_the_definition_has_them(tmp_path: Path) -> None:
    native = sent(tmp_path, OPTIONS)
    assert native.pop("types") == TYPES
    assert native == WANTED


def test_emit_makes_the_same_sections_and_types(tmp_path: Path) -> None:
    found = catalog(tmp_path, OPTIONS)
    producer = MessageProducer(found, MESSAGE, context={"plant": "p1"})
    record = producer.make_record()
    require_match(found, producer, record)
    native = dict(record.native)
    assert native.pop("types") == TYPES
    native["properties"] = {name: value for name, value in native["properties"].items() if name != "content-type"}
    assert native == WANTED


def test_a_message_is_durable_unless_its_definition_says_otherwise(tmp_path: Path) -> None:
    assert sent(tmp_path, {"header": {"priority": 5}})["header"] == {"durable": True, "priority": 5}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"header": {"priority": 256}}, "header.priority: '256' is not a valid ubyte"),
        ({"header": {"ttl": {"value": -1}}}, "header.ttl: '-1' is not a valid uint"),
        ({"header": {"durable": {"type": "string", "value": "maybe"}}}, "header.durable: 'maybe' is not a boolean"),
        ({"header": {"priority": {"type": "string", "value": "high"}}}, "header.priority: 'high' is not a valid ubyte"),
        ({"footer": {"é": "x"}}, "footer: names must be ASCII"),
        ({"properties": {"subject": {"type": "binary", "value": "/w=="}}}, "properties.subject: a string must be text"),
        ({"properties": {"group-sequence": 4294967296}}, "properties.group-sequence: '4294967296' is not a valid uint"),
        ({"properties": {"creation-time": {"type": "string", "value": "soon"}}}, "'soon' is not a valid timestamp"),
        ({"application-properties": {"n": {"type": "ubyte", "value": 256}}}, "'256' is not a valid ubyte"),
    ],
)
def test_values_that_amqp_has_no_form_for(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        sent(tmp_path, options)
