"""Files of tables that workers write before a log names them: what is taken over, what is swept, what readers see."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from catalog.model import Catalog
from router.errors import SinkError, find_batch_fault
from router.rendering.texts import INSTANT
from router.sinks import Commit
from router.sinks.contract import StagedCommit, StagedFile
from router.sinks.jsonlines import WIDE, WIDE_WITH_AMBIGUOUS
from router.sinks.tables import delta, head
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.staging import add_partition_columns, make_file_prefix
from tests.support.tables import by_delta, by_duckdb

NO_CATALOG = Catalog()
AT = datetime(2026, 11, 23, 1, 2, 3, 456789, tzinfo=UTC)


def rows(*ids: str, schema: pa.Schema = WIDE, **columns: Any) -> pa.Table:
    return pa.Table.from_pylist([{"id": each, "type": "t", "received": AT, **columns} for each in ids], schema)


def staged(sink: DeltaSink, commit: Commit, *tables: pa.Table) -> StagedCommit:
    """Stage each table in a try of a task of its own."""
    staging = sink.make_stager(commit)
    assert staging is not None
    return StagedCommit(
        tuple(file for at, table in enumerate(tables) for file in staging.write(table, f"{at}-x", NO_CATALOG))
    )


def ids(folder: Path) -> list[str]:
    found: list[str] = DeltaTable(folder).to_pyarrow_table()["id"].to_pylist()
    return sorted(found)


def test_what_is_staged_is_there_once_it_is_taken(tmp_path: Path) -> None:
    sink, commit = DeltaSink("lake", str(tmp_path / "t"), WIDE), Commit("a", 3)
    files = staged(sink, commit, rows("1", "2"), rows("3"))
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))
    assert sink.commit_staged(files, commit).rows == 3
    assert ids(tmp_path / "t") == ["1", "2", "3"]
    assert DeltaTable(tmp_path / "t").transaction_version("a") == 3
    assert by_duckdb(tmp_path / "t").rows == by_delta(tmp_path / "t").rows


@pytest.mark.parametrize("other", [False, True], ids=["the same process", "another process"])
def test_a_repeat_takes_nothing_and_leaves_what_it_staged_to_its_owner(tmp_path: Path, other: bool) -> None:
    commit = Commit("a", 3)
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    sink.commit_staged(staged(sink, commit, rows("1")), commit)
    again = DeltaSink("lake", str(tmp_path), WIDE) if other else sink
    repeat = staged(again, commit, rows("1"))
    assert again.commit_staged(repeat, commit).repeated
    assert not repeat.offered
    assert ids(tmp_path) == ["1"]
    staging = sink.make_stager(commit)
    assert staging is not None
    staging.discard(repeat.files)
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_task_that_ran_twice_doubles_nothing(tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE)
    part = Commit("g.1-lake", 3, ("g-lake",))
    staged(sink, part, rows("1"), rows("1"))
    staged(sink, Commit("g-lake", 3), rows("1", "2"))
    half = tmp_path / f"{make_file_prefix('g.1-lake', 3)}7-killed.snappy.parquet"
    half.write_bytes(b"PAR1 and no more")
    assert sink.commit_staged(staged(sink, part, rows("1")), part).rows == 1
    assert ids(tmp_path) == ["1"]


def test_two_routers_that_take_the_same_batch_leave_it_there_once(tmp_path: Path) -> None:
    first, second = (DeltaSink("lake", str(tmp_path), WIDE) for _ in range(2))
    for sink in (first, second):
        sink.commit_staged(staged(sink, Commit(f"{id(sink)}", 0), rows("0")), Commit(f"{id(sink)}", 0))
    commit = Commit("a", 1)
    files = [staged(sink, commit, rows("1")) for sink in (first, second)]
    assert [sink.commit_staged(each, commit).repeated for sink, each in zip((first, second), files, strict=True)] == [
        0,
        1,
    ]
    assert ids(tmp_path) == ["0", "0", "1"]


def test_a_table_gets_the_columns_of_files_that_have_more(tmp_path: Path) -> None:
    for version, schema in enumerate((WIDE, WIDE_WITH_AMBIGUOUS, WIDE)):
        sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True)
        commit = Commit("a", version)
        assert sink.commit_staged(staged(sink, commit, rows(str(version), schema=schema)), commit).rows == 1
    table = DeltaTable(tmp_path)
    assert [field.name for field in table.schema().fields] == WIDE_WITH_AMBIGUOUS.names
    # The table and three batches: new columns come with the rows that have them.
    assert table.version() == 3
    assert ids(tmp_path) == ["0", "1", "2"]
    assert table.optimize.compact()["numFilesRemoved"] == 3
    assert ids(tmp_path) == ["0", "1", "2"]


PARTITIONS = ("day", "hour", "source", "type")
ODD = ("sp ace/%é:x", "é", "", "..", "a=b", "x\u2028y", "%41", None)


def test_partitions_are_those_that_delta_itself_writes(tmp_path: Path) -> None:
    table = pa.concat_tables([rows("1", "2", source=text) for text in ODD] + [rows("3", received=None)])
    sink = DeltaSink("lake", str(tmp_path / "ours"), WIDE, partition_by=PARTITIONS)
    commit = Commit("a", 0)
    assert sink.commit_staged(staged(sink, commit, table), commit).rows == table.num_rows
    write_deltalake(tmp_path / "theirs", add_partition_columns(table, PARTITIONS), partition_by=list(PARTITIONS))

    def content(name: str) -> list[str]:
        read = DeltaTable(tmp_path / name).to_pyarrow_table()
        return sorted(repr(row) for row in read.to_pylist())

    def folders(name: str) -> set[str]:
        return {str(file.parent.relative_to(tmp_path / name)) for file in (tmp_path / name).rglob("*.parquet")}

    assert content("ours") == content("theirs")
    # An empty text lies with those that are null, which it is to every reader.
    assert folders("ours") == {path for path in folders("theirs") if "source=/" not in path}
    for name in ("ours", "theirs"):
        found = DeltaTable(tmp_path / name).to_pyarrow_table(filters=[("source", "=", "sp ace/%é:x")])
        assert found.num_rows == 2


def test_statistics_bound_what_is_in_the_file(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "text": pa.string(),
            "long": pa.string(),
            "none": pa.string(),
            "n": pa.int64(),
            "level": pa.float64(),
            "far": pa.float64(),
            "at": INSTANT,
            "old": INSTANT,
            "tags": pa.list_(pa.string()),
            "in": pa.struct({"n": pa.int32(), "deeper": pa.struct({"text": pa.string()})}),
            "after": pa.int32(),
        }.items()
    )
    table = pa.table(
        [
            ["b", "a", None],
            ["x" * 65, "y", "z"],
            [None] * 3,
            [3, -1, 2],
            [1.5, math.nan, -2.0],
            [math.inf, 1.0, 2.0],
            [AT, AT, AT],
            pa.array([-62135596800000001, 0, 1], pa.int64()).cast(INSTANT),
            [["q"], [], None],
            [{"n": 1, "deeper": {"text": "é"}}, None, {"n": 9, "deeper": None}],
            [7, 8, None],
        ],
        schema=schema,
    )
    sink = DeltaSink("lake", str(tmp_path), schema)
    commit = Commit("a", 0)
    files = staged(sink, commit, table)
    told = json.loads(files.files[0].statistics)
    low = {"text": "a", "n": -1, "level": -2.0, "at": "2026-11-23T01:02:03.456789Z", "after": 7}
    high = {"text": "b", "n": 3, "level": 1.5, "at": "2026-11-23T01:02:03.456789Z", "after": 8}
    assert told["numRecords"] == 3
    assert told["minValues"] == low | {"in": {"n": 1, "deeper": {"text": "é"}}}
    assert told["maxValues"] == high | {"in": {"n": 9, "deeper": {"text": "é"}}}
    assert told["nullCount"]["none"] == 3 and told["nullCount"]["in"]["n"] == 1
    sink.commit_staged(files, commit)
    read = DeltaTable(tmp_path)
    assert read.to_pyarrow_table(filters=[("n", "=", 2)]).num_rows == 1
    assert read.to_pyarrow_table(filters=[("at", "=", AT)]).num_rows == 3
    read.create_checkpoint()
    assert DeltaTable(tmp_path).to_pyarrow_table(filters=[("n", ">", 3)]).num_rows == 0


def test_an_error_of_the_rows_is_no_error_of_the_table(tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path), WIDE, partition_by=["source"])
    staging = sink.make_stager(Commit("a", 0))
    assert staging is not None
    with pytest.raises(OSError) as error:
        staging.write(pa.concat_tables([rows("1"), rows("2", source="s" * 300)]), "1-x", NO_CATALOG)
    fault = find_batch_fault(error.value)
    assert fault is not None and fault.kind == "error"
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_fault_of_a_worker_is_the_sinks(tmp_path: Path) -> None:
    sink = DeltaSink("lake", str(tmp_path / "t"), WIDE)
    with pytest.raises(SinkError, match="No space left") as caught:
        sink.commit_staged(StagedCommit((StagedFile(fault=(28, "No space left on device")),)), Commit("a", 0))
    assert caught.value.hint and "free disk space" in caught.value.hint


def test_a_table_of_another_form_is_refused_before_anything_is_offered(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"other": [1]}))
    sink, commit = DeltaSink("lake", str(tmp_path), WIDE), Commit("a", 0)
    files = staged(sink, commit, rows("1"))
    with pytest.raises(SinkError, match="other columns"):
        sink.commit_staged(files, commit)
    assert not files.offered


def test_a_table_in_an_object_store_gets_rows_of_the_driver_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DeltaSink("lake", "s3://bucket/t", WIDE).make_stager(Commit("a", 0)) is None
    for module in (delta, head):
        monkeypatch.setattr(module, "local_folder", lambda uri: None)
    for version in (0, 0, 1):
        DeltaSink("lake", str(tmp_path), WIDE, partition_by=["id"]).write(rows("1", "2"), Commit("a", version))
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == ["1", "1", "2", "2"]
    assert DeltaTable(tmp_path).version() == 2
