"""How much waits behind what is committed, by the sources and the checkpoints on the disk, not by Spark."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.inbox.format import InboxPosition, parse_offset
from bindings.inbox.source import InboxView
from bindings.inbox.space import InboxDamaged
from bindings.kafka.client import KafkaClient
from bindings.kafka.offsets import MAX_QUERIED_PARTITIONS, FirstRecord, FirstUnreadRecords, KafkaOffsets
from router.evaluation.evaluator import Kind
from router.reading.generations import EARLIEST, Offsets
from router.watching.backlogs import Backlog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RECEIVED: Final = "received"
CHUNK_ROWS: Final = 4096
"""Rows of the inbox that are summed up together."""
MAX_CHUNKS: Final = 1000
"""Sums that are kept of a partition; of more, each two become one."""
LOOK_ROWS: Final = 200_000
"""Rows of the inbox that are read at one look, so that the first look at millions does not keep a thread."""


class ReadUntil:
    """Up to when all that arrived at some sources has been read; not for concurrent use.

    Once what lay before an end has been read, so has all that had arrived when the source was asked for that end,
    whatever time a record says it is of. ``seconds`` is that time, since 1970; 0 until something is known.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._names: frozenset[str] = frozenset()
        self._asked: float | None = None
        self._ends: dict[Hashable, Any] = {}

    def look(self, asked: float, names: Collection[str], ends: Mapping[Any, Any], reached: Mapping[Any, Any]) -> None:
        """Take in where each place of the sources *names* ended when it was *asked*, and up to where it is read."""
        if not self._names.issuperset(names):
            # A place that was not asked about so far may have older records.
            self.seconds, self._asked = 0.0, None
        self._names = frozenset(names)
        self._arrive(ends, reached)
        if self._asked is None:
            self._asked, self._ends = asked, dict(ends)
            self._arrive(ends, reached)

    def _arrive(self, ends: Mapping[Any, Any], reached: Mapping[Any, Any]) -> None:
        """Note that the ends that were asked for are reached, if all are.

        What is not there any more has none, and what was made anew since has one that is nearer.
        """
        self._ends = {place: min(end, ends[place]) for place, end in self._ends.items() if place in ends}
        if self._asked is not None and all(reached[place] >= end for place, end in self._ends.items()):
            self.seconds, self._asked = self._asked, None


class TopicBacklogs:
    """How much waits in topics of one cluster. It keeps its connections until it is left; not for concurrent use.

    ``read_until`` is up to when what arrived there has been read. *now* gives the seconds since 1970.
    """

    def __init__(self, client: KafkaClient, now: Callable[[], float] = time.time) -> None:
        self.read_until = ReadUntil()
        self._now = now
        self._ends = KafkaOffsets(client)
        self._heads = FirstUnreadRecords(client)
        self._shown: dict[str, dict[str, dict[int, int]]] = {}
        """What each group was told last."""
        self._before: dict[str, dict[int, int]] = {}
        self._arrived: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._heads.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heads.__exit__(kind, error, trace)

    def look(self, topics: Iterable[str], positions: Offsets) -> dict[str, Backlog | None]:
        """Return what each topic has behind these positions; None for one that does not exist.

        Raises:
            KafkaUnreachable: the brokers do not say where the topics end.
        """
        wanted = list(topics)
        asked = self._now()
        ends = self._ends.end_offsets(wanted)
        starts = self._starts(ends, positions)
        self._note(asked, wanted, ends, starts)
        waiting = {
            (topic, number): (starts[topic][number], end)
            for topic, partitions in ends.items()
            for number, end in partitions.items()
            if end > starts[topic][number]
        }
        heads = self._heads.find_first_records(waiting) if 0 < len(waiting) <= MAX_QUERIED_PARTITIONS else {}
        self._arrive(ends)
        backlogs: dict[str, Backlog | None] = {topic: Backlog(0, None, self._arrived[topic]) for topic in ends}
        for (topic, number), (start, end) in waiting.items():
            # Offsets before the first record have none: markers of transactions, what is aborted or compacted.
            head = heads.get((topic, number), FirstRecord(start))
            if head.offset < end:
                backlogs[topic] = _more(backlogs[topic], end - head.offset, head.arrived)
        return {topic: backlogs.get(topic) for topic in wanted}

    def commit(self, group: str, topics: Collection[str], positions: Offsets) -> None:
        """Commit the positions of these topics to a consumer group, for Kafka's own tools to show; nobody reads them.

        Raises:
            KafkaUnreachable: the brokers do not answer, or refuse.
        """
        offsets = {
            topic: {int(number): at for number, at in positions.get(topic, {}).items() if at >= 0} for topic in topics
        }
        known = {topic: numbers for topic, numbers in offsets.items() if numbers}
        if known and self._shown.get(group) != known:
            self._ends.commit_offsets(group, known)
            self._shown[group] = known

    def _arrive(self, ends: Mapping[str, Mapping[int, int]]) -> None:
        """Count what came since the look before; a topic that was made anew begins again."""
        for topic, partitions in ends.items():
            before = self._before.get(topic)
            self._before[topic] = dict(partitions)
            if before is not None:
                grown = (
                    end - (at if (at := before.get(number, 0)) <= end else 0) for number, end in partitions.items()
                )
                self._arrived[topic] += sum(grown)

    def _note(
        self, asked: float, topics: list[str], ends: Mapping[str, Mapping[int, int]], starts: dict[str, dict[int, int]]
    ) -> None:
        places = {(topic, number): end for topic, partitions in ends.items() for number, end in partitions.items()}
        # A position behind the end is of a topic that was deleted and made again: nothing of this one is read.
        reached = {(topic, n): at if (at := starts[topic][n]) <= end else 0 for (topic, n), end in places.items()}
        self.read_until.look(asked, topics, places, reached)

    def _starts(self, ends: Mapping[str, Mapping[int, int]], positions: Offsets) -> dict[str, dict[int, int]]:
        """Return where each partition is read on; the brokers know where the first record lies that is wanted."""
        starts = {
            topic: {number: positions.get(topic, {}).get(str(number), EARLIEST) for number in partitions}
            for topic, partitions in ends.items()
        }
        unknown = {topic: [n for n, at in numbers.items() if at < 0] for topic, numbers in starts.items()}
        unknown = {topic: numbers for topic, numbers in unknown.items() if numbers}
        for topic, firsts in (self._ends.first_offsets(unknown) if unknown else {}).items():
            starts[topic] |= firsts
        return starts


