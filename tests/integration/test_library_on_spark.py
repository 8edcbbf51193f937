"""``xrouter.spark`` on each Spark that it is for, classic and Connect: batches and streams say what ``match`` says.

Executors have nothing of the package but what the program ships: the wheel where they have the libraries that it needs,
else an archive with these.
"""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support import plain
from tests.support.library_cases import PLACES, Input, differences, inputs
from tests.support.spark_versions import (
    INSTALLED,
    PROGRAM,
    SECONDS,
    VERSIONS,
    SparkProgram,
    build_wheel,
    pack_environment,
    pack_wheel,
)

OTHERS: Final = [pytest.param(version, marks=pytest.mark.full) for version in VERSIONS]
AVRO: Final = json.loads((Path(__file__).parents[1] / "cases" / "schemas" / "reading.avsc").read_text())
READING: Final = {
    "flag": True,
    "small": 7,
    "big": 2**40,
    "real": 0.5,
    "raw": b"\xff",
    "day": date(2026, 1, 2),
    "moment": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5, 6),
    "price": Decimal("12.50"),
    "tags": ["a", None][:1],
    "counts": {"a": 1},
    "inner": {"x": 1},
}
NOTE: Final = {
    "type": "object",
    "properties": {"big": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["text"],
}


TYPED: Final = plain.catalog(
    {},
    garden={
        "Reading": plain.event("reading", dataschemaformat="Avro/1.12", dataschema=AVRO),
        "Note": plain.event("note", dataschemaformat="JsonSchema/draft-07", dataschema=NOTE),
    },
)


def event_row(offset: int, kind: str, content_type: str, body: bytes) -> dict[str, Any]:
    named = plain.kafka_headers(kind, source="/", content=content_type)
    headers = [{"key": name, "value": value} for name, value in named]
    row = {"topic": "t", "partition": 0, "offset": offset, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    return {**row, "key": None, "value": body, "headers": headers}


def typed_rows() -> list[dict[str, Any]]:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, AVRO, READING)
    return [
        event_row(0, "reading", "avro/binary", body.getvalue()),
        event_row(1, "note", "application/json", b'{"text": "hi", "big": 3}'),
        event_row(2, "note", "application/json", b'{"big": 3}'),
        event_row(3, "note", "application/json", b"{"),
    ]


def way_of(given: Input) -> str:
    """Say how an input is written besides as a batch: as a stream, or batch by batch by a function."""
    return "batch" if len(given.places) < 100 else "each" if given.kind == "kafka" else "stream"


def write_given(folder: Path) -> list[Input]:
    """Write what the program reads, and return the inputs that are among it."""
    given = list(inputs())
    for number, each in enumerate(given):
        place = folder / "given" / str(number)
        (place / "rows").mkdir(parents=True)
        (place / "matcher").write_bytes(pickle.dumps(each.matcher))
        rows = pa.Table.from_batches([each.rows])
        if each.kind == "kafka":
            moments = rows.column("timestamp").cast(pa.timestamp("ms")).cast(pa.timestamp("us", "UTC"))
            rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", moments)
        pq.write_table(rows, place / "rows" / "rows.parquet", row_group_size=1000)
        (place / "way").write_text(way_of(each))
    (folder / "typed.json").write_text(json.dumps(TYPED))
    types = [("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32())]
    types += [("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))]
    types += [("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))]
    (folder / "typed").mkdir()
    pq.write_table(pa.Table.from_pylist(typed_rows(), pa.schema(types)), folder / "typed" / "rows.parquet")
    return given


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("mode", ["classic", "connect"])
@pytest.mark.parametrize("version", [INSTALLED, *OTHERS])
def test_batches_and_streams_say_what_match_says(version: str, mode: str, wheel: Path, tmp_path: Path) -> None:
    given = write_given(tmp_path)
    program = SparkProgram.create(version, wheel, tmp_path)
    if version == INSTALLED:
        shipped = str(pack_wheel(wheel, tmp_path))
    else:
        shipped = f"{pack_environment(wheel, tmp_path)}#xrouter_packages"
    if mode == "classic":
        conf = {"spark.archives" if "#" in shipped else "spark.submit.pyFiles": shipped}
        program.run(PROGRAM, tmp_path, conf=conf, cwd=tmp_path)
    else:
        with program.connect_server(tmp_path) as address:
            program.run(PROGRAM, tmp_path, address, shipped, conf={}, cwd=tmp_path)
    out = tmp_path / "out"
    for number, each in enumerate(given):
        for way in {"batch", way_of(each)}:
            assert differences(each, read(out / str(number) / way)) == {}, way
    assert sum(len(each.places) for each in given) == len(PLACES) > 500
    told = {row["position"]: row for row in read(out / "typed")}
    nothing = dict.fromkeys(READING)
    payloads = [told[f"t-0-{offset}"]["payload"] for offset in range(4)]
    assert {**payloads[0], "counts": dict(payloads[0]["counts"])} == {**READING, "text": None}
    assert payloads[1] == {**nothing, "text": "hi", "big": 3}
    assert payloads[2] == {**nothing, "text": None, "big": 3}
    assert payloads[3] is None and told["t-0-3"]["undecoded"]


def read(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.parquet"))
    rows: list[dict[str, Any]] = pa.concat_tables(pq.ParquetFile(each).read() for each in files).to_pylist()
    return rows
