"""Tables of Spark with its own Delta connector: their features are honoured by what we commit, or named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from catalog.model import Catalog
from router.errors import SinkError
from router.sinks import Commit
from router.sinks.contract import StagedCommit
from router.sinks.jsonlines import WIDE
from router.sinks.tables import upkeep as merging
from router.sinks.tables.delta import DeltaSink
from router.sinks.tables.upkeep import Upkeep
from tests.support.delta_spark import DeltaSpark, delta_spark
from tests.unit.router.sinks.tables.test_staging import rows

pytestmark = pytest.mark.slow
PROPERTIES: Final = {
    "in-commit timestamps": "'delta.enableInCommitTimestamps' = 'true'",
    "row tracking": "'delta.enableRowTracking' = 'true'",
    "type widening": "'delta.enableTypeWidening' = 'true'",
    "deletion vectors": "'delta.enableDeletionVectors' = 'true'",
    "column mapping": "'delta.columnMapping.mode' = 'name'",
    "change data feed": "'delta.enableChangeDataFeed' = 'true'",
    "append only": "'delta.appendOnly' = 'true'",
    "checkpoints of version 2": "'delta.checkpointPolicy' = 'v2'",
    "vacuum protocol check": "'delta.feature.vacuumProtocolCheck' = 'supported'",
    "all at once": (
        "'delta.enableInCommitTimestamps' = 'true', 'delta.enableRowTracking' = 'true', "
        "'delta.enableTypeWidening' = 'true', 'delta.enableChangeDataFeed' = 'true', 'delta.checkpointPolicy' = 'v2'"
    ),
}
COLUMNS: Final = {
    "clustering": ("", "CLUSTER BY (type, id)"),
    "liquid and more": (", seen TIMESTAMP_NTZ, n INT", "CLUSTER BY (id)"),
}
OFTEN: Final = ("all at once",)
REFUSED: Final = {
    "identityColumns": ("k BIGINT GENERATED ALWAYS AS IDENTITY", ""),
    "icebergCompatV2": ("", "'delta.enableIcebergCompatV2' = 'true', 'delta.columnMapping.mode' = 'name'"),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeltaSpark]:
    with delta_spark(tmp_path_factory.mktemp("theirs")) as spark:
        yield spark


def create(theirs: DeltaSpark, folder: Path, *, more: str = "", clause: str = "", properties: str = "") -> None:
    """Have Spark make a table with the columns that ours has, as a first sink would have made it."""
    columns = ", ".join(f"{field.name} {_sql(field.type)}" for field in WIDE)
    told = f"TBLPROPERTIES ({properties})" if properties else ""
    theirs.sql(f"CREATE TABLE delta.`{folder}` ({columns}{more}) USING delta {clause} {told}")


def _sql(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"MAP<{_sql(kind.key_type)}, {_sql(kind.item_type)}>"
    return {pa.string(): "STRING", pa.binary(): "BINARY"}.get(kind, "TIMESTAMP")


def write(sink: DeltaSink, version: int) -> None:
    commit = Commit("a", version)
    staging = sink.make_stager(commit)
    assert staging is not None
    files = staging.write(rows(f"{version}-0", f"{version}-1"), "0-x", Catalog())
    assert sink.commit_staged(StagedCommit(tuple(files)), commit).rows == 2


def judge(theirs: DeltaSpark, folder: Path, batches: int) -> None:
    expected = Counter(f"{version}-{row}" for version in range(batches) for row in range(2))
    assert Counter(theirs.column(folder, "id")) == expected


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in (*PROPERTIES, *COLUMNS)]
)
def test_batches_upkeep_and_spark_in_turn(name: str, theirs: DeltaSpark, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    more, clause = COLUMNS.get(name, ("", ""))
    create(theirs, folder, more=more, clause=clause, properties=PROPERTIES.get(name, ""))
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    upkeep = Upkeep("lake", 3, 1 << 20, timedelta(hours=1))
    for version in range(4):
        write(sink, version)
    judge(theirs, folder, 4)
    upkeep.maintain(str(folder))
    judge(theirs, folder, 4)
    write(sink, 4)
    theirs.sql(f"OPTIMIZE delta.`{folder}`")
    write(sink, 5)
    if "vectors" in name:
        theirs.sql(f"INSERT INTO delta.`{folder}` SELECT * FROM delta.`{folder}` WHERE id = '0-0'")
        theirs.sql(f"DELETE FROM delta.`{folder}` WHERE id = '0-1'")
        kept = Counter(theirs.column(folder, "id"))
        assert kept["0-0"] == 2 and kept["0-1"] == 0
        upkeep.maintain(str(folder))
        assert Counter(theirs.column(folder, "id")) == kept
        return
    upkeep.maintain(str(folder))
    write(DeltaSink("lake", str(folder), WIDE, grows=True), 6)
    judge(theirs, folder, 7)
    if "row tracking" in name or "at once" in name:
        ids = theirs.column(folder, "_metadata.row_id")
        assert len(set(ids)) == len(ids) == 14
    if "timestamps" in name or "at once" in name:
        times = [row[1] for row in theirs.sql(f"DESCRIBE HISTORY delta.`{folder}`")]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (n > 0)) for n, name in enumerate(REFUSED)]
)
def test_what_nobody_here_can_write_is_named(name: str, theirs: DeltaSpark, tmp_path: Path) -> None:
    column, properties = REFUSED[name]
    create(theirs, tmp_path / "t", more=f", {column}" if column else "", properties=properties)
    with pytest.raises(SinkError, match=f"features that cannot be written here: {name}"):
        write(DeltaSink("lake", str(tmp_path / "t"), WIDE, grows=True), 0)


@pytest.mark.full
def test_a_rewrite_of_spark_and_ours_never_double_a_row(
    theirs: DeltaSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two, in turn, begins before the other commits."""
    folder = tmp_path / "t"
    create(theirs, folder)
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    for version in range(4):
        write(sink, version)
    replace = merging._commit_replacement

    def late(*arguments: object) -> bool:
        theirs.sql(f"OPTIMIZE delta.`{folder}`")
        return replace(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(merging, "_commit_replacement", late)
    assert merging.merge_small_files(str(folder), folder, 1 << 20).before == 0
    judge(theirs, folder, 4)
    assert len([file for file in folder.glob("*-merged*")]) == 0


def test_types_that_spark_widened_and_instants_that_it_wrote(theirs: DeltaSpark, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    create(theirs, folder, more=", n INT", properties="'delta.enableTypeWidening' = 'true'")
    sink = DeltaSink("lake", str(folder), WIDE, grows=True)
    write(sink, 0)
    theirs.sql(f"INSERT INTO delta.`{folder}` (id, received, n) VALUES ('1-0', TIMESTAMP '1500-01-02 03:04:05', 1)")
    theirs.sql(f"ALTER TABLE delta.`{folder}` ALTER COLUMN n TYPE BIGINT")
    theirs.sql(f"INSERT INTO delta.`{folder}` (id, n) VALUES ('1-1', 9999999999)")
    write(sink, 2)
    before = sorted(map(repr, theirs.sql(f"SELECT id, n, received FROM delta.`{folder}`")))
    assert merging.merge_small_files(str(folder), folder, 1 << 20).before == 4
    assert sorted(map(repr, theirs.sql(f"SELECT id, n, received FROM delta.`{folder}`"))) == before
