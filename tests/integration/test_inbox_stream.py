"""The inbox as a Spark source: each row once by position, through limits, restarts and trimming."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from bindings.inbox.format import InboxPosition, list_segments, segment_path
from bindings.inbox.log import Inbox, compact_segment
from bindings.inbox.source import NAME, READ_SCHEMA, SPARK_SCHEMA, InboxDataSource, InboxStreamReader, InboxView
from bindings.inbox.space import InboxDamaged, InboxFormatError, InboxLimits
from bindings.parts import InboxRow, Part
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL = InboxLimits(segment_bytes=20_000, min_free_bytes=0)
SECONDS = 300


def row(number: int) -> InboxRow:
    parts = [Part("path", b"/%d" % (number % 5)), Part("headers.a", b"1", None), Part("headers.a", None, "json")]
    return InboxRow("/endpoints/e", "HTTP", 1_700_000_000_000_000 + number, parts, b"%d" % number)


def append(inbox: Inbox, numbers: Sequence[int], together: int = 7) -> None:
    for start in range(0, len(numbers), together):
        inbox.append_many([row(number) for number in numbers[start : start + together]]).result(SECONDS)


def read(reader: InboxStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    ranges = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    worker = pickle.loads(pickle.dumps(reader))
    return [form for each in ranges for batch in worker.read(each) for form in batch.to_pylist()]


def test_batches_have_the_schema_that_spark_expects() -> None:
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC").equals(READ_SCHEMA)


def test_ranges_respect_the_limit_and_read_identically_after_a_restart(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, limits=SMALL)
    append(inbox, range(500))
    reader = InboxStreamReader({"path": str(tmp_path), "max_records": "64"})
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(64)
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    first = [read(reader, start, end) for start, end in itertools.pairwise(offsets)]
    assert max(map(len, first)) <= 64 and sum(map(len, first)) == 500
    assert len({form["position"] for batch in first for form in batch}) == 500
    inbox.close()
    inbox = Inbox(tmp_path, limits=SMALL)  # compacts what is left
    append(inbox, range(500, 510))
    inbox.close()
    again = InboxStreamReader({"path": str(tmp_path)})
    assert [read(again, start, end) for start, end in itertools.pairwise(offsets)] == first
    rest = read(again, offsets[-1], again.latestOffset(offsets[-1], ReadAllAvailable()))
    assert sorted(int(form["body"]) for form in rest) == list(range(500, 510))
    assert [part["value"] for part in rest[0]["properties"][1:]] == [b"1", None]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_batch_is_bounded_by_bytes_as_well(tmp_path: Path, *, compacted: bool) -> None:
    inbox = Inbox(tmp_path, partitions=1)
    sizes = [100, 100, 5_000, 100, *([900] * 40), 30_000, 100, 100]
    for number, size in enumerate(sizes):
        inbox.append_many([InboxRow("/endpoints/e", "HTTP", number, [Part("path", b"/a")], b"x" * size)]).result(20)
    inbox.close()
    if compacted:
        Inbox(tmp_path, partitions=1).close()
        compact_segment(tmp_path / "0", InboxView(tmp_path).layout.inbox, 0, 0)
    reader = InboxStreamReader({"path": str(tmp_path), "max_records": "30", "max_bytes": "10000"})
    limit = reader.getDefaultReadLimit()
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    batches = [[len(form["body"]) for form in read(reader, *pair)] for pair in itertools.pairwise(offsets)]
    assert [size for batch in batches for size in batch] == sizes
    assert all(sum(batch) <= 10_000 or len(batch) == 1 for batch in batches), batches
    assert [30_000] in batches
    assert len(batches) < 12


def test_commit_trims_only_what_lies_behind_and_never_the_open_segment(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=SMALL)
    append(inbox, range(500))
    reader = InboxStreamReader({"path": str(tmp_path)})
    start = reader.initialOffset()
    middle = reader.latestOffset(start, ReadMaxRows(200))
    everything = reader.latestOffset(middle, ReadAllAvailable())
    rest = read(reader, middle, everything)
    reader.commit(middle)
    assert list_segments(tmp_path / "0")[0] == middle["partitions"]["0"]["segment"] > 0
    assert read(reader, middle, everything) == rest
    reader.commit(everything)
    (left,) = list_segments(tmp_path / "0")
    assert reader.latestOffset(everything, ReadAllAvailable()) == everything
    append(inbox, [500])
    assert [form["body"] for form in read(reader, everything, reader.latestOffset(everything, ReadAllAvailable()))] == [
        b"500"
    ]
    assert list_segments(tmp_path / "0")[0] == left
    inbox.close()
    fresh = InboxStreamReader({"path": str(tmp_path)})
    with pytest.raises(InboxDamaged, match="new checkpoint generation"):
        fresh.latestOffset(start, ReadAllAvailable())


def test_rows_that_are_not_published_are_not_offered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, partitions=1, limits=SMALL)
    append(inbox, [0])
    published = (tmp_path / "0" / "durable").read_bytes()
    append(inbox, [1])
    inbox.close()
    (tmp_path / "0" / "durable").write_bytes(published)
    reader = InboxStreamReader({"path": str(tmp_path)})
    start = reader.initialOffset()
    assert [form["body"] for form in read(reader, start, reader.latestOffset(start, ReadAllAvailable()))] == [b"0"]


@pytest.mark.parametrize(
    ("change", "text"),
    [({"version": 2}, "version 2"), ({"inbox": "other"}, "inbox other"), ({"partitions": 1}, "read")],
)
def test_a_foreign_offset_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    Inbox(tmp_path, limits=SMALL).close()
    reader = InboxStreamReader({"path": str(tmp_path)})
    with pytest.raises(InboxFormatError, match=text):
        reader.latestOffset({**reader.initialOffset(), **change}, ReadAllAvailable())


class Taken:
    """A sink that keeps what each batch brought; as a batch may be repeated, by batch id."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[str, int]]] = {}
        self.fail_at = -1

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = [(each.position, int(bytes(each.body))) for each in frame.select("position", "body").collect()]
        if batch == self.fail_at:
            raise RuntimeError("stopped on purpose")
        previous = self.batches.setdefault(batch, rows)
        assert sorted(previous) == sorted(rows), "a repeated batch must be the same"

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [row for batch in self.batches.values() for row in batch]


