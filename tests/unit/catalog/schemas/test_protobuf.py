from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from catalog.schemas.contract import SchemaError, SchemaFault, SchemaSource
from catalog.schemas.protobuf.protoc import imports_of
from catalog.schemas.protobuf.validating import ProtobufValidator, open_message, references_of
from tests.support.schemas import NOTHING, Documents

PROTO3 = """
// import "not/this.proto";
/* nor "this */ syntax = "proto3";
package plant.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/any.proto";
message Reading {
  message Mark { int32 at = 1; optional Reading reading = 2; }
  enum State { OFF = 0; ON = 1; }
  string device = 1;
  double celsius = 2;
  State state = 3;
  repeated Mark marks = 4;
  map<string, Mark> by_name = 5;
  google.protobuf.Timestamp time = 6;
  google.protobuf.Any rest = 7;
}
message Other { bool flag = 1; message Mark {} }
"""
PROTO2 = """
package sparks;
message Payload {
  message Metric { required string name = 1; enum Kind { A = 0; } optional Kind kind = 2; }
  optional uint64 timestamp = 1;
  repeated Metric metrics = 2;
  extensions 6 to 9;
}
"""


def validator(text: Any, name: str = "", version: str = "3", library: Documents = NOTHING) -> ProtobufValidator:
    return open_message(SchemaSource("Protobuf", version, text, name), library)


def told(fault: SchemaFault | None) -> str:
    return str(fault)


def test_binary_bodies() -> None:
    held = validator(PROTO3)
    assert held.fault(None, None) is None
    assert held.fault(b"\x0a\x01d\x11" + b"\x00" * 8 + b"\x18\x63", "application/protobuf") is None
    assert told(held.fault(b"\x0a\x09d", None)) == "not a plant.v1.Reading: Wire format was corrupt"
    assert told(held.fault(b"\x0a\x01\xff", None)).startswith("not a plant.v1.Reading")
    for unknown in (
        b"\x42\x01d",
        b"\x22\x00\x22\x02\x18\x01",
        b"\x2a\x07\x0a\x01k\x12\x02\x18\x01",
        b"\x32\x02\x18\x01",
    ):
        assert held.fault(unknown, None) is None
    assert told(held.fault(b"\x42\x01d\x08\x01", None)) == "field 1 of plant.v1.Reading has another type or value"
    assert told(held.fault(b"\x22\x00\x22\x02\x0d\x01", None)).startswith("not a plant.v1.Reading")
    mistyped = b"\x22\x00\x22\x02\x0a\x00\x2a\x07\x0a\x01k\x12\x02\x0a\x00\x32\x02\x0a\x00"
    assert sorted(map(told, held.faults(mistyped, None))) == [
        'by_name["k"]: field 1 of plant.v1.Reading.Mark has another type or value',
        "marks[1]: field 1 of plant.v1.Reading.Mark has another type or value",
        "time: field 1 of google.protobuf.Timestamp has another type or value",
    ]


def test_required_fields_closed_enums_and_extensions_of_proto2() -> None:
    held = validator(PROTO2, "Payload", "2.0")
    assert held.fault(b"\x08\x05", None) is None
    assert told(held.fault(b"\x12\x00", None)) == "metrics[0].name: a required field is missing"
    assert held.fault(b"\x12\x05\x0a\x01n\x10\x00", None) is None
    assert told(held.fault(b"\x12\x05\x0a\x01n\x10\x07", None)).startswith(
        "metrics[0]: field 2 of sparks.Payload.Metric has another type or value"
    )
    assert held.fault(b"\x30\x01\x3a\x01x", None) is None
    assert held.fault(b"\x30\x01\x50\x01", None) is None
    assert [each.path for each in held.faults(b"\x12\x00\x12\x00", None)] == ["metrics[0].name", "metrics[1].name"]
    assert told(held.fault(b'{"metrics": [{}]}', "application/json")) == "metrics[0].name: a required field is missing"


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        ('{"celsius": "hot"}', "celsius", "not a valid double"),
        ('{"marks": [{"at": 1}, {"at": 1.5}]}', "marks[1].at", "1.5 is not a valid int32"),
        ('{"nothing": 1, "state": "MAYBE"}', "state", "MAYBE"),
        ('{"marks": [{"nothing": 1, "at": 1.5}]}', "marks[0].at", "1.5 is not a valid int32"),
        ('{"state": "MAYBE"}', "state", "MAYBE"),
        ('{"time": "yesterday"}', "time", "Timestamp"),
        ("[]", "", "a message is a JSON object"),
        ("{", "", "JSON"),
        ("", "", "JSON"),
        ('{"rest": {"@type": "x/unknown.Type"}}', "rest", "unknown.Type"),
        ('{"device": "a", "device": "b"}', "", "'device' is there twice"),
    ],
)
def test_json_faults_say_where(body: str, path: str, message: str) -> None:
    fault = validator(PROTO3).fault(body.encode(), "application/json; charset=utf-8")
    assert fault is not None
    assert (fault.path, message in fault.message) == (path, True), fault
    assert "\n" not in fault.message


