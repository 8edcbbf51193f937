"""Table and file sinks: columns, repeats, errors of the world, and processes that are killed at odd moments."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from router.errors import SinkError
from router.rendering.texts import INSTANT
from router.settings.sinks.messages import JsonLinesSink, TableSink
from router.sinks import Commit, open_sink
from router.sinks.jsonlines import DEAD_LETTER, WIDE, WIDE_WITH_AMBIGUOUS, StandardOutputSink, render_event_lines
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.head import open_dataset
from router.sinks.tables.opening import ParquetSink
from router.sinks.tables.upkeep import Upkeep
from tests.support.weights import ROOT


def rows(count: int = 2) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"id": str(i), "source": "s", "type": "t", "context": [("plant", "7")], "data": b"\xff"}
            for i in range(count)
        ],
        schema=WIDE,
    )


def settings(kind: str, folder: Path) -> TableSink | JsonLinesSink:
    if kind == "jsonl":
        return JsonLinesSink(type="jsonl", path=str(folder))
    return TableSink(type="table", format="delta" if kind == "delta" else "parquet", path=str(folder))


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_repeated_commit_is_left_out(kind: str, tmp_path: Path) -> None:
    sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    assert not sink.has_commit(Commit("a", 0))
    assert sink.write(rows(), Commit("a", 0)).rows == 2
    again = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    assert again.has_commit(Commit("a", 0))
    assert again.write(rows(), Commit("a", 0)).repeated
    assert not again.has_commit(Commit("a", 1))
    assert not again.write(rows(), Commit("b", 0)).repeated


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_a_sink_may_begin_and_end_to_tell_how_ambiguous_records_were_decided_for(kind: str, tmp_path: Path) -> None:
    decided = pa.Table.from_pylist(
        [{**rows(1).to_pylist()[0], "id": "9", "ambiguous": "first of /a, /b"}], WIDE_WITH_AMBIGUOUS
    )
    for version, batch in enumerate((rows(1), decided, rows(1))):
        sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
        assert sink.write(batch, Commit("a", version)).rows == 1
    if kind == "jsonl":
        lines = [json.loads(file.read_text()) for file in sorted((tmp_path / "t").glob("*.jsonl"))]
        assert [line.get("ambiguous") for line in lines] == [None, "first of /a, /b", None]
        return
    files = [str(file) for file in (tmp_path / "t").glob("*.parquet")]
    query = "select id, ambiguous from read_parquet(?, union_by_name=true) order by id desc"
    assert duckdb.execute(query, [files]).fetchall()[0] == ("9", "first of /a, /b")


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_empty_batch_writes_nothing(kind: str, tmp_path: Path) -> None:
    sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    assert sink.write(rows(0), Commit("a", 0)).rows == 0
    assert not (tmp_path / "t").exists()


def test_delta_is_read_by_others_with_the_columns_of_the_contract(tmp_path: Path) -> None:
    DeltaSink("lake", str(tmp_path), WIDE).write(rows(), Commit("a", 3))
    table = DeltaTable(tmp_path)
    assert [field.name for field in table.schema().fields] == WIDE.names
    assert table.transaction_version("a") == 3
    [file] = table.file_uris()
    query = "select id, context['plant'], data from read_parquet(?) order by id"
    found = duckdb.execute(query, [file.removeprefix("file://")]).fetchall()
    assert found == [("0", "7", b"\xff"), ("1", "7", b"\xff")]


SEPARATORS = "a\u2028b\u2029c\u0085d\x1c\x1d\x1e\x0b\x0c\r\ne"
"""All that Python takes for the end of a line; most of them stand in JSON as they are."""


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_text_of_any_sender_is_no_line_break_of_ours(kind: str, tmp_path: Path) -> None:
    row = {"id": SEPARATORS, "source": SEPARATORS, "type": SEPARATORS, "subject": SEPARATORS, "message": SEPARATORS}
    sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    for version in range(3):
        written = pa.Table.from_pylist([row], schema=WIDE)
        assert not sink.write(written, Commit("a", version)).repeated
        assert sink.has_commit(Commit("a", version))
    if kind == "delta":
        table = DeltaTable(tmp_path / "t")
        assert table.to_pyarrow_table().column("subject").to_pylist() == [SEPARATORS] * 3
        compacted = Upkeep("lake", 1, 1 << 20, timedelta(days=7)).maintain(str(tmp_path / "t"))
        assert compacted.before == 3


def test_delta_refuses_a_table_of_another_form(tmp_path: Path) -> None:
    DeltaSink("dead", str(tmp_path), DEAD_LETTER).write(
        pa.Table.from_pylist([{"letter": "1"}], schema=DEAD_LETTER), Commit("a", 0)
    )
    with pytest.raises(SinkError, match=r"sink lake: .* other columns .*own"):
        DeltaSink("lake", str(tmp_path), WIDE).write(rows(), Commit("a", 1))
    with pytest.raises(SinkError, match="not the table's columns"):
        DeltaSink("dead", str(tmp_path), DEAD_LETTER).write(rows(), Commit("a", 1))


def test_parquet_keeps_types_and_hides_what_is_half_written(tmp_path: Path) -> None:
    (tmp_path / ".a-000000000001.parquet.tmp").write_bytes(b"left by a crash")
    ParquetSink("lake", tmp_path).write(rows(), Commit("a", 1))
    assert [file.name for file in tmp_path.iterdir()] == ["a-000000000001.parquet"]
    assert pq.read_schema(tmp_path / "a-000000000001.parquet").equals(WIDE)


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_a_file_in_the_way_is_one_clear_error(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file")
    sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    with pytest.raises(SinkError) as caught:
        sink.write(rows(), Commit("a", 0))
    assert "sink lake" in caught.value.message
    assert str(tmp_path / "t") in caught.value.message
    assert caught.value.hint


def test_standard_output_repeats() -> None:
    stream = io.BytesIO()
    sink = StandardOutputSink("out", render_event_lines, stream)
    for _ in range(2):
        sink.write(rows(1), Commit("a", 0))
    assert [json.loads(line)["cloudevent"]["id"] for line in stream.getvalue().splitlines()] == ["0", "0"]
    assert not sink.has_commit(Commit("a", 0))


@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
@pytest.mark.parametrize("micros", [-62167219200000000, -62135596800000001, 253402300800000000, (1 << 62) - 1])
def test_an_odd_time_never_stops_a_sink(kind: str, micros: int, tmp_path: Path) -> None:
    place = WIDE.get_field_index("time")
    times = pa.array([micros, 0], pa.int64()).cast(INSTANT)
    batch = rows(2).set_column(place, WIDE.field(place), times)
    sink = open_sink("lake", settings(kind, tmp_path / "t"), "events")
    assert sink.write(batch, Commit("a", 0)).rows == 2
    if kind == "jsonl":
        [file] = (tmp_path / "t").iterdir()
        events = [json.loads(line)["cloudevent"] for line in file.read_text().splitlines()]
        assert [event.get("time") for event in events] == [None, "1970-01-01T00:00:00Z"]


def test_an_error_of_the_table_is_no_error_of_the_rows(tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE, partition_by=["subject"])
    sink.write(rows(), Commit("a", 0))
    (tmp_path / "subject=__HIVE_DEFAULT_PARTITION__").rename(tmp_path / "away")
    (tmp_path / "subject=__HIVE_DEFAULT_PARTITION__").write_bytes(b"in the way")
    with pytest.raises(SinkError):
        sink.write(rows(), Commit("a", 1))


# A process killed again and again at odd moments leaves each batch in the table exactly once.

BATCHES = 25
ROWS = 50
TRIES = 20
"""How often a process is begun that is to be killed: on a busy machine some end before."""


def ids(kind: str, folder: Path) -> Counter[str]:
    if kind == "delta":
        table = DeltaTable(folder)
        files = [Path(uri.removeprefix("file://")) for uri in table.file_uris()]
        return Counter(i for file in files for i in pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    if kind == "parquet":
        files = sorted(folder.glob("*.parquet"))
        return Counter(i for file in files for i in pq.ParquetFile(file).read(["id"])["id"].to_pylist())
    lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["cloudevent"]["id"] for line in lines)


def start(kind: str, folder: Path) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("repeated_writer.py")
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), kind, str(folder), str(BATCHES)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["delta", "parquet", "jsonl"])
def test_kills_at_random_points(kind: str, kills: int, tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "lake"
    killed = 0
    for _ in range(TRIES):
        if killed == kills:
            break
        with start(kind, folder) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, BATCHES)):
                process.stdout.readline()
            try:
                # The point of death, not a synchronisation: somewhere inside the writes that follow.
                process.wait(chance.uniform(0, 0.03))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                killed += 1
    assert killed == kills
    with start(kind, folder) as process:
        assert process.wait(60) == 0
    assert ids(kind, folder) == Counter(f"{version}-{row}" for version in range(BATCHES) for row in range(ROWS))


# Rows of Delta tables are read without Python in Arrow's threads, which an ending process would trip over.


ODD = ["a b", "c:d", "e%20f", "g/h", "ü", "i#j?k", "l=m", None]
"""Values that no folder has as they are."""


@pytest.mark.parametrize("name", ["table", "of tästs + more"])
def test_rows_of_odd_places_are_those_that_were_written(tmp_path: Path, name: str) -> None:
    folder = str(tmp_path / name)
    rows = pa.table({"key": pa.array(ODD), "number": list(range(len(ODD)))})
    write_deltalake(folder, rows, partition_by=["key"])
    dataset = open_dataset(DeltaTable(folder))
    assert dataset.to_table().sort_by("number").select(["key", "number"]).to_pylist() == rows.to_pylist()
    assert dataset.count_rows(filter=pc.field("number") > 4) == len(ODD) - 5
    assert "py" not in dataset.filesystem.type_name and dataset.filesystem.type_name.startswith("subtree")


def test_nobody_reads_them_otherwise() -> None:
    asking = [path.name for path in (ROOT / "router").rglob("*.py") if ".to_pyarrow_" in path.read_text("utf-8")]
    assert asking == ["head.py"]
