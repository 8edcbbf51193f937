"""Files of tables that workers write before a log names them: what is taken over, what is swept, what readers see."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from catalog.model import Catalog
from router.errors import SinkError, find_batch_fault
from router.rendering.texts import INSTANT
from router.sinks import Commit
from router.sinks.contract import StagedCommit, StagedFile, WriteResult
from router.sinks.jsonlines import WIDE, WIDE_WITH_AMBIGUOUS
from router.sinks.tables import delta, head
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.head import TableHead
from router.sinks.tables.requirements import iter_constraints
from router.sinks.tables.staging import add_partition_columns, make_file_prefix
from tests.support.tables import by_delta, by_duckdb

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# Rules of tables: a row that breaks one is rejected and named, and the rest is written.


PLACED = {"endpoint": "/endpoints/plant", "message": "/messagegroups/g/messages/m"}


def placed(*names: str, **columns: Any) -> pa.Table:
    return pa.concat_tables([rows(each, position=f"at-{each}", **PLACED, **columns) for each in names])


def take(sink: DeltaSink, version: int, *tables: pa.Table, may_reject: bool = True) -> WriteResult:
    commit = Commit("a", version)
    files = staged(sink, commit, *tables)
    return sink.commit_staged(StagedCommit(files.files, may_reject=may_reject), commit)


def table_with(folder: Path, **constraints: str) -> DeltaSink:
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    take(sink, 0, placed("first"))
    if constraints:
        constrain(folder, **constraints)
    return DeltaSink("lake", str(folder), WIDE, grows=True)


def constrain(folder: Path, **constraints: str) -> None:
    """Set constraints as Spark does; delta-rs takes only what it can evaluate itself."""
    TableHead(str(folder), DeltaTable(folder)).set_properties(
        {f"delta.constraints.{name}": sql for name, sql in constraints.items()}
    )


def with_columns(folder: Path, *fields: Field, replaced: Sequence[str] = ()) -> DeltaSink:
    """Make a table_with with other columns beside ours, or in place of some."""
    ours = [field for field in Schema.from_arrow(WIDE).fields if field.name not in replaced]
    DeltaTable.create(str(folder), Schema([*ours, *fields]))
    return DeltaSink("lake", str(folder), WIDE, grows=True)


@pytest.mark.parametrize("way", ["staged", "rows of the driver"])
def test_a_row_that_breaks_a_constraint_is_rejected_and_the_rest_is_written(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    sink = table_with(tmp_path, short="length(id) < 6", known="type = 't'")
    batch = placed("good", "too long", "fine")
    result = take(sink, 1, batch) if way == "staged" else sink.write(batch, Commit("a", 1))
    assert result.rows == 2 and not result.repeated
    [rejected] = result.refused
    assert (rejected.position, rejected.endpoint, rejected.message) == ("at-too long", *PLACED.values())
    assert rejected.reason == "the row breaks CHECK constraint short (length(id) < 6)"
    assert ids(tmp_path) == ["fine", "first", "good"]
    assert len(list(tmp_path.glob("*.parquet"))) == len(DeltaTable(tmp_path).file_uris())


def test_a_repeat_says_again_what_it_rejected(spark: SparkSession, tmp_path: Path) -> None:
    table_with(tmp_path, short="length(id) < 6")
    for _ in range(2):
        result = take(DeltaSink("lake", str(tmp_path), WIDE, grows=True), 1, placed("good", "too long"))
        assert [each.position for each in result.refused] == ["at-too long"]
    assert (result.rows, result.before, result.repeated) == (0, 1, True)
    assert ids(tmp_path) == ["first", "good"]


def test_a_batch_of_which_all_is_rejected_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = table_with(tmp_path, none="id = 'first'")
    result = take(sink, 1, placed("a", "b"), placed("c"))
    assert result.rows == 0 and len(result.refused) == 3
    assert ids(tmp_path) == ["first"] and len(list(tmp_path.glob("*.parquet"))) == 1


def test_null_is_not_true_and_what_cannot_be_computed_is_null(spark: SparkSession, tmp_path: Path) -> None:
    DeltaSink("lake", str(tmp_path), WIDE, grows=True).write(placed("7"), Commit("a", 0))
    constrain(tmp_path, numbered="CAST(ID AS INT) > 0")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True)
    result = take(sink, 1, pa.concat_tables([placed("8", "x"), placed("-1")]))
    assert [each.position for each in result.refused] == ["at-x", "at--1"]
    assert ids(tmp_path) == ["7", "8"]


def test_what_may_not_be_null(spark: SparkSession, tmp_path: Path) -> None:
    sink = with_columns(tmp_path, Field("subject", PrimitiveType("string"), nullable=False), replaced=["subject"])
    assert [each.reason for each in take(sink, 0, placed("a"), placed("b", subject="s")).refused] == [
        "the row breaks NOT NULL of column subject"
    ]
    assert ids(tmp_path) == ["b"]
    # A table_with that says so has the same columns all the same: none is added, batch after batch.
    assert take(sink, 1, placed("c", subject="s")).rows == 1
    assert DeltaTable(tmp_path).version() == 2


def test_members_that_may_not_be_null_and_invariants() -> None:
    rule = json.dumps({"expression": {"expression": "i > 3"}})
    inner = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": False, "metadata": {}}]}
    fields = [
        {"name": "at", "type": inner, "nullable": True, "metadata": {}},
        {"name": "l", "type": {"type": "array", "elementType": inner, "containsNull": False}, "nullable": True},
        {
            "name": "m",
            "type": {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False},
            "nullable": True,
        },
        {"name": "i", "type": "long", "nullable": True, "metadata": {"delta.invariants": rule}},
    ]
    whole = [{"metadata": {}, **field} for field in fields]
    assert [check.sql for check in iter_constraints({}, whole)] == [
        "i > 3",
        "`at` IS NULL OR `at`.`n` IS NOT NULL",
        "`l` IS NULL OR forall(`l`, x0 -> x0 IS NOT NULL)",
        "`l` IS NULL OR forall(`l`, x0 -> x0 IS NULL OR x0.`n` IS NOT NULL)",
        "`m` IS NULL OR forall(map_values(`m`), x0 -> x0 IS NOT NULL)",
    ]


def test_generated_columns_and_defaults_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    sink = with_columns(
        tmp_path,
        Field("kind", PrimitiveType("string"), metadata={"delta.generationExpression": "upper(type)"}),
        Field("lane", PrimitiveType("long"), metadata={"CURRENT_DEFAULT": "7"}),
    )
    assert take(sink, 0, placed("a"), placed("b")).rows == 2
    assert DeltaTable(tmp_path).to_pyarrow_table(columns=["kind", "lane"]).to_pylist() == [{"kind": "T", "lane": 7}] * 2
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_partitions_of_a_table_with_rules(spark: SparkSession, tmp_path: Path) -> None:
    partitions = ("day", "hour", "source")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True, partition_by=partitions)
    take(sink, 0, placed("a", source="s/é"))
    constrain(tmp_path, early="hour(hour) = 1 AND day > '2020-01-01'", here="source > ''")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True, partition_by=partitions)
    result = take(sink, 1, placed("b", source="s/é"), placed("c"))
    assert [each.position for each in result.refused] == ["at-c"]
    assert ids(tmp_path) == ["a", "b"]


def test_before_letters_can_be_made_the_batch_is_judged_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = table_with(tmp_path, short="length(id) < 6")
    assert not sink.may_reject
    with pytest.raises(SinkError, match="1 rows cannot be written; the row breaks CHECK constraint short"):
        take(sink, 1, placed("good", "too long"), may_reject=False)
    assert sink.may_reject and ids(tmp_path) == ["first"]
    # What breaks no rule never needed it.
    assert take(replaced_sink(tmp_path), 1, placed("good"), may_reject=False).rows == 1


def test_what_can_become_no_letter_holds_the_batch_and_is_whole_once_the_rule_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    table_with(tmp_path, short="length(id) < 6")
    letters = DeltaSink("dead", str(tmp_path), WIDE, rejects=False)
    for _ in range(2):
        with pytest.raises(SinkError, match="CHECK constraint short") as caught:
            letters.write(placed("good", "too long"), Commit("a", 1))
        assert "drop or correct the rule" in (caught.value.hint or "") and not letters.may_reject
    constrain(tmp_path, short="true")
    assert letters.write(placed("good", "too long"), Commit("a", 1)).rows == 2
    assert ids(tmp_path) == ["first", "good", "too long"]


def replaced_sink(folder: Path) -> DeltaSink:
    return DeltaSink("lake", str(folder), WIDE, grows=True)


def test_a_rule_that_cannot_be_evaluated_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sink = table_with(tmp_path)
    constrain(tmp_path, odd="no_such_function(id) > 1")
    sink = replaced_sink(tmp_path)
    with pytest.raises(SinkError, match=r"CHECK constraint odd \(no_such_function\(id\) > 1\)\): .*no_such_function"):
        take(sink, 1, placed("a"))
    assert not [file for file in tmp_path.glob("*.parquet") if "ruled" in file.name]


def test_a_rule_that_comes_between_two_tries_of_a_commit_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table_with(tmp_path)
    take(sink, 1, placed("a"))
    constrain(tmp_path, short="length(id) < 6")
    result = take(sink, 2, placed("good", "too long"))
    assert len(result.refused) == 1 and ids(tmp_path) == ["a", "first", "good"]


@pytest.mark.parametrize("feature", ["identityColumns", "icebergCompatV2", "notYetInvented"])
def test_a_feature_that_cannot_be_written_is_named(feature: str, tmp_path: Path) -> None:
    table_with(tmp_path)
    declare(tmp_path, feature)
    with pytest.raises(SinkError, match=f"features that cannot be written here: {feature}") as caught:
        take(replaced_sink(tmp_path), 1, placed("a"))
    assert "DROP FEATURE" in (caught.value.hint or "")
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def declare(folder: Path, feature: str) -> None:
    """Have a table_with say that it has a feature, in use."""
    log = folder / "_delta_log"
    number = len(list(log.glob("*.json")))
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(each["metaData"] for each in first if "metaData" in each)
    if feature == "icebergCompatV2":
        metadata["configuration"]["delta.enableIcebergCompatV2"] = "true"
    if feature == "identityColumns":
        metadata["schemaString"] = metadata["schemaString"].replace(
            '"metadata":{}', '"metadata":{"delta.identity.start":1}', 1
        )
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (log / f"{number:020d}.json").write_text("\n".join(lines) + "\n")
