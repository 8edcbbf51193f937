from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from catalog.schemas.contract import SchemaError, SchemaFault, SchemaSource
from catalog.schemas.protobuf.protoc import imports_of
from catalog.schemas.protobuf.validating import PartialMessage, ProtobufValidator, open_message
from tests.support.cases import read_cases
from tests.support.schemas import NOTHING, Documents


def validator(text: Any, name: str = "", version: str = "3", library: Documents = NOTHING) -> ProtobufValidator:
    return open_message(SchemaSource("Protobuf", version, text, name), library)


def told(fault: SchemaFault | None) -> str:
    return str(fault)


def test_imports_are_found_in_linear_time_and_not_in_comments_and_strings() -> None:
    assert imports_of('/* import "a"; */ option x = "import \\"b\\";"; import weak "c.proto";') == ("c.proto",)
    assert imports_of("/*" * 500_000 + 'import "x";') == ()
    assert imports_of('"' * 500_001 + "\\") == ()


CASES: Any = {each["name"]: each for each in read_cases(Path(__file__).parents[3] / "cases/schemas/Protobuf.yaml")}
MAPPED: Any = CASES["the JSON mapping"]
PROTO3: str = CASES["messages"]["schema"]


def test_known_fields_of_another_type_are_all_told() -> None:
    mistyped = bytes.fromhex("220022020a002a070a016b12020a0032020a00")
    assert sorted(map(str, validator(PROTO3).faults(mistyped, None))) == [
        'by_name["k"]: field 1 of plant.v1.Reading.Mark has another type or value',
        "marks[1]: field 1 of plant.v1.Reading.Mark has another type or value",
        "time: field 1 of google.protobuf.Timestamp has another type or value",
    ]


def test_json_bodies_tell_all_that_is_wrong() -> None:
    body = b'{"b": "*", "i": "x", "bs": ["AA", "*", 1], "by": {"7": "*"}, "inner": {"inner": {"at": 1}}, "d": 1}'
    assert [str(each) for each in validator(MAPPED["schema"]).faults(body, "application/json")] == [
        'b: "*" is not base64',
        'i: "x" is not a valid int32',
        'bs[1]: "*" is not base64',
        "bs[2]: 1 is not base64",
        'by[7]: "*" is not base64',
        "inner.inner.at: 1 is not a Timestamp",
    ]


def test_json_is_read_as_json_format_reads_it_without_what_is_invalid() -> None:
    held = validator(MAPPED["schema"])
    for body in MAPPED["valid"]:
        read = held.read(body.encode(), "application/json")
        if '"1e2"' not in body and '"1.0"' not in body:  # exponents in texts, which json_format does not read
            assert read == json_format.Parse(body, held.message(), ignore_unknown_fields=True)
        assert held.fault(b'{"unknown": [1], ' + body[1:].encode(), "application/json") is None
    # Null is unset, at which json_format fails in a list of values.
    assert held.read(b'{"vs": null}', "application/json") == held.message()
    assert held.fault(b'{"vs": null}', "application/json") is None
    for body in (*(each for each, _ in MAPPED["invalid"]), f'{{"l": {"9" * 5000}}}', f'{{"l": "{"9" * 5000}"}}'):
        assert held.fault(body.encode(), "application/json") is not None
        assert isinstance(held.read(body.encode(), "application/json"), PartialMessage | SchemaFault)


def test_a_chain_of_too_many_messages_is_told_of() -> None:
    chain = " ".join(f"message M{n} {{ M{(n + 1) % 1200} next = 1; }}" for n in range(1200))
    with pytest.raises(SchemaError, match="lead on too far"):
        validator(f'syntax = "proto3"; {chain}')


HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
from catalog.schemas.protobuf.validating import open_message
from catalog.schemas.contract import SchemaError, SchemaSource
from tests.support.cases import examples
from tests.support.cases import read_cases
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
