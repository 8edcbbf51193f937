"""Payload columns by the cases of ``tests/cases/tables``: schemas, types, and bodies with what becomes of them."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest

from catalog.model import Catalog, Definition
from catalog.schemas.columns import PayloadColumn, payload_column, payload_findings
from tests.support.cases import read_cases
from tests.support.catalogs import XID, catalog_of
from tests.support.schemas import written

FOLDER: Final = Path(__file__).parents[3] / "cases" / "tables"
FAMILIES: Final[Mapping[str, str]] = {
    "json_schema": "JsonSchema",
    "json_structure": "JsonStructure",
    "avro": "Avro",
    "protobuf": "Protobuf",
}
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"


def cases() -> Iterator[Any]:
    for name, family in FAMILIES.items():
        for case in read_cases(FOLDER / f"{name}.yaml"):
            yield pytest.param(family, case, id=f"{name}: {case['name']}")


def rows() -> Iterator[Any]:
    for param in cases():
        family, case = param.values
        for at, row in enumerate(case.get("rows", ())):
            yield pytest.param(family, case, row, id=f"{param.id} [{at}]")


@pytest.mark.parametrize(("family", "case"), list(cases()))
def test_types_and_findings(family: str, case: Mapping[str, Any]) -> None:
    catalog = catalog_of(family, case["schema"], **case.get("of", {}))
    column = payload_column(catalog, XID)
    assert (str(column.type) if column else None) == case.get("type")
    assert payload_findings(catalog, XID) == tuple(case.get("findings", ()))
    assert column is None or column.findings == payload_findings(catalog, XID)


@pytest.mark.parametrize(("family", "case", "row"), list(rows()))
def test_values(family: str, case: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    column = payload_column(catalog_of(family, case["schema"], **case.get("of", {})), XID)
    assert column is not None
    for body, content_type in bodies(family, case["schema"], row):
        found, why, unfit = decoded(column, body, content_type)
        assert (why, unfit) == (row.get("why"), row.get("unfit", {})), (body, found)
        wanted = row.get("value")
        assert same(found, filled(wanted, found)), f"{found!r} and not {wanted!r}"


@pytest.mark.parametrize(("family", "case"), list(cases()))
def test_one_bad_row_leaves_the_others_be(family: str, case: Mapping[str, Any]) -> None:
    column = payload_column(catalog_of(family, case["schema"], **case.get("of", {})), XID)
    if column is None:
        return
    told = [(row, *given) for row in case.get("rows", ()) for given in bodies(family, case["schema"], row)]
    array, undecoded = column.decode(
        pa.array([body for _, body, _ in told], pa.binary()), [each for _, _, each in told]
    )
    array.validate(full=True)
    assert array.type == column.type
    assert [each.row for each in undecoded if each.column is None] == [
        at for at, (row, _, _) in enumerate(told) if "why" in row
    ]
    values: Counter[str] = Counter()
    for row, _, _ in told:
        values.update(dict.fromkeys(row.get("unfit", ()), 1))
    assert {each.column: each.values for each in undecoded if each.column is not None} == dict(values)
    nulls = ["why" in row or row["value"] is None for row, _, _ in told]
    assert array.is_null().to_pylist() == nulls


def decoded(column: PayloadColumn, body: bytes | None, content_type: str) -> tuple[Any, str | None, Mapping[str, str]]:
    """Return the payload of a body, why it does not parse, and by column what does not fit."""
    array, undecoded = column.decode(pa.array([body], pa.binary()), pa.array([content_type]))
    array.validate(full=True)
    (value,) = array.to_pylist(maps_as_pydicts="strict")
    why = next((each.why for each in undecoded if each.column is None), None)
    return shown(value), why, {each.column: each.why for each in undecoded if each.column is not None}


def bodies(family: str, schema: Any, row: Mapping[str, Any]) -> Iterator[tuple[bytes | None, str]]:
    """Give the body of a row with its content type; a Protobuf message in both of its encodings."""
    if "absent" in row:
        yield None, JSON
    elif "message" in row:
        yield from ((written(row, family, schema, each), each) for each in (BINARY, JSON))
    elif family == "Avro" and "datum" in row:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row["datum"])
        yield out.getvalue(), BINARY
    else:
        told = {"body": row["json"]} if "json" in row else row
        yield written(told, family, schema, ""), JSON if "body" in told else BINARY


def shown(value: Any) -> Any:
    """Return a value as the cases write it."""
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def filled(wanted: Any, found: Any) -> Any:
    """Return what is wanted, with null for the columns that the case leaves out."""
    return {**dict.fromkeys(found), **wanted} if isinstance(wanted, dict) and isinstance(found, dict) else wanted


def same(found: Any, wanted: Any) -> bool:
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in found)
    if isinstance(found, float) and isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(found)
    return bool(found == wanted) and type(found) is type(wanted)


def test_single_objects_and_containers() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    column = payload_column(catalog_of("Avro", schema), XID)
    assert column is not None
    parsed = fastavro.parse_schema(schema)
    for values, why in (([1], None), ([1, 2], "the container file has 2 values, not one"), ([], "0 values, not one")):
        out = io.BytesIO()
        fastavro.writer(out, parsed, [{"x": value} for value in values], codec="deflate")
        found, told, _ = decoded(column, out.getvalue(), "application/avro")
        assert found == ({"x": 1} if why is None else None)
        assert told is None if why is None else told is not None and told.endswith(why)
    out = io.BytesIO()  # how many there are is known before they are read, since each may be of many items
    fastavro.writer(out, parsed, [{"x": 1}, {"x": 0x0FFFFFFF}])
    damaged = out.getvalue().replace(bytes.fromhex("02feffffff01"), bytes.fromhex("02feffffffff"))
    assert damaged != out.getvalue()
    told = decoded(column, damaged, "application/avro")[1]
    assert told is not None and told.endswith("2 values, not one")
    crc = bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(parsed), "CRC-64-AVRO"))
    assert decoded(column, b"\xc3\x01" + crc + b"\x02", "avro/single-object") == ({"x": 1}, None, {})


def test_without_a_schema_there_is_no_column() -> None:
    nothing = Catalog(definitions={XID: Definition(XID, "/messagegroups/g")})
    unloaded = Catalog(definitions={XID: Definition(XID, "/messagegroups/g", dataschemauri="https://example.com/s")})
    invalid = catalog_of("JsonSchema", {"type": 5})
    for catalog, said in ((nothing, ""), (unloaded, "was not loaded"), (invalid, "not a valid JSON schema")):
        assert payload_column(catalog, XID) is None
        findings = payload_findings(catalog, XID)
        assert len(findings) == bool(said) and all(said in each for each in findings)
    with pytest.raises(KeyError):
        payload_column(nothing, "/messagegroups/g/messages/other")
