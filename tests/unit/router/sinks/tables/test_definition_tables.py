"""A table for each definition: its place, its typed payload, its growth; and partitions and upkeep of every table."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from catalog.load import load
from catalog.model import Catalog
from catalog.schemas.columns import payload_column
from catalog.schemas.ids.deciding import FrameSettings
from router.errors import SinkError
from router.settings import TableSink
from router.sinks import ArrowSink, Commit, WriteResult, open_sink
from router.sinks.contract import StagedCommit
from router.sinks.jsonlines import DEAD_LETTER, WIDE
from router.sinks.tables.opening import DefinitionStager, DefinitionTablesSink
from router.sinks.tables.staging import TableFileStager


@pytest.fixture(autouse=True, params=["of the driver", "of workers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write tables of definitions from the driver, or as workers stage them."""
    if request.param == "of the driver":
        return
    write, tried = DefinitionTablesSink.write, itertools.count()

    def staged(sink: DefinitionTablesSink, rows: pa.Table, commit: Commit) -> WriteResult:
        staging = sink.make_stager(commit)
        if staging is None:
            return write(sink, rows, commit)
        half = rows.num_rows // 2
        shares = [share for share in (rows[:half], rows[half:]) if share.num_rows]
        task = f"{next(tried)}-x"
        files = [file for share in shares for file in staging.write(share, task, sink._payloads.catalog)]
        return sink.commit_staged(StagedCommit(tuple(files)), commit)

    monkeypatch.setattr(DefinitionTablesSink, "write", staged)


NOON = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)


def catalog(folder: Path, **members: dict[str, Any]) -> Catalog:
    """A catalog of one group ``mill`` with a definition for each set of JSON Schema properties."""
    messages = {
        name: {
            "envelopemetadata": {"type": {"value": name}},
            "dataschemaformat": "JSONSchema/draft-07",
            "dataschema": {"type": "object", "properties": properties},
        }
        for name, properties in members.items()
    }
    messages["bare"] = {"envelopemetadata": {"type": {"value": "bare"}}}
    path = folder / "catalog.json"
    path.write_text(json.dumps({"messagegroups": {"mill": {"envelope": "CloudEvents/1.0", "messages": messages}}}))
    return load([path])


def row(name: str, data: bytes | None, number: int = 0) -> dict[str, Any]:
    return {
        "id": f"{name}-{number}",
        "type": name,
        "datacontenttype": "application/json",
        "data": data,
        "message": f"/messagegroups/mill/messages/{name}",
        "received": NOON + timedelta(hours=number),
        "position": f"t-0-{number}",
    }


def rows(*given: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(given), schema=WIDE)


def tables(folder: Path, known: Catalog, **options: Any) -> ArrowSink:
    return open_sink("lake", TableSink(type="table", layout="definition", path=str(folder), **options), "events", known)


def read(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    files = [uri.removeprefix("file://") for uri in DeltaTable(folder).file_uris()]
    query = f"select {columns} from read_parquet(?, union_by_name=true) order by id"
    return duckdb.execute(query, [files]).fetchall()


def test_each_definition_has_its_table(tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}}, flow={"rate": {"type": "number"}})
    sink = tables(tmp_path / "lake", known)
    batch = rows(
        row("level", b'{"mm": 4}', 1), row("flow", b'{"rate": 0.5}', 2), row("bare", b"x", 3), row("level", b"{}", 4)
    )
    assert sink.write(batch, Commit("a", 0)).rows == 4
    assert read(tmp_path / "lake/mill/level", "id, payload.mm, data") == [
        ("level-1", 4, b'{"mm": 4}'),
        ("level-4", None, b"{}"),
    ]
    assert read(tmp_path / "lake/mill/flow", "payload.rate") == [(0.5,)]
    bare = DeltaTable(tmp_path / "lake/mill/bare")
    assert [field.name for field in bare.schema().fields] == WIDE.names


