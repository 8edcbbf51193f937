"""Rules of tables: a row that breaks one is rejected and named, and the rest is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from router.errors import SinkError
from router.sinks import Commit
from router.sinks.contract import StagedCommit, WriteResult
from router.sinks.jsonlines import WIDE
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.head import TableHead
from router.sinks.tables.requirements import iter_constraints
from tests.unit.router.sinks.tables.test_staging import ids, rows, staged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACED = {"endpoint": "/endpoints/plant", "message": "/messagegroups/g/messages/m"}


def given(*names: str, **columns: Any) -> pa.Table:
    return pa.concat_tables([rows(each, position=f"at-{each}", **PLACED, **columns) for each in names])


def take(sink: DeltaSink, version: int, *tables: pa.Table, may_reject: bool = True) -> WriteResult:
    commit = Commit("a", version)
    files = staged(sink, commit, *tables)
    return sink.commit_staged(StagedCommit(files.files, may_reject=may_reject), commit)


def table(folder: Path, **constraints: str) -> DeltaSink:
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    take(sink, 0, given("first"))
    if constraints:
        constrain(folder, **constraints)
    return DeltaSink("lake", str(folder), WIDE, grows=True)


def constrain(folder: Path, **constraints: str) -> None:
    """Set constraints as Spark does; delta-rs takes only what it can evaluate itself."""
    TableHead(str(folder), DeltaTable(folder)).set_properties(
        {f"delta.constraints.{name}": sql for name, sql in constraints.items()}
    )


def with_columns(folder: Path, *fields: Field, replaced: Sequence[str] = ()) -> DeltaSink:
    """Make a table with other columns beside ours, or in place of some."""
    ours = [field for field in Schema.from_arrow(WIDE).fields if field.name not in replaced]
    DeltaTable.create(str(folder), Schema([*ours, *fields]))
    return DeltaSink("lake", str(folder), WIDE, grows=True)


@pytest.mark.parametrize("way", ["staged", "rows of the driver"])
def test_a_row_that_breaks_a_constraint_is_rejected_and_the_rest_is_written(
    way: str, spark: SparkSession, tmp_path: Path
) -> None:
    sink = table(tmp_path, short="length(id) < 6", known="type = 't'")
    batch = given("good", "too long", "fine")
    result = take(sink, 1, batch) if way == "staged" else sink.write(batch, Commit("a", 1))
    assert result.rows == 2 and not result.repeated
    [rejected] = result.refused
    assert (rejected.position, rejected.endpoint, rejected.message) == ("at-too long", *PLACED.values())
    assert rejected.reason == "the row breaks CHECK constraint short (length(id) < 6)"
    assert ids(tmp_path) == ["fine", "first", "good"]
    assert len(list(tmp_path.glob("*.parquet"))) == len(DeltaTable(tmp_path).file_uris())


def test_a_repeat_says_again_what_it_rejected(spark: SparkSession, tmp_path: Path) -> None:
    table(tmp_path, short="length(id) < 6")
    for _ in range(2):
        result = take(DeltaSink("lake", str(tmp_path), WIDE, grows=True), 1, given("good", "too long"))
        assert [each.position for each in result.refused] == ["at-too long"]
    assert (result.rows, result.before, result.repeated) == (0, 1, True)
    assert ids(tmp_path) == ["first", "good"]


def test_a_batch_of_which_all_is_rejected_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = table(tmp_path, none="id = 'first'")
    result = take(sink, 1, given("a", "b"), given("c"))
    assert result.rows == 0 and len(result.refused) == 3
    assert ids(tmp_path) == ["first"] and len(list(tmp_path.glob("*.parquet"))) == 1


def test_null_is_not_true_and_what_cannot_be_computed_is_null(spark: SparkSession, tmp_path: Path) -> None:
    DeltaSink("lake", str(tmp_path), WIDE, grows=True).write(given("7"), Commit("a", 0))
    constrain(tmp_path, numbered="CAST(ID AS INT) > 0")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True)
    result = take(sink, 1, pa.concat_tables([given("8", "x"), given("-1")]))
    assert [each.position for each in result.refused] == ["at-x", "at--1"]
    assert ids(tmp_path) == ["7", "8"]


def test_what_may_not_be_null(spark: SparkSession, tmp_path: Path) -> None:
    sink = with_columns(tmp_path, Field("subject", PrimitiveType("string"), nullable=False), replaced=["subject"])
    assert [each.reason for each in take(sink, 0, given("a"), given("b", subject="s")).refused] == [
        "the row breaks NOT NULL of column subject"
    ]
    assert ids(tmp_path) == ["b"]
    # A table that says so has the same columns all the same: none is added, batch after batch.
    assert take(sink, 1, given("c", subject="s")).rows == 1
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
    assert take(sink, 0, given("a"), given("b")).rows == 2
    assert DeltaTable(tmp_path).to_pyarrow_table(columns=["kind", "lane"]).to_pylist() == [{"kind": "T", "lane": 7}] * 2
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def test_partitions_of_a_table_with_rules(spark: SparkSession, tmp_path: Path) -> None:
    partitions = ("day", "hour", "source")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True, partition_by=partitions)
    take(sink, 0, given("a", source="s/é"))
    constrain(tmp_path, early="hour(hour) = 1 AND day > '2020-01-01'", here="source > ''")
    sink = DeltaSink("lake", str(tmp_path), WIDE, grows=True, partition_by=partitions)
    result = take(sink, 1, given("b", source="s/é"), given("c"))
    assert [each.position for each in result.refused] == ["at-c"]
    assert ids(tmp_path) == ["a", "b"]


def test_before_letters_can_be_made_the_batch_is_judged_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = table(tmp_path, short="length(id) < 6")
    assert not sink.may_reject
    with pytest.raises(SinkError, match="1 rows cannot be written; the row breaks CHECK constraint short"):
        take(sink, 1, given("good", "too long"), may_reject=False)
    assert sink.may_reject and ids(tmp_path) == ["first"]
    # What breaks no rule never needed it.
    assert take(replaced_sink(tmp_path), 1, given("good"), may_reject=False).rows == 1


def test_what_can_become_no_letter_holds_the_batch_and_is_whole_once_the_rule_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    table(tmp_path, short="length(id) < 6")
    letters = DeltaSink("dead", str(tmp_path), WIDE, rejects=False)
    for _ in range(2):
        with pytest.raises(SinkError, match="CHECK constraint short") as caught:
            letters.write(given("good", "too long"), Commit("a", 1))
        assert "drop or correct the rule" in (caught.value.hint or "") and not letters.may_reject
    constrain(tmp_path, short="true")
    assert letters.write(given("good", "too long"), Commit("a", 1)).rows == 2
    assert ids(tmp_path) == ["first", "good", "too long"]


def replaced_sink(folder: Path) -> DeltaSink:
    return DeltaSink("lake", str(folder), WIDE, grows=True)


def test_a_rule_that_cannot_be_evaluated_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sink = table(tmp_path)
    constrain(tmp_path, odd="no_such_function(id) > 1")
    sink = replaced_sink(tmp_path)
    with pytest.raises(SinkError, match=r"CHECK constraint odd \(no_such_function\(id\) > 1\)\): .*no_such_function"):
        take(sink, 1, given("a"))
    assert not [file for file in tmp_path.glob("*.parquet") if "ruled" in file.name]


def test_a_rule_that_comes_between_two_tries_of_a_commit_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table(tmp_path)
    take(sink, 1, given("a"))
    constrain(tmp_path, short="length(id) < 6")
    result = take(sink, 2, given("good", "too long"))
    assert len(result.refused) == 1 and ids(tmp_path) == ["a", "first", "good"]


@pytest.mark.parametrize("feature", ["identityColumns", "icebergCompatV2", "notYetInvented"])
def test_a_feature_that_cannot_be_written_is_named(feature: str, tmp_path: Path) -> None:
    table(tmp_path)
    declare(tmp_path, feature)
    with pytest.raises(SinkError, match=f"features that cannot be written here: {feature}") as caught:
        take(replaced_sink(tmp_path), 1, given("a"))
    assert "DROP FEATURE" in (caught.value.hint or "")
    assert len(list(tmp_path.glob("*.parquet"))) == 2


def declare(folder: Path, feature: str) -> None:
    """Have a table say that it has a feature, in use."""
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