@pytest.mark.spark
def test_a_query_reads_each_row_once_through_restarts(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(InboxDataSource)
    path, checkpoint = tmp_path / "inbox", tmp_path / "checkpoint"
    inbox = Inbox(path, limits=SMALL)
    append(inbox, range(400))
    taken = Taken()

    def writer(max_records: int) -> Any:
        source = spark.readStream.format(NAME).option("path", str(path)).option("max_records", max_records)
        return source.load().writeStream.foreachBatch(taken).option("checkpointLocation", str(checkpoint))

    taken.fail_at = 2
    failing = writer(60).start()
    with pytest.raises(Exception, match="stopped on purpose"):
        failing.awaitTermination(SECONDS)
    taken.fail_at = -1
    append(inbox, range(400, 500))
    inbox.close()
    inbox = Inbox(path, limits=SMALL)
    assert writer(60).trigger(availableNow=True).start().awaitTermination(SECONDS)
    assert sorted(number for _, number in taken.rows) == list(range(500))
    assert len(taken.batches) >= 9
    append(inbox, range(500, 900))
    running = writer(1000).start()
    try:
        wait_until(lambda: len(taken.rows) == 900, SECONDS, "the rows appended last")
        append(inbox, range(900, 1000))
        wait_until(lambda: len(taken.rows) == 1000, SECONDS, "rows appended while the query runs")
    finally:
        running.stop()
        inbox.close()
    assert sorted(number for _, number in taken.rows) == list(range(1000))
    assert len({position for position, _ in taken.rows}) == 1000
    first = InboxPosition(list_segments(path / "0")[0], 0)
    assert first.segment > 0 and not segment_path(path / "0", 0).exists(), "committed segments are deleted"