def test_a_value_that_does_not_fit_its_column_makes_that_column_null(tmp_path: Path) -> None:
    known = catalog(
        tmp_path,
        level={
            "mm": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "marks": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        },
    )
    sink = tables(tmp_path / "lake", known)
    batch = rows(
        row("level", b'{"mm": "four", "at": "2026-03-04T05:06:07Z", "marks": [{"n": 1}, {"n": "x"}]}', 1),
        row("level", b'{"mm": 9223372036854775808, "marks": [2]}', 2),
        row("level", b"\xff", 3),
        row("level", None, 4),
        row("level", b'{"mm": 5}', 5),
        row("level", b"[]", 6),
    )
    with capture_logs() as log:
        result = sink.write(batch, Commit("a", 0))
    found = read(tmp_path / "lake/mill/level", "payload.mm, payload.at is null, payload.marks, payload is null, data")
    assert found == [
        (None, False, [{"n": 1}, {"n": None}], False, batch["data"][0].as_py()),
        (None, True, [None], False, batch["data"][1].as_py()),
        (None, True, None, True, b"\xff"),
        (None, True, None, True, None),
        (5, True, None, False, b'{"mm": 5}'),
        (None, True, None, True, b"[]"),
    ]
    counted: Counter[str | None] = Counter()
    for each in result.unfit:
        assert each.message == "/messagegroups/mill/messages/level"
        counted[each.column] += each.values
    assert counted == {"payload.mm": 2, "payload.marks.element.n": 1, "payload.marks.element": 1, "payload": 1, None: 1}
    said = {line.get("column"): line for line in log if line["log_level"] == "warning"}
    assert said.keys() == counted.keys() and len(log) == len(said)
    for column, line in said.items():
        assert ("does not parse" if column is None else "does not fit its column") in line["event"]
        assert line["message"] == "/messagegroups/mill/messages/level"
    assert "t-0-1: /mm: Expected `int`, got `str`" in said["payload.mm"]["rows"]
    assert sink.write(batch, Commit("a", 0)).unfit == ()  # it was counted when it was written first


def native(protocol: str, coding: str = "") -> dict[str, Any]:
    entries = [{"name": "content-encoding", "value": coding}] if coding else []
    told: dict[str, Any] = {
        "AMQP/1.0": {"properties": {"content-encoding": coding}},
        "MQTT/5.0": {"user_properties": entries},
    }
    form = told.get(protocol, {"headers": entries})
    return {"protocol": protocol, "native": json.dumps(form), "endpoint": "/endpoints/e"}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["HTTP", "AMQP/1.0", "MQTT/5.0", "KAFKA", "NATS"])
def test_columns_are_read_from_what_a_content_coding_stands_for(protocol: str, tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}})
    packed = gzip.compress(b'{"mm": 4}', mtime=0)
    many = gzip.compress(b" " * (17 * 2**20) + b'{"mm": 4}', mtime=0)
    given = [
        {**row("level", packed, 1), **native(protocol, "gzip")},
        {**row("level", b'{"mm": 5}', 2), **native(protocol, "gzip")},
        {**row("level", packed, 3), **native(protocol, "compress")},
        {**row("level", many, 4), **native(protocol, "gzip")},
        {**row("level", b'{"mm": 6}', 5), **native(protocol)},
    ]
    tables(tmp_path / "lake", known).write(rows(*given), Commit("a", 0))
    found = read(tmp_path / "lake/mill/level", "payload.mm, data")
    assert found == list(zip((4, 5, None, None, 6), (each["data"] for each in given), strict=True))


@pytest.mark.parametrize(
    ("framing", "protocol", "found"),
    [
        ("auto", "KAFKA", [1, 2, None, None]),
        ("confluent", "KAFKA", [1, 2, None, None]),
        ("none", "KAFKA", [1, None, None, None]),
        ("auto", "HTTP", [1, None, None, None]),
    ],
)
def test_columns_are_read_from_behind_a_frame(
    framing: str, protocol: str, found: list[int | None], tmp_path: Path
) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}})
    bodies = [b'{"mm": 1}', b'\0\0\0\0\x07{"mm": 2}', b'\0\0\0\0\x07{"mm": "x"}', b"\0\0\0"]
    settings = TableSink(type="table", layout="definition", path=str(tmp_path / "lake"))
    sink = open_sink("lake", settings, "events", known, {"/endpoints/e": FrameSettings(framing)})  # type: ignore[arg-type]
    sink.write(
        rows(*({**row("level", body, at), **native(protocol)} for at, body in enumerate(bodies))), Commit("a", 0)
    )
    assert [each[0] for each in read(tmp_path / "lake/mill/level", "payload.mm")] == found