def test_json_bodies() -> None:
    held = validator(PROTO3)
    rest = {"@type": "type.googleapis.com/plant.v1.Other", "flag": True}
    whole = {"device": "d", "byName": {"k": {"at": 1}}, "time": "2026-01-02T03:04:05Z", "rest": rest, "state": "ON"}
    assert held.fault(json.dumps(whole).encode(), "application/json") is None
    for unknown in ('{"nothing": 1}', '{"marks": [{"x": {}}], "byName": {"k": {"at": 1, "x": 2}}, "x": [1e400]}'):
        assert held.fault(unknown.encode(), "application/json") is None
    assert held.fault(b"\xff", "application/json") is not None
    assert held.fault(None, "application/json") is None
    clock = validator('import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }')
    assert clock.fault(b'{"t": "2026-01-02T03:04:05Z"}', "text/json") is None


@pytest.mark.parametrize(
    ("name", "number"),
    [("", 1), ("Reading", 1), ("plant.v1.Reading", 1), ("Reading.Mark", 2), ("State", 0), ("Mark", 0), ("reading", 0)],
)
def test_names_of_messages(name: str, number: int) -> None:
    if number:
        found = validator(PROTO3, name).message.DESCRIPTOR.full_name
        assert found == f"plant.v1.{name.removeprefix('plant.v1.') or 'Reading'}"
        return
    with pytest.raises(SchemaError) as caught:
        validator(PROTO3, name)
    assert "Reading.Mark" in f"{caught.value} {caught.value.hint}"


def test_imports_come_from_the_library() -> None:
    text = 'syntax = "proto3"; import public "a/b.proto"; import "google/protobuf/any.proto"; message M { a.B b = 1; }'
    inner = "syntax = \"proto3\"; package a; import 'c.proto'; message B { C c = 1; }"
    library = Documents({"a/b.proto": inner, "c.proto": 'syntax = "proto3"; message C { int32 x = 1; }'})
    assert list(references_of(SchemaSource("Protobuf", "3", text))) == ["a/b.proto"]
    assert validator(text, library=library).fault(b"\x0a\x04\x0a\x02\x08\x01", None) is None
    with pytest.raises(SchemaError, match=r"the import 'a/b\.proto' is not known"):
        validator(text)
    ring = Documents({"a/b.proto": f"{inner} // {{}}", "c.proto": 'import "a/b.proto";'})
    with pytest.raises(SchemaError, match=r"recursively|cycle|defined"):
        validator(text, library=ring)


@pytest.mark.parametrize(
    "path", ["/etc/hostname", "../x.proto", "a/../b.proto", "x", "a b.proto", "a.proto/b.proto", ".x.proto"]
)
def test_odd_imports_are_refused(path: str) -> None:
    with pytest.raises(SchemaError, match="cannot be imported") as caught:
        validator(f'import "{path}"; message M {{}}', library=Documents({path: "message X {}"}))
    assert "relative" in caught.value.hint


def test_editions_and_texts_that_say_no_syntax() -> None:
    held = validator('edition = "2023"; message M { int32 x = 1 [features.field_presence = LEGACY_REQUIRED]; }')
    assert told(held.fault(b"", None)) == "x: a required field is missing"
    assert validator("message M { int32 x = 1; }", version="3").fault(b"\x08\x01", None) is None
    assert validator("message M { required int32 x = 1; }", version="2.0").fault(b"", None) is not None


def test_imports_are_found_in_linear_time_and_not_in_comments_and_strings() -> None:
    assert imports_of('/* import "a"; */ option x = "import \\"b\\";"; import weak "c.proto";') == ("c.proto",)
    assert imports_of("/*" * 500_000 + 'import "x";') == ()
    assert imports_of('"' * 500_001 + "\\") == ()


HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
from catalog.schemas.protobuf.validating import open_message
from catalog.schemas.contract import SchemaError, SchemaSource
from tests.support.cases import examples
from tests.support.schemas import NOTHING
for text in ("message M {" * 100_000, "message M { option (x) = {" + "a{" * 100_000, "enum E {" + "A=0;" * 100_000,
             "".join(f"message M{n} {{}}" for n in range(50_000))):
    try:
        open_message(SchemaSource("Protobuf", "3", text), NOTHING)
        print("compiled")
    except SchemaError as error:
        print(str(error)[:70])
"""


@pytest.mark.slow
def test_hostile_texts_take_little_time_and_memory() -> None:
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-600:]
    lines = done.stdout.splitlines()
    assert len(lines) == 4, lines
