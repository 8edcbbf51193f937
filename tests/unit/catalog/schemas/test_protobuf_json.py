"""The JSON mapping of Protobuf: what conforms, what violates, and the messages that it stands for."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from catalog.schemas.contract import SchemaFault, SchemaSource
from catalog.schemas.protobuf.validating import PartialMessage, ProtobufValidator, compile_schema
from tests.support.schemas import NOTHING


def validator(document: str) -> ProtobufValidator:
    compiled = compile_schema(SchemaSource("Protobuf", "3", document), NOTHING)
    assert isinstance(compiled, ProtobufValidator)
    return compiled


MAPPED = """
syntax = "proto3";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum E { ZERO = 0; ONE = 1; }
message M {
  bytes b = 1; int32 i = 2; int64 l = 3; uint32 u = 4; uint64 ul = 5; float f = 6; double d = 7; bool t = 8;
  string s = 9; E e = 10; google.protobuf.Timestamp at = 11; google.protobuf.Duration span = 12;
  google.protobuf.FieldMask mask = 13;
  google.protobuf.Value v = 14; google.protobuf.ListValue list = 15; google.protobuf.Struct struct = 16;
  google.protobuf.BytesValue wb = 17; google.protobuf.Int64Value wl = 18; google.protobuf.BoolValue wt = 19;
  repeated bytes bs = 20; map<int32, bytes> by = 21; map<bool, string> flags = 22;
  repeated google.protobuf.Value vs = 23; oneof one { string x = 24; bytes y = 25; }
  M inner = 26;
}
"""
CONFORMS: dict[str, list[str]] = {
    "b": [
        *('""', '"AAE="', '"AAE"', '"-_8="', '"-_8"', '"+/8="', '"+/8"', '"AA=="', '"AA"', '"AB"', "null"),
    ],
    "i": [
        "1",
        '"1"',
        "-2147483648",
        "2147483647",
        "1.0",
        "1e2",
        '"1e2"',
        '"-1"',
        "2.147483647e9",
        '"1.0"',
        "null",
        "-0",
    ],
    "l": ['"9223372036854775807"', "9223372036854775807", "-9223372036854775808", '"-9223372036854775808"', "1e18"],
    "u": ["4294967295", '"0"'],
    "ul": ["18446744073709551615", '"18446744073709551615"'],
    "f": ["1", "0.5", '"0.5"', '"NaN"', '"Infinity"', '"-Infinity"', "3.4028234663852886e38", '"1e2"', "1e-400"],
    "d": ["1e308", '"NaN"', '"-Infinity"', '"1.5"', "123456789012345678901234567890"],
    "t": ["true", "false", "null"],
    "s": ['""', '"\\ud83d\\ude00"'],
    "e": ['"ONE"', "1", "7", "1.0", '"1"', "null"],
    "at": [
        *('"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05.123456789Z"', '"2026-01-02T03:04:05+01:00"'),
        *('"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999999Z"', "null"),
    ],
    "span": ['"1s"', '"1.5s"', '"-1.000000001s"', '"315576000000s"', '"0s"'],
    "mask": ['"a,bC"', '""'],
    "v": ["null", "1", '"x"', "[1, null]", '{"a": {}}', "true"],
    "list": ["[]", "[null, 1]"],
    "struct": ["{}", '{"a": null}'],
    "wb": ['"AAE"', "null"],
    "wl": ['"1"', "1", "null"],
    "wt": ["false", "null"],
    "bs": ['["AAE", "_w"]', "[]", "null"],
    "by": ['{"7": "AAE"}', "{}", "null"],
    "flags": ['{"true": "x"}'],
    "vs": ["[null, 1]"],
    "x": ['"a"'],
    "inner": ["{}", "null", '{"unknown": {"b": 5}}', f'{{"unknown": [{"9" * 5000}, 1e400]}}'],
}
VIOLATES: dict[str, list[str]] = {
    "b": [
        *('"*"', '"AA A="', '"A"', '"AAAAA"', '"AAE=="', '"A==="', '"="', '"===="', '"AA="', '"AAE=AAE="', '"A-+A"'),
        *('"AA\\nE="', '" AAE="', '"é"', "5", "[]", "true"),
    ],
    "i": [
        *(
            '""',
            '"x"',
            "1.5",
            '"1.5"',
            "2147483648",
            '"2147483648"',
            "-2147483649",
            "1e10",
            "true",
            "[]",
            "{}",
            '"1_0"',
        ),
        *('" 1"', '"1 "', '"0x1"', '"NaN"', "1e400", '"1e9999"', '"\\u0661"', '"--1"'),
    ],
    "l": ["9223372036854775808", '"9223372036854775808"', "1e19", "-1e400", "9" * 5000, f'"{"9" * 5000}"'],
    "u": ["-1", "4294967296"],
    "ul": ["-1", "18446744073709551616", '"-1"'],
    "f": ["1e39", '"1e39"', '"inf"', '"nan"', '"infinity"', '""', '"1_0"', '" 1"', "true", "NaN", "Infinity", '"x"'],
    "d": ["1e400", '"1e400"', '"-1e400"', '"inf"', "NaN", "9" * 400, '"NAN"'],
    "t": ['"true"', "1", "0", '"1"'],
    "s": ["1", "true", "[]", '"\\ud800"', '"\\udc00x"'],
    "e": ['"MAYBE"', '"one"', "1.5", "true", "2147483648", '""', '"1.5"', "[]"],
    "at": [
        *(
            '"yesterday"',
            '"2026-01-02T03:04:05"',
            '"2026-1-2T3:4:5Z"',
            '"2026-01-02 03:04:05Z"',
            '"2026-02-30T00:00:00Z"',
        ),
        *(
            '"2026-01-02T03:04:05.1234567890Z"',
            '"2026-01-02T03:04:05.Z"',
            '"2026-01-02T25:00:00Z"',
            "0",
            '"2026-01-02"',
            '""',
        ),
        *('"10000-01-01T00:00:00Z"', '"0000-01-01T00:00:00Z"', '{"seconds": 1}', '"2026-01-02T03:04:05+0100"'),
    ],
    "span": [
        '"1"',
        '"1.5"',
        "1",
        '"315576000001s"',
        '"s"',
        '"1_0s"',
        '" 1s"',
        '"1e2s"',
        '"1.0000000001s"',
        '{"seconds": 1}',
        '"1m"',
    ],
    "mask": ["1", '["a"]'],
    "list": ["{}", "1"],
    "struct": ["[]", '"x"'],
    "wb": ['"*"', "1"],
    "wl": ['"x"', "true", '"9223372036854775808"'],
    "wt": ['"true"', "0"],
    "bs": ['["*"]', "[null]", '"AAE"', "{}"],
    "by": ['{"7": "*"}', '{"x": "AAE"}', '{"7": null}', '{"2147483648": ""}', "[]"],
    "flags": ['{"1": "x"}', '{"True": "x"}', '{"true": 1}'],
    "x": ['"a", "y": "AAE"'],
    "inner": ["[]", "1", '{"b": "*"}', '{"inner": {"i": "x"}}', '"x"'],
}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in CONFORMS.items() for each in values])
def test_what_the_json_mapping_has_conforms(name: str, value: str) -> None:
    body = f'{{"{name}": {value}}}'.encode()
    assert validator(MAPPED).fault(body, "application/json") is None
    assert validator(MAPPED).fault(b'{"unknown": [1], ' + body[1:], "application/json") is None


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in VIOLATES.items() for each in values])
def test_what_the_json_mapping_has_not_violates(name: str, value: str) -> None:
    held = validator(MAPPED)
    for body in (f'{{"{name}": {value}}}', f'{{"unknown": {{"b": 1}}, "{name}": {value}}}'):
        fault = held.fault(body.encode(), "application/json")
        assert fault is not None and len(fault.message) <= 300 and "\n" not in fault.message
        assert isinstance(held.read(body.encode(), "application/json"), PartialMessage | SchemaFault)


def test_json_bodies_tell_all_that_is_wrong() -> None:
    body = b'{"b": "*", "i": "x", "bs": ["AA", "*", 1], "by": {"7": "*"}, "inner": {"inner": {"at": 1}}, "d": 1}'
    assert [str(each) for each in validator(MAPPED).faults(body, "application/json")] == [
        'b: "*" is not base64',
        'i: "x" is not a valid int32',
        'bs[1]: "*" is not base64',
        "bs[2]: 1 is not base64",
        'by[7]: "*" is not base64',
        "inner.inner.at: 1 is not a Timestamp",
    ]


@pytest.mark.parametrize(("name", "value"), [(name, each) for name, values in CONFORMS.items() for each in values])
def test_json_gives_the_message_that_json_format_gives(name: str, value: str) -> None:
    held, body = validator(MAPPED), f'{{"{name}": {value}}}'
    read: Any = held.read(body.encode(), "application/json")
    if (
        value in ('"1e2"', '"1.0"') or len(value) > 4000
    ):  # exponents in texts, which the mapping has and json_format has not
        return
    assert read == json_format.Parse(body, held.message(), ignore_unknown_fields=True)