def _more(backlog: Backlog | None, records: int, arrived: int | None) -> Backlog:
    """Return a backlog with the records of another partition, the first of which *arrived* then."""
    total = 0 if backlog is None else backlog.arrived
    if backlog is None or not backlog.records:
        return Backlog(records, arrived, total)
    known = None if None in (backlog.oldest, arrived) else min(backlog.oldest or 0, arrived or 0)
    return Backlog(backlog.records + records, known, total)


@dataclass(slots=True)
class _Rows:
    """The rows from one position of a partition to another, by endpoint: how many, and when the first arrived (ms)."""

    first: InboxPosition
    last: InboxPosition
    counts: dict[str, int]
    oldest: dict[str, int]


class InboxRows:
    """How many rows of an inbox wait for each endpoint. Each is read once when it arrives; not for concurrent use.

    What is known are sums over up to :data:`CHUNK_ROWS` rows. Only those in which reading stands now are read again.
    ``arrived`` has what came since the first look, by endpoint.
    """

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self._known: dict[int, deque[_Rows]] = {}
        self._ends: dict[int, InboxPosition] = {}
        self._there: dict[int, InboxPosition] = {}
        """Where each partition ended at the first look: what lies before had arrived already."""

    def look(
        self, view: InboxView, positions: Mapping[int, InboxPosition], ends: Mapping[int, InboxPosition]
    ) -> dict[str, Backlog] | None:
        """Return what waits between these places by endpoint; None while rows are left that were not yet read.

        Raises:
            InboxDamaged: a segment behind a position is gone or broken.
        """
        left = LOOK_ROWS
        for number, position in positions.items():
            self._there.setdefault(number, ends[number])
            self._pass(view, number, position)
            left -= self._take(view, number, position, ends[number], left)
        if any(self._ends[number] < end for number, end in ends.items()):
            return None
        counts: Counter[str] = Counter()
        oldest: dict[str, int] = {}
        for rows in (each for known in self._known.values() for each in known):
            counts.update(rows.counts)
            for name, at in rows.oldest.items():
                oldest[name] = min(oldest.get(name, at), at)
        names = self.arrived.keys() | counts.keys()
        return {name: Backlog(counts[name], oldest.get(name), self.arrived[name]) for name in names}

    def _pass(self, view: InboxView, number: int, position: InboxPosition) -> None:
        """Forget the rows before a position."""
        known = self._known.setdefault(number, deque())
        while known and known[0].last <= position:
            known.popleft()
        if known and known[0].first < position:
            cut = known.popleft()
            known.extendleft(reversed(list(_read(view, number, position, cut.last))))

    def _take(self, view: InboxView, number: int, position: InboxPosition, end: InboxPosition, most: int) -> int:
        """Read rows that are new, at most so many; return how many it were."""
        begin = self._ends.setdefault(number, position)
        stop = view.advance_position(number, begin, most, end) if most > 0 else begin
        try:
            new = list(_read(view, number, begin, stop))
        except InboxDamaged:
            if begin >= position:
                raise
            # They were read by a batch, and trimmed, before they were looked at.
            begin = position
            stop = view.advance_position(number, begin, most, end)
            new = list(_read(view, number, begin, stop))
        self._ends[number] = max(begin, stop)
        for rows in new:
            if rows.first >= self._there[number]:
                self.arrived.update(rows.counts)
            if rows.last > position:
                self._known[number].append(rows)
        self._pass(view, number, position)
        if len(self._known[number]) > MAX_CHUNKS:
            self._known[number] = _merged(self._known[number])
        return sum(sum(rows.counts.values()) for rows in new)


