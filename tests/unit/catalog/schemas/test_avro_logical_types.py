"""Logical types of Avro: what the type underneath takes, what is invalid and ignored, and what still holds."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from catalog.schemas.avro.filling import open_sampler
from catalog.schemas.avro.validating import AvroValidator, compile_schema, find_ignored_parts
from catalog.schemas.contract import SchemaSource
from catalog.schemas.filling import Chooser
from tests.support.schemas import NOTHING


def validator(document: Any) -> AvroValidator:
    compiled = compile_schema(SchemaSource("Avro", "1.12", document), NOTHING)
    assert isinstance(compiled, AvroValidator)
    return compiled


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, value)
    return target.getvalue()


TEXT, LEAST, MOST = b"\x02a", b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01"
BEYOND: list[tuple[Any, bytes, str]] = [
    ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "2147483647"),
    ({"type": "int", "logicalType": "date"}, b"\xff\xff\xff\xff\x0f", "-2147483648"),
    *(
        ({"type": "long", "logicalType": f"{kind}-{unit}"}, body, str(number))
        for kind in ("timestamp", "local-timestamp")
        for unit in ("millis", "micros", "nanos")
        for body, number in ((LEAST, -(2**63)), (MOST, 2**63 - 1))
    ),
    ({"type": "string", "logicalType": "uuid"}, TEXT, '"a"'),
]
INVALID: list[tuple[Any, bytes, str]] = [
    *(
        ({"type": "bytes", "logicalType": "decimal", **wrong}, b"\x06\x00\xff\xff", '"\\u0000\\u00ff\\u00ff"')
        for wrong in (
            {},
            {"precision": 0},
            {"precision": -1},
            {"precision": "5"},
            {"precision": 5.0},
            {"precision": True},
            {"precision": 2, "scale": 4},
            {"precision": 2, "scale": -1},
            {"precision": 2, "scale": "1"},
        )
    ),
    ({"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 5}, b"ab", '"ab"'),
    ({"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1}, b"", '""'),
    ({"type": "fixed", "name": "F", "size": 2, "logicalType": "duration"}, b"ab", '"ab"'),
    ({"type": "fixed", "name": "F", "size": 1, "logicalType": "uuid"}, b"a", '"a"'),
    *(
        ({"type": "string", "logicalType": each, "precision": 5}, TEXT, '"a"')
        for each in ("decimal", "date", "duration")
    ),
    ({"type": "string", "logicalType": "timestamp-millis"}, TEXT, '"a"'),
    ({"type": "string", "logicalType": 7}, TEXT, '"a"'),
    ({"type": "int", "logicalType": "timestamp-millis"}, b"\x01", "-1"),
    ({"type": "int", "logicalType": "time-micros"}, b"\x01", "-1"),
    ({"type": "int", "logicalType": "uuid"}, b"\x01", "-1"),
    ({"type": "long", "logicalType": "date"}, MOST, str(2**63 - 1)),
    ({"type": "long", "logicalType": "time-millis"}, LEAST, str(-(2**63))),
]


@pytest.mark.parametrize(("schema", "binary", "text"), [*BEYOND, *INVALID])
def test_the_type_underneath_counts(schema: Any, binary: bytes, text: str) -> None:
    held = validator(schema)
    named = {"type": "record", "name": "R", "fields": [{"name": "p", "type": ["null", schema]}]}
    for each, body, written in ((held, binary, text), (validator(named), b"\x02" + binary, f'{{"p": {text}}}')):
        assert each.fault(body, "avro/binary") is None
        assert each.fault(written.encode(), "application/json") is None
        assert each.fault(body + b"\x00", "avro/binary") is not None
    plain = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    crc = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(plain), "CRC-64-AVRO")
    assert held.fault(b"\xc3\x01" + bytes.fromhex(crc) + binary, "avro/single-object") is None
    # A container says what it was written by, with the same invalid logical type.
    header = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    head = io.BytesIO()
    fastavro.schemaless_writer(head, {"type": "map", "values": "bytes"}, header)
    sync = b"s" * 16
    block = b"\x02" + written_long(len(binary)) + binary + sync
    assert held.fault(b"Obj\x01" + head.getvalue() + sync + block, "application/avro") is None


def written_long(number: int) -> bytes:
    return written("long", number)


@pytest.mark.parametrize("schema", [schema for schema, _, _ in INVALID])
def test_what_is_ignored_is_told_by_its_place(schema: Any) -> None:
    document = {"type": "record", "name": "R", "fields": [{"name": "p", "type": ["null", schema]}]}
    (told,) = find_ignored_parts(SchemaSource("Avro", "", document))
    assert told.path == "/fields/0/type/1/logicalType" and told.message
    filler = open_sampler(SchemaSource("Avro", "", document), NOTHING)
    for kind in ("avro/binary", "application/json"):
        body = filler.payload(Chooser(random.Random(1), "2026-01-02T03:04:05Z"), kind)
        assert validator(document).fault(body, kind) is None
