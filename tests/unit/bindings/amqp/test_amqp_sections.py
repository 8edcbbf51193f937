"""AMQP messages as native records: every section, every kind of body, and what is no message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Data, Described, symbol, timestamp, ulong

from bindings.amqp.publisher import encode_message
from bindings.amqp.values import AmqpValue, DecodedMessage, MalformedMessage, decode_message, to_row
from bindings.parts import BINARY_KIND, Part
from bindings.protocols import BINDINGS
from tests.support.amqp import amqp_message, section
from tests.support.cases import read_cases

CASES: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "amqp.yaml")


def record(message: DecodedMessage) -> dict[str, Any]:
    """Return the native record, having made sure that it survives being taken apart again."""
    native = BINDINGS["AMQP/1.0"].build(message.parts)
    again = BINDINGS["AMQP/1.0"].build(BINDINGS["AMQP/1.0"].split(native))
    assert again == native
    return native


def test_every_section_of_a_message() -> None:
    raw = b"".join(
        (
            section("header", [True, proton.ubyte(7), proton.uint(60000), False, proton.uint(2)]),
            section("delivery-annotations", {symbol("x-hop"): 1}),
            section("message-annotations", {symbol("x-opt"): "a", ulong(5): True}),
            section(
                "properties",
                [
                    *("m-1", b"me", "to", "sub", "back", ulong(9), symbol("text/plain"), symbol("gzip")),
                    *(timestamp(1767323045678), timestamp(1767323045000), "g", proton.uint(4), "rg"),
                ],
            ),
            section("application-properties", {"a": "text", "b": 5, "c": 1.5, "d": None, "e.f": b"\x00\xff"}),
            section("data", b"body"),
            section("footer", {symbol("sum"): proton.ubyte(1)}),
        )
    )
    message = decode_message(raw)
    assert message.body == b"body"
    assert record(message) == CASES["every section"]


@pytest.mark.parametrize(
    ("value", "form", "kind"),
    [
        (proton.float32(0.1), 0.1, "float"),
        (2.0, 2.0, None),
        (float("nan"), "NaN", "double"),
        (float("-inf"), "-Infinity", "double"),
        (timestamp(1767323045678000), 1767323045678000, "timestamp"),
        (timestamp(-(2**63)), -(2**63), "timestamp"),
    ],
)
def test_numbers_and_times_of_json_and_others(value: Any, form: Any, kind: str | None) -> None:
    message = decode_message(
        section("application-properties", {"p": value}) + section("message-annotations", {symbol("p"): value})
    )
    native = record(message)
    assert native["application-properties"]["p"] == form
    assert native["message-annotations"]["p"] == form
    types = {"application-properties.p": kind, "message-annotations.p": kind} if kind else None
    assert native.get("types") == types
    assert type(native["application-properties"]["p"]) is type(form)


def test_values_within_values_keep_their_types_beside_them() -> None:
    value = {"list": [ulong(1), "a", [symbol("s")]], "bytes": b"\xff", "none": None}
    native = record(decode_message(section("application-properties", {"p": value})))
    assert native["application-properties"]["p"] == {
        "list": [1, "a", ["s"]],
        "bytes": {"base64": "/w=="},
        "none": None,
    }
    assert native["types"] == {
        "application-properties.p": "map",
        "application-properties.p/list": "list",
        "application-properties.p/list/0": "ulong",
        "application-properties.p/list/2": "list",
        "application-properties.p/list/2/0": "symbol",
        "application-properties.p/none": "null",
    }


@pytest.mark.parametrize(
    ("sections", "body", "kind"),
    [
        ([("data", b"one")], b"one", None),
        ([("data", b"one"), ("data", b"\xff\x00"), ("data", b""), ("data", b"three")], b"one\xff\x00three", None),
        ([("data", b"")], b"", None),
        ([("amqp-value", "täxt")], "täxt".encode(), "string"),
        ([("amqp-value", b"\xff")], b"\xff", "binary"),
        ([("amqp-value", None)], None, "null"),
        ([("amqp-value", 5)], b"5", "long"),
        ([("amqp-value", True)], b"true", "boolean"),
        ([("amqp-value", timestamp(0))], b'"1970-01-01T00:00:00Z"', "timestamp"),
        ([("amqp-value", {"a": [1, None, b"x"]})], b'{"a":[1,null,{"base64":"eA=="}]}', "map"),
        ([("amqp-value", [1, "a"])], b'[1,"a"]', "list"),
        ([("amqp-value", Described(symbol("t"), 1))], b'{"descriptor":"t","value":1}', "described"),
        ([("amqp-sequence", [1, 2])], b"[1,2]", "amqp-sequence"),
        ([("amqp-sequence", [1]), ("amqp-sequence", ["a", {"b": 2}])], b'[1,"a",{"b":2}]', "amqp-sequence"),
        ([], None, None),
    ],
)
def test_every_kind_of_body(sections: list[tuple[str, Any]], body: bytes | None, kind: str | None) -> None:
    message = decode_message(b"".join(section(name, value) for name, value in sections))
    assert message.body == body
    assert record(message).get("types", {}).get("body") == kind


def test_symbolic_descriptors_and_empty_sections() -> None:
    data = Data()
    data.put_object(Described(symbol("amqp:properties:list"), ["id"]))
    raw = bytes(data.encode()) + section("application-properties", None) + section("header", [])
    assert decode_message(raw) == DecodedMessage([Part("properties.message-id", b"id")], None)


def test_the_first_of_a_repeated_key_counts_and_odd_text_is_kept() -> None:
    pairs = b"\xa1\x01k\x54\x01" + b"\xa1\x01k\x54\x02" + b"\xa1\x01t\xa1\x01\xff"
    raw = b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 6]) + pairs
    assert decode_message(raw).parts[:2] == [
        Part("application-properties.k", b"1", "json"),
        Part("application-properties.t", b"\xff", BINARY_KIND),
    ]
    assert record(decode_message(raw))["types"] == {
        "application-properties.k": "int",
        "application-properties.t": "string",
    }


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"hello", "no section begins at byte 0"),
        (section("header", [])[:-1] + b"\xc0", "truncated|missing"),
        (b"\x00\x53\x99\x45", "not one of a message"),
        (b"\x00\xa1\x01x\x45", "not one of a message"),
        (section("data", "text"), "data is a string, not a binary"),
        (section("properties", {"a": 1}), "properties is a map, not a list"),
        (section("properties", [None] * 14), "14 fields"),
        (section("data", b"a") + section("amqp-value", "b"), "several"),
        (section("amqp-value", "a") + section("amqp-value", "b"), "several"),
    ],
)
def test_what_is_no_message_says_why_and_keeps_its_bytes(raw: bytes, says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        decode_message(raw)
    row = to_row(raw, "/endpoints/e", 5, 10)
    assert (row.protocol, row.body) == ("AMQP/1.0", raw)
    assert [part.key for part in row.properties] == ["undecodable"]


@given(st.binary(max_size=300))
def test_any_bytes_become_a_row(raw: bytes) -> None:
    row = to_row(b"\x00\x53" + raw, "/endpoints/e", 5, 100)
    for part in row.properties:
        part.key.encode("utf-8")


def test_a_row_is_made_of_what_proton_gives_which_is_a_bytearray() -> None:
    values = {"who": AmqpValue("uuid", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), "raw": b"\xff", "text": "t"}
    data = encode_message(
        amqp_message("n", b"body", properties={"message-id": values["who"]}, application_properties=values)
    )
    row = to_row(bytearray(data), "/endpoints/e", 0, 2**20)
    assert row == to_row(data, "/endpoints/e", 0, 2**20)
    assert all(type(part.value) is bytes for part in row.properties)
    assert type(to_row(bytearray(b"no message"), "/endpoints/e", 0, 2**20).body) is bytes