def _read(view: InboxView, number: int, first: InboxPosition, last: InboxPosition) -> Iterator[_Rows]:
    """Yield the sums of rows between two positions, of many at a time."""
    while first < last:
        upto = view.advance_position(number, first, CHUNK_ROWS, last)
        rows = _Rows(first, upto, {}, {})
        for batch in view.read_spans(number, view.plan_spans(number, first, upto)):
            table = pa.table({"endpoint": batch.column("endpoint"), "at": batch.column(RECEIVED).cast(pa.int64())})
            sums = table.group_by("endpoint").aggregate([("at", "min"), ([], "count_all")])
            for row in sums.to_pylist():
                name, at = row["endpoint"] or "", row["at_min"]
                rows.counts[name] = rows.counts.get(name, 0) + row["count_all"]
                if at is not None:
                    rows.oldest[name] = min(rows.oldest.get(name, at // 1000), at // 1000)
        yield rows
        if upto == first:
            return
        first = upto


def _merged(known: deque[_Rows]) -> deque[_Rows]:
    """Sum up each two neighbours together."""
    pairs: deque[_Rows] = deque()
    while known:
        rows = known.popleft()
        if known:
            other = known.popleft()
            counts = dict(Counter(rows.counts) + Counter(other.counts))
            oldest = {name: min(at, rows.oldest.get(name, at)) for name, at in other.oldest.items()}
            rows = _Rows(rows.first, other.last, counts, {**rows.oldest, **oldest})
        pairs.append(rows)
    return pairs


class InboxBacklog:
    """How many durable rows of a local inbox wait. It keeps what sealed segments hold; not for concurrent use.

    ``read_until`` is up to when what arrived there has been read, ``endpoints`` what waits by endpoint, None while that
    is not known. *now* gives the seconds since 1970.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.read_until = ReadUntil()
        self._now = now
        self._path = path
        self._view: InboxView | None = None
        self._rows = InboxRows()
        self.endpoints: dict[str, Backlog] | None = None

    def look(self, offset: Mapping[str, Any] | None) -> Backlog:
        """Return what lies behind an offset of the inbox's source; all there is for None, before the first batch.

        Raises:
            InboxDamaged: a segment behind it is gone or broken. One that was trimmed meanwhile belongs to a batch that
                is committed: the offset is then another one.
        """
        view = self._view = self._view or InboxView(self._path)
        asked = self._now()
        if offset is None:
            positions = {number: view.first_position(number) for number in view.partitions}
        else:
            positions = parse_offset(offset, view.layout.inbox)
        ends = {number: max(position, view.end_position(number)) for number, position in positions.items()}
        records = sum(
            view.count_rows(number, position, ends[number])
            for number, position in positions.items()
            if ends[number] > position
        )
        self.read_until.look(asked, (), ends, positions)
        self.endpoints = self._rows.look(view, positions, ends)
        if self.endpoints is None:
            arrived = self._iter_first(view, positions, ends)
        else:
            arrived = (each.oldest for each in self.endpoints.values() if each.oldest is not None)
        return Backlog(records, min(arrived, default=None))

    @staticmethod
    def _iter_first(
        view: InboxView, positions: Mapping[int, InboxPosition], ends: Mapping[int, InboxPosition]
    ) -> Iterator[int]:
        """Yield when the first row of each partition arrived, which is its oldest."""
        for number, position in positions.items():
            if ends[number] > position:
                last = view.advance_position(number, position, 1, ends[number])
                yield from (at for rows in _read(view, number, position, last) for at in rows.oldest.values())


# Where the rows of a batch lie, and how a batch is cut into parts that can be found again.
#
# A row's place is its channel (a topic, or a partition of the inbox) and two numbers that grow with it: partition and
# offset, or segment and row. A batch that is read again has the same places, so that ranges of them name its parts.

CHANNEL: Final = "channel"
NUMBERS: Final = ("first", "second")
BYTES: Final = "bytes"
_POSITION: Final = r"^(.*)-(\d+)-(\d+)$"
Pair = tuple[int, int]


class Range(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one channel from ``first`` to ``last``, both included, each two numbers."""

    channel: str
    first_number: int
    first_second: int
    last_number: int
    last_second: int

    @property
    def first(self) -> Pair:
        """Where its first row lies."""
        return self.first_number, self.first_second

    @property
    def last(self) -> Pair:
        """Where its last row lies."""
        return self.last_number, self.last_second


Ranges = tuple[Range, ...]


def within(rows: DataFrame, kind: Kind, ranges: Ranges) -> DataFrame:
    """Return the rows of a source that lie in any of these ranges."""
    from pyspark.sql import functions as F

    channel, *numbers = _place(kind)
    place = F.struct(*numbers)
    inside: Column = F.lit(False)
    for each in ranges:
        first, last = (F.struct(*(F.lit(n).cast("bigint") for n in pair)) for pair in (each.first, each.last))
        inside = inside | ((channel == F.lit(each.channel)) & (place >= first) & (place <= last))
    return rows.where(inside)


def extents(rows: DataFrame, kind: Kind) -> pa.Table:
    """Return the places of the rows of a source in their order, and the bytes of body, key and headers of each."""
    channel, *numbers = _place(kind)
    columns = [channel.alias(CHANNEL), *(column.alias(name) for column, name in zip(numbers, NUMBERS, strict=True))]
    table = rows.select(*columns, _bytes(kind).alias(BYTES)).toArrow()
    return table.sort_by([(name, "ascending") for name in (CHANNEL, *NUMBERS)])


def cut(places: pa.Table, pieces: int, *, by_bytes: bool = False) -> list[Ranges]:
    """Return the ranges of at least two and at most *pieces* (two or more) parts, in order, of at least two places.

    Parts have about as many rows each or, *by_bytes*, about as many bytes.
    """
    rows = places.num_rows
    weights = places.column(BYTES).to_numpy().astype(np.float64) + 1 if by_bytes else np.ones(rows)
    middles = np.cumsum(weights) - weights / 2
    piece = np.minimum((middles * min(pieces, rows) / weights.sum()).astype(np.int64), pieces - 1)
    channels = pc.dictionary_encode(places.column(CHANNEL).combine_chunks())
    codes = channels.indices.to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(piece, prepend=-1) | np.diff(codes, prepend=-1))
    ends = np.append(starts[1:], rows) - 1
    first, second = (places.column(name).to_numpy() for name in NUMBERS)
    parts: dict[int, list[Range]] = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        channel = channels.dictionary[int(codes[start])].as_py()
        bounds = (int(column[at]) for at in (start, end) for column in (first, second))
        parts.setdefault(int(piece[start]), []).append(Range(channel, *bounds))
    return [tuple(ranges) for ranges in parts.values()]


def first_of(places: pa.Table) -> str:
    """Return the position of the first row, as dead letters have it."""
    channel, first, second, _ = (column[0].as_py() for column in places.itercolumns())
    return f"{channel}-{first}-{second}"


def _place(kind: Kind) -> tuple[Column, Column, Column]:
    from pyspark.sql import functions as F

    if kind == "kafka":
        return F.col("topic"), F.col("partition").cast("bigint"), F.col("offset")
    position = F.col("position")
    numbers = (F.regexp_extract(position, _POSITION, group).cast("bigint") for group in (2, 3))
    return F.regexp_extract(position, _POSITION, 1), *numbers  # type: ignore[return-value]


def _bytes(kind: Kind) -> Column:
    from pyspark.sql import functions as F

    def held(entry: Column) -> Column:
        return F.coalesce(F.length(entry["value"]), F.lit(0)) + F.length(entry["key"])

    named, blobs = ("headers", ("value", "key")) if kind == "kafka" else ("properties", ("body",))
    total = F.aggregate(F.coalesce(F.col(named), F.array()), F.lit(0), lambda sum_, entry: sum_ + held(entry))
    for name in blobs:
        total = total + F.coalesce(F.length(name), F.lit(0))
    return total.cast("bigint")
