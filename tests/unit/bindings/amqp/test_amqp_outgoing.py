"""What a sink sends, read by proton and by our own decoder."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import proton
import pytest

from bindings.amqp.binding import AmqpSending
from bindings.amqp.publisher import EncodingError, encode_message
from bindings.amqp.values import AmqpValue, decode_message, value_of_part
from bindings.parts import JSON_KIND, Part
from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from tests.support.amqp import amqp_message
from tests.support.cases import read_cases

CASES = read_cases(Path(__file__).parents[3] / "cases" / "values" / "amqp.yaml")

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
MOMENT = AmqpValue("timestamp", round(AT.timestamp() * 1000))
A_UUID = uuid.UUID("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")


def test_proton_reads_what_we_encode() -> None:
    message = proton.Message()
    message.decode(
        encode_message(
            amqp_message(
                "node",
                b"\xffbody",
                {
                    "message-id": AmqpValue("uuid", str(A_UUID)),
                    "user-id": b"me",
                    "to": "there",
                    "creation-time": MOMENT,
                    "group-sequence": 7,
                    "content-type": AmqpValue("symbol", "application/json"),
                },
                {"s": "t", "i": 5, "f": 1.5, "b": True, "y": AmqpValue("symbol", "x"), "when": MOMENT},
                {"x-opt-a": 1},
            )
        )
    )
    assert message.durable and message.inferred
    assert (message.id, message.user_id, message.address) == (A_UUID, b"me", "there")
    assert (message.content_type, message.body, message.group_sequence) == ("application/json", b"\xffbody", 7)
    assert message.creation_time == AT.timestamp()
    found: Any = message.properties
    assert found == {"s": "t", "i": 5, "f": 1.5, "b": True, "y": "x", "when": AT.timestamp() * 1000}
    assert type(found["y"]) is proton.symbol and type(found["when"]) is proton.timestamp
    assert message.annotations == {"x-opt-a": 1}


@pytest.mark.parametrize(("kind", "value", "form"), CASES["outgoing"])
def test_every_type_goes_out_and_comes_back(kind: str, value: Any, form: Any) -> None:
    typed = AmqpValue(kind, bytes.fromhex(value) if isinstance(form, dict) else value)
    message = decode_message(encode_message(amqp_message("node", b"", application_properties={"p": typed})))
    native = BINDINGS["AMQP/1.0"].build(message.parts)
    assert native["application-properties"]["p"] == form
    obvious = ("boolean", "long", "double", "binary", "string")
    assert native.get("types", {}).get("application-properties.p", typed.kind) == typed.kind
    assert ("types" in native) == (typed.kind not in obvious)


def test_no_body_and_no_properties() -> None:
    message = decode_message(encode_message(amqp_message("node", header={"durable": False})))
    assert message.body is None
    assert BINDINGS["AMQP/1.0"].build(message.parts) == {"header": {"durable": False}, "types": {"body": "null"}}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (amqp_message("n", properties={"colour": "red"}), "no property colour"),
        (amqp_message("n", application_properties={"p": 2**63}), "is not a valid long"),
        (amqp_message("n", application_properties={"p": AmqpValue("ubyte", 256)}), "p: '256' is not a valid ubyte"),
        (amqp_message("n", application_properties={"p": AmqpValue("symbol", "ä")}), "a symbol must be ASCII"),
        (amqp_message("n", application_properties={"p": AmqpValue("uuid", "x")}), "is not a valid uuid"),
        (amqp_message("n", properties={"content-type": "tëxt"}), "properties.content-type: a symbol must be ASCII"),
    ],
)
def test_what_cannot_be_sent_says_where(message: Outbound, says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        encode_message(message)


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff"])
def test_a_value_that_is_no_json_goes_as_it_is(text: bytes) -> None:
    """Only others write such a value to an inbox topic; it must not hold a batch up."""
    part = Part("application-properties.a", text, JSON_KIND)
    value = value_of_part(part, {})
    assert (value.kind, value.value) == ("binary", text) if text == b"\xff" else ("string", text.decode())
    assert AmqpSending().convert_header("application-properties.a", part) is not None
