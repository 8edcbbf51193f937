"""Bodies that are made to be costly, in typed columns: each is a value or is told of, within time and memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