def test_a_repeated_batch_is_left_out_table_by_table(tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}}, flow={"rate": {"type": "number"}})
    level, flow = row("level", b'{"mm": 1}', 1), row("flow", b'{"rate": 1}', 2)
    # What a crash between two tables leaves: one has its share of the batch, the other not.
    tables(tmp_path / "lake", known).write(rows(level), Commit("a", 0))
    again = tables(tmp_path / "lake", known)
    assert again.write(rows(level, flow), Commit("a", 0)).rows == 1
    assert again.write(rows(level, flow), Commit("a", 0)).repeated
    assert read(tmp_path / "lake/mill/level", "id") == [("level-1",)]
    assert read(tmp_path / "lake/mill/flow", "id") == [("flow-2",)]


def test_a_table_that_fails_does_not_keep_others_from_their_rows(tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}}, flow={"rate": {"type": "number"}})
    (tmp_path / "lake/mill").mkdir(parents=True)
    (tmp_path / "lake/mill/flow").write_text("in the way")
    level, flow = row("level", b'{"mm": 1}', 1), row("flow", b'{"rate": 1}', 2)
    sink = tables(tmp_path / "lake", known)
    with pytest.raises(SinkError, match="lake"):
        sink.write(rows(level, flow), Commit("a", 0))
    (tmp_path / "lake/mill/flow").unlink()
    sink.write(rows(level, flow), Commit("a", 0))
    assert read(tmp_path / "lake/mill/level", "id") == [("level-1",)]
    assert read(tmp_path / "lake/mill/flow", "id") == [("flow-2",)]


def test_a_table_grows_with_its_definition(tmp_path: Path) -> None:
    first = catalog(tmp_path, level={"mm": {"type": "integer"}, "at": {"type": "integer"}})
    tables(tmp_path / "lake", first).write(rows(row("level", b'{"mm": 1, "at": 7}', 1)), Commit("a", 0))
    second = catalog(tmp_path, level={"mm": {"type": "integer"}, "at": {"type": "string"}, "who": {"type": "string"}})
    tables(tmp_path / "lake", second).write(rows(row("level", b'{"mm": 2, "at": "x", "who": "y"}', 2)), Commit("a", 1))
    tables(tmp_path / "lake", first).write(rows(row("level", b'{"mm": 3, "at": 9}', 3)), Commit("a", 2))
    found = read(tmp_path / "lake/mill/level", "payload.mm, payload.at, payload.at_string, payload.who")
    assert found == [(1, 7, None, None), (2, None, "x", "y"), (3, 9, None, None)]


def test_definitions_may_share_a_table(tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}}, flow={"rate": {"type": "number"}})
    sink = tables(tmp_path / "lake", known, table="{messagegroup}")
    sink.write(rows(row("level", b'{"mm": 4}', 1), row("flow", b'{"rate": 0.5}', 2)), Commit("a", 0))
    assert read(tmp_path / "lake/mill", "id, payload.mm, payload.rate") == [("flow-2", None, 0.5), ("level-1", 4, None)]


def test_parquet_files_by_definition(tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}})
    sink = tables(tmp_path / "lake", known, format="parquet")
    assert sink.write(rows(row("level", b'{"mm": 4}')), Commit("a", 0)).rows == 1
    assert sink.write(rows(row("level", b'{"mm": 4}')), Commit("a", 0)).repeated
    [file] = (tmp_path / "lake/mill/level").glob("*.parquet")
    assert duckdb.execute("select payload.mm from read_parquet(?)", [str(file)]).fetchall() == [(4,)]


