"""Verdicts of every schema family by the cases of ``tests/cases/schemas``: what is valid, what is not and why."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.schemas.contract import SchemaError, SchemaSource
from catalog.schemas.families import FAMILIES, compile_schema, family_of
from tests.support.cases import read_cases
from tests.support.schemas import Documents

FOLDER: Final = Path(__file__).parents[3] / "cases" / "schemas"


def cases() -> Iterator[Any]:
    for family in FAMILIES:
        for case in read_cases(FOLDER / f"{family.name}.yaml"):
            yield pytest.param(family.name, case, id=f"{family.name}: {case['name']}")


def body_of(family: str, written: Any) -> tuple[bytes | None, str | None]:
    """Return a body as a case writes it, and its content type."""
    if isinstance(written, dict):
        body = bytes.fromhex(written["hex"]) if "hex" in written else written["body"].encode()
        return body, written.get("type")
    return None if written is None else written.encode(), None if family == "XSD" else "application/json; charset=utf-8"


@pytest.mark.parametrize(("family", "case"), list(cases()))
def test_verdicts(family: str, case: dict[str, Any]) -> None:
    source = SchemaSource(
        family, case.get("version", ""), case["schema"], case.get("type", ""), case.get("pointer", ""), "main.xsd"
    )
    if "references" in case:
        assert list(family_of(source.family).references_of(source)) == case["references"]
    library = Documents(case.get("documents", {}))
    if "error" in case:
        with pytest.raises(SchemaError) as caught:
            compile_schema(source, library)
        assert case["error"] in f"{caught.value} {caught.value.hint}" and len(str(caught.value)) < 400
        assert caught.value.pointer == case.get("at", caught.value.pointer)
        assert caught.value.hint or family.startswith("Json")
        assert tempfile.gettempdir() not in f"{caught.value}{caught.value.hint}"
        return
    assert [each.path for each in family_of(family).find_ignored_parts(source)] == case.get("ignored", [])
    validator = compile_schema(source, library)
    for written in case.get("valid", ()):
        assert validator.fault(*body_of(family, written), at_any_cost=True) is None, written
    for written, told in case.get("invalid", ()):
        body = body_of(family, written)
        fault = validator.fault(*body, at_any_cost=True)
        assert fault is not None and told in str(fault), (written, fault)
        assert len(fault.message) <= 300 and "\n" not in str(fault)
        assert fault in (*validator.faults(*body), fault)


# Bodies that are made to be costly, in typed columns: each is a value or is told of, within time and memory.


ROOT = Path(__file__).resolve().parents[4]
CHILD = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (60, 61))
import pyarrow as pa
from catalog.schemas.contract import SchemaSource
from catalog.schemas.columns import PayloadColumn
from catalog.schemas.families import family_of
from catalog.schemas.columns import Survey
from tests.support.hostile import zigzag
from tests.support.schemas import NOTHING

members = {"i": {"type": "integer"}, "m": {"additionalProperties": {"type": "number"}, "type": "object"}, "x": {}}
json_source = SchemaSource("JsonSchema", "", {"type": "object", "properties": members})
empty = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
avro = SchemaSource("Avro", "", {"type": "record", "name": "R", "fields": [{"name": "l", "type": empty}]})
for source, body in (
    (json_source, b'{"i":' + b"7" * 1_000_000 + b"}"),
    (json_source, b'{"i":1e999999999}'),
    (json_source, b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b"}"),
    (json_source, ('{"m":{' + ",".join(f'"k{n}":1e300' for n in range(60_000)) + "}}").encode()),
    (avro, zigzag(2**40) + b"\\0"),
):
    survey = Survey()
    columns = family_of(source.family).open_columns(source, NOTHING, survey)
    column = PayloadColumn(source, NOTHING, *columns, survey.findings)
    array, undecoded = column.decode(pa.array([body], pa.binary()), [None])
    print(undecoded[0].why if undecoded else len(array[0].as_py()["m"]))
"""


@pytest.mark.slow
def test_a_costly_body_is_a_value_or_told_of() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-900:]
    said = done.stdout.splitlines()
    expected = ("out of range", "out of range", "too deeply", "60000", "more values than bytes")
    assert all(each in line for each, line in zip(expected, said, strict=True)), said
