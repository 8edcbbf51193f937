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
from router.sinks.messages.sink import RoutedEvent
from tests.support.composed import OneByOne

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