@pytest.mark.parametrize("layout", ["wide", "definition"])
def test_partitions_by_time_and_column(layout: str, tmp_path: Path) -> None:
    known = catalog(tmp_path, level={"mm": {"type": "integer"}})
    settings = TableSink.model_validate(
        {"type": "table", "layout": layout, "path": str(tmp_path / "lake"), "partition_by": ["day", "hour", "type"]}
    )
    sink = open_sink("lake", settings, "events", known)
    sink.write(rows(row("level", b"{}", 0), row("level", b"{}", 12)), Commit("a", 0))
    place = tmp_path / "lake" / ("" if layout == "wide" else "mill/level")
    table = DeltaTable(place)
    assert table.metadata().partition_columns == ["day", "hour", "type"]
    parts = [dict(zip(("day", "hour"), (file["day"], file["hour"]), strict=True)) for file in adds(table)]
    assert sorted(part["day"] for part in parts) == [date(2026, 3, 4), date(2026, 3, 5)]
    assert sorted(part["hour"].hour for part in parts) == [0, 12]
    assert open_sink("lake", settings, "events", known).write(rows(row("level", b"{}", 1)), Commit("a", 1)).rows == 1


def adds(table: DeltaTable) -> list[dict[str, Any]]:
    listed = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [{name.removeprefix("partition."): value for name, value in file.items()} for file in listed]


def test_dead_letters_by_day(tmp_path: Path) -> None:
    settings = TableSink(type="table", path=str(tmp_path / "dead"), partition_by=("day", "reason"))
    letter = {"letter": "1", "reason": "no-match", "received": NOON}
    open_sink("dead", settings, "dead-letters").write(pa.Table.from_pylist([letter], DEAD_LETTER), Commit("a", 0))
    assert DeltaTable(tmp_path / "dead").metadata().partition_columns == ["day", "reason"]


def test_partitions_that_differ_from_the_tables_are_an_error(tmp_path: Path) -> None:
    plain = TableSink(type="table", path=str(tmp_path / "lake"))
    open_sink("lake", plain, "events").write(rows(row("bare", b"")), Commit("a", 0))
    by_type = plain.model_copy(update={"partition_by": ("type",)})
    with pytest.raises(SinkError, match=r"partitioned by|other columns"):
        open_sink("lake", by_type, "events").write(rows(row("bare", b"")), Commit("a", 1))


def test_files_of_other_types_than_their_table_are_staged_again(tmp_path: Path) -> None:
    def sink_of(kind: str) -> ArrowSink:
        known = catalog(tmp_path, level={"mm": {"type": kind}})
        return tables(tmp_path / "lake", known)

    sink_of("integer").write(rows(row("level", b'{"mm": 1}', 1)), Commit("a", 0))
    commit, given = Commit("a", 1), rows(row("level", b'{"mm": "x"}', 2))
    sink = sink_of("string")
    staging = sink.make_stager(commit)
    assert isinstance(staging, DefinitionStager)
    # A worker that met the table when it was not there yet knows nothing of its columns.
    plain = TableFileStager(str(tmp_path / "lake/mill/level"), commit)
    part = staging.layout.split_by_table(given, partial(payload_column, sink._payloads.catalog))[0]["mill/level"]  # type: ignore[attr-defined]
    files = [replace(file, table="mill/level") for file in plain.write(part, "1-x", Catalog())]
    with pytest.raises(SinkError, match="other types"):
        sink.commit_staged(StagedCommit(tuple(files)), commit)
    assert len(list((tmp_path / "lake").rglob("*.parquet"))) == 1
    again = sink.make_stager(commit)
    assert isinstance(again, DefinitionStager) and set(again.known) == {"mill/level"}
    sink.commit_staged(StagedCommit(tuple(again.write(given, "2-x", sink._payloads.catalog))), commit)  # type: ignore[attr-defined]
    assert read(tmp_path / "lake/mill/level", "payload.mm, payload.mm_string") == [(1, None), (None, "x")]
