"""Checkpoint generations of a query, what Spark planned in them, and where topics begin after a change of topics."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.offsets import KafkaOffsets, KafkaRange
from catalog.parsing.regular import read_regular
from router.errors import BrokerUnreachable, ConfigError
from router.logs import get_logger, shorten_list
from router.settings import Settings
from router.sources import INBOX, REST, Source, Start, group_by_query, make_source_client
from router.state.durable import damaged, missing, newest_in, numbers_in, read, read_object, write_durably
from router.state.state import StateFolder

if TYPE_CHECKING:
    from router.reading.backlogs import Ranges

# Positions: from where each topic of a Kafka cluster is read, in the state database, which outlives topics and
# generations.
#
# A topic gets its position when it is first to be read, before anything announces that; from then on the position only
# moves forward. "Latest" is a number from that moment on: whoever asked for it again, after a restart or another change
# of topics, would skip what came meanwhile. A partition that has no position, of a topic that has one, begins at its
# first record: the topic or the partition was not there when the topic was first to be read, or the whole topic was
# wanted.

EARLIEST: Final = -2
Offsets: TypeAlias = dict[str, dict[str, int]]
"""By topic and partition, as Spark writes them; :data:`EARLIEST` is the first record there is."""
_log = get_logger()


class Positions:
    """The positions of a state folder's topics."""

    def __init__(self, state: StateFolder) -> None:
        self._database = state.database

    def of(self, cluster: str) -> Offsets:
        """Return the positions of a cluster's topics."""
        offsets: Offsets = {}
        query = "SELECT topic, partition, position FROM positions WHERE cluster = ?"
        for topic, number, position in self._database.read(query, (cluster,)):
            partitions = offsets.setdefault(topic, {})
            if number >= 0:
                partitions[str(number)] = position
        return offsets

    def keep(self, cluster: str, offsets: Mapping[str, Mapping[str, int]], *, maybe_old: bool = False) -> None:
        """Note positions, durably; topics and partitions that are not named keep what they have.

        With *maybe_old* those keep it, too, that are further on.
        """
        chosen = "max(position, excluded.position)" if maybe_old else "excluded.position"
        rows = [
            (cluster, topic, int(number), position)
            for topic, partitions in offsets.items()
            for number, position in {"-1": 0, **partitions}.items()
        ]
        statement = f"INSERT INTO positions VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET position = {chosen}"
        with self._database.transaction() as connection:
            connection.executemany(statement, rows)

    def place(self, sources: Sequence[Source], reading: Iterable[str], default: Start) -> None:
        """Give those topics of one cluster a position that have none and are not among those being read.

        *default* is where they begin if their source does not say.

        Raises:
            BrokerUnreachable: the brokers do not say where the topics end; nothing is noted then.
        """
        cluster = cluster_of(sources[0].query)
        known = {*self.of(cluster), *reading}
        starts = {each.topic: each.settings.start or default for each in sources if each.topic not in known}
        if not starts:
            return
        latest = [topic for topic, start in starts.items() if start == "latest"]
        ends = _ends_of(make_source_client(sources[0]), latest) if latest else {}
        placed = {topic: {str(number): end for number, end in ends.get(topic, {}).items()} for topic in starts}
        self.keep(cluster, placed)
        for topic in latest:
            _log.info("reading topic from its end", topic=topic, offsets=placed[topic])


@contextmanager
def reaching_brokers() -> Iterator[None]:
    """Turn the error of brokers that do not answer into :class:`BrokerUnreachable`."""
    try:
        yield
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error


def _ends_of(client: KafkaClient, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    with reaching_brokers():
        return KafkaOffsets(client).end_offsets(topics)


def starting_offsets(partitions: Mapping[str, Sequence[int]], positions: Mapping[str, Mapping[str, int]]) -> str:
    """Return Spark's ``startingOffsets`` for the partitions that there are."""
    chosen = {
        topic: {str(number): positions.get(topic, {}).get(str(number), EARLIEST) for number in numbers}
        for topic, numbers in partitions.items()
    }
    return json.dumps(chosen, sort_keys=True)


def cluster_of(query: str) -> str:
    """Return the part of a query's name that stands for its cluster, which its lanes share."""
    return query.split("-")[1]


# Checkpoint generations: a streaming query's checkpoint, and what happens when its set of topics changes.
#
# Spark starts an added topic at its earliest record whatever the settings say, and forgets or fails on a removed one.
# So a changed set of topics starts a new generation, with explicit offsets for every partition from a ledger that
# outlives topics (:mod:`router.reading.generations`). A batch that the old generation had begun is finished first, as
# it was. A generation's description holds where it begins, so that one that never commits a batch hands that on to the
# next.

_DESCRIPTION: Final = "generation.json"


@dataclass(frozen=True, slots=True)
class Generation:
    """One checkpoint. ``id`` identifies its commits at tables; ``topics`` are what its query subscribes to.

    ``starting`` are the positions that it begins at, as JSON; see :mod:`router.reading.generations` for what is not
    named.
    """

    path: Path
    id: str
    topics: tuple[str, ...]
    starting: str = ""

    @property
    def number(self) -> int:
        """Which generation of its query it is, from 1."""
        return int(self.path.name)

    @property
    def pending(self) -> int | None:
        """The batch that was begun and not committed; None when there is none."""
        begun, committed = newest_in(self.path / "offsets"), newest_in(self.path / "commits")
        return begun if begun is not None and begun != committed else None

    def committed(self, batch: int) -> bool:
        """Whether Spark has noted that batch as done."""
        return (self.path / "commits" / str(batch)).exists()

    @property
    def begun(self) -> bool:
        """Whether Spark has fixed where the query begins; after that it looks at no other start."""
        return (self.path / "sources" / "0" / "0").exists()

    def first(self) -> Offsets:
        """Where this generation begins: as Spark noted it at its first look, else where it was made to begin."""
        text = (read(self.path / "sources" / "0" / "0") or b"").decode("utf-8", "replace")
        line = next((line for line in reversed(text.split("\n")) if line.startswith("{")), self.starting or "{}")
        offsets: Offsets = json.loads(line)
        return offsets

    def reached(self) -> dict[str, Any] | None:
        """The offset of the only source up to which batches are committed; None before the first.

        Raises:
            StateError: Spark's note of it is gone: nobody knows where to read on.
        """
        committed = newest_in(self.path / "commits")
        if committed is None:
            return None
        path = self.path / "offsets" / str(committed)
        try:
            return _read_end(path)
        except FileNotFoundError as error:
            raise missing(path, f"batch {committed} was committed") from error

    def ends(self, batch: int) -> dict[str, Any]:
        """Return the offset of the only source that a batch ends at, as Spark noted it; empty when that says none."""
        try:
            return _read_end(self.path / "offsets" / str(batch))
        except FileNotFoundError:
            return {}

    def positions(self) -> Offsets:
        """Where each of its topics is to be read on: behind what it committed, else where it began."""
        begun: Offsets = {topic: {} for topic in self.topics} | self.first()
        reached: Offsets | None = self.reached()
        if reached is None:
            return begun
        # A partition that Spark read at first and no more is gone; another one of its name begins anew.
        kept = {topic: dict.fromkeys(numbers, EARLIEST) for topic, numbers in begun.items()} if self.begun else begun
        return {topic: {**kept.get(topic, {}), **reached.get(topic, {})} for topic in {**kept, **reached}}


@lru_cache(64)
def _read_end(path: Path) -> dict[str, Any]:
    """Return the offset in a file of Spark, which never changes; a batch is asked for it a dozen times."""
    lines = read_regular(path).decode("utf-8").split("\n")
    offset: Any = json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else {}
    return offset if isinstance(offset, dict) else {}


def current(state: StateFolder, query: str) -> Generation | None:
    """Return the newest generation of a query; None before its first start.

    A folder without a description is what a crash left before its generation existed, unless Spark wrote there.

    Raises:
        StateError: a description is damaged, or gone from a checkpoint that Spark wrote.
    """
    folder = state.checkpoints / query
    for number in reversed(numbers_in(folder)):
        description = folder / str(number) / _DESCRIPTION
        form = read_object(description)
        if form is not None:
            return _generation(description, form)
        if any((folder / str(number) / name).exists() for name in ("metadata", "offsets", "commits")):
            raise missing(description, "Spark's checkpoint is beside it")
    return None


def _generation(description: Path, form: Mapping[str, Any]) -> Generation:
    try:
        id, topics, starting = form["id"], form["topics"], form.get("starting", "")
        if not (isinstance(id, str) and isinstance(topics, list) and isinstance(starting, str)):
            raise TypeError("a member is of another type")
        json.loads(starting or "{}")
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(description, f"it describes no generation ({error!r})") from error
    return Generation(description.parent, id, tuple(map(str, topics)), starting)


def begin(state: StateFolder, query: str, topics: Sequence[str], starting: str = "") -> Generation:
    """Start a new generation after the current one, if there is any.

    It exists, durably, once its description is written; a crash before leaves the old one current.
    """
    folder = state.checkpoints / query
    path = folder / str(max(numbers_in(folder), default=0) + 1)
    generation = Generation(path, uuid.uuid4().hex, tuple(topics), starting)
    state.batches.unpin_all(query)
    description = {"id": generation.id, "topics": list(generation.topics), "starting": starting}
    write_durably(path / _DESCRIPTION, json.dumps(description).encode())
    state.inventory.note_generation(query, generation.number, generation.id)
    return generation


# What Spark planned a batch of topics to read: its offsets, from the checkpoint, and those of a part of it.

Spans: TypeAlias = dict[str, dict[int, tuple[int, int]]]
"""By topic and partition, the first offset and the one behind the last."""


def planned(generation: Generation, batch: int) -> Spans | None:
    """Return the offsets of a batch; None where they are not all known, or it is not one of topics."""
    offsets = offsets_of(generation, batch)
    firsts = [first for spans in offsets.values() for first, _ in spans.values()]
    return offsets if firsts and all(first >= 0 for first in firsts) else None


def ranges_of(generation: Generation, batch: int) -> tuple[KafkaRange, ...]:
    """Return what a batch of topics reads, for our own client; a partition that was added since begins at its first."""
    return tuple(
        KafkaRange(topic, number, first if first >= 0 else None, end)
        for topic, partitions in sorted(offsets_of(generation, batch).items())
        for number, (first, end) in sorted(partitions.items())
        if first < end
    )


def bounds(generation: Generation, batch: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the offsets of the one source of a batch, where it begins and where it ends; empty when not known."""
    return generation.ends(batch - 1) if batch else generation.first(), generation.ends(batch)


def offsets_of(generation: Generation, batch: int) -> Spans:
    """Return the offsets of a batch, -2 for where a partition that was added begins; empty for one of the inbox."""
    starts, ends = bounds(generation, batch)
    spans: Spans = {}
    try:
        for topic, partitions in ends.items():
            begun = starts.get(topic, {})
            spans[topic] = {int(n): (int(begun.get(n, EARLIEST)), int(end)) for n, end in partitions.items()}
    except (TypeError, ValueError, AttributeError):
        return {}  # The places of an inbox.
    return spans


def turned_back(generation: Generation, batch: int) -> Spans:
    """Return the partitions that a batch ends before where it begins: their topic was made again, or cut."""
    found = {
        topic: {number: span for number, span in partitions.items() if span[1] < span[0]}
        for topic, partitions in offsets_of(generation, batch).items()
    }
    return {topic: partitions for topic, partitions in found.items() if partitions}


def records_in(spans: Spans) -> int:
    """Return how many offsets these are; a compacted topic has fewer records."""
    return sum(end - first for partitions in spans.values() for first, end in partitions.values())


def spans_of(ranges: Ranges, whole: Spans) -> Spans:
    """Return the offsets of the parts of a batch that *ranges* name, within those of the *whole* batch."""
    spans: Spans = {}
    for each in ranges:
        (low, first), (high, last) = each.first, each.last
        for number, (begin, end) in whole.get(each.channel, {}).items():
            if low <= number <= high:
                span = (first if number == low else begin, last + 1 if number == high else end)
                before = spans.setdefault(each.channel, {}).get(number, span)
                spans[each.channel][number] = (min(before[0], span[0]), max(before[1], span[1]))
    return spans


# Which generation a query reads next: the one whose batch is unfinished, else one for the topics as they are now.
#
# All that decides it is on the disk: generations, pins, and the positions of topics. Queries of one cluster (its lanes)
# share positions: a topic that moves from one to another is read on where it was left.


class Succession:
    """The generations of all queries of a state folder. Not for concurrent use."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._positions = Positions(state)

    def place(self, sources: Sequence[Source], default: Start) -> None:
        """Note durably where each topic begins that is new, before anything announces it.

        *default* is where a topic begins whose source does not say.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        for query, members in group_by_query(sources).items():
            if query != INBOX:
                others = self._generations(cluster_of(query))
                self._positions.place(members, {topic for each in others for topic in each.topics}, default)

    def unfinished(self, query: str) -> Generation | None:
        """Return a query's generation if a batch of it may have been written in part; it goes before all else.

        One that was planned and never pinned has not been written: its records are judged anew.
        """
        known = current(self._state, query)
        if known is None or known.pending is None:
            return None
        return known if self._state.batches.pinned(query, known.pending) is not None else None

    def left(self, wanted: Collection[str]) -> list[str]:
        """Return queries that are not wanted any more, and have something to finish.

        The inbox always has: what it took was acknowledged, whoever still sends there.
        """
        names = sorted(path.name for path in self._state.checkpoints.glob("*"))
        return [name for name in names if name not in wanted and (name == INBOX or self.unfinished(name))]

    def choose(self, query: str, sources: Sequence[Source], settings: Settings) -> Generation:
        """Return the generation that a query reads next; the inbox and the rest topic have always the same.

        Raises:
            BrokerUnreachable: as :meth:`place`.
            ConfigError: as :meth:`rest`.
        """
        if query == INBOX:
            return current(self._state, INBOX) or begin(self._state, INBOX, ())
        if query == REST:
            assert settings.realtime is not None
            return self.rest(settings.realtime.rest)
        return self.unfinished(query) or self.next(query, sources, settings.start)

    def rest(self, topic: str) -> Generation:
        """Return the generation that the rest topic is read by, which is always the same.

        Raises:
            ConfigError: it was begun for another topic, which may have records that are not routed.
        """
        known = current(self._state, REST)
        if known is not None and known.topics != (topic,):
            before = ", ".join(known.topics)
            raise ConfigError(
                f"the rest topic was {before} before, which may hold records that are not routed",
                key="realtime.rest",
                hint=f"name {before} again; once it is read, remove {self._state.checkpoints / REST} and {REST!r} from "
                f'"generations" in {self._state.inventory.path}',
            )
        return known or begin(self._state, REST, (topic,))

    def next(self, query: str, sources: Sequence[Source], default: Start) -> Generation:
        """Return the generation for these sources, a new one if their topics changed; no batch may be unfinished.

        No other query may be reading any of the topics.

        Raises:
            BrokerUnreachable: as :meth:`place`.
        """
        topics, cluster = topics_of(sources), cluster_of(query)
        known = current(self._state, query)
        if known is not None and set(known.topics) == set(topics):
            return known
        for each in self._generations(cluster):
            if each.path.parent.name != query:
                self._positions.keep(cluster, _only(each.positions(), topics), maybe_old=True)
        if known is not None:
            self._positions.keep(cluster, known.positions())
        self._positions.place(sources, (), default)
        kept = self._positions.of(cluster)
        return begin(self._state, query, topics, json.dumps(_only(kept, topics), sort_keys=True))

    def renew(self, query: str, again: Spans) -> Generation:
        """Begin a new generation of the same topics, which reads some partitions from the first record they have.

        *again* are those partitions; all others are read on where they were left. The batch that the old generation
        may have planned is dropped.
        """
        known = current(self._state, query)
        assert known is not None
        positions = known.positions()
        for topic, partitions in again.items():
            positions[topic] = {**positions.get(topic, {}), **{str(number): EARLIEST for number in partitions}}
        if query not in (INBOX, REST):
            self._positions.keep(cluster_of(query), positions)
        return begin(self._state, query, known.topics, json.dumps(positions, sort_keys=True))

    def _generations(self, cluster: str) -> list[Generation]:
        names = sorted(path.name for path in self._state.checkpoints.glob(f"kafka-{cluster}*"))
        latest = (current(self._state, name) for name in names)
        return [generation for generation in latest if generation is not None]


def reads(sources: Sequence[Source], query: str) -> dict[str, str]:
    """Return what a query reads, for people: endpoints, and topics where these have some; a few of them."""
    members = [source for source in sources if source.query == query]
    names = {"endpoints": [source.endpoint for source in members], "topics": list(topics_of(members))}
    return {name: shorten_list(values) for name, values in names.items() if any(values)}


def topics_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the topics of Kafka sources, each once."""
    return tuple(dict.fromkeys(source.topic for source in sources))


def _only(offsets: Offsets, topics: Collection[str]) -> Offsets:
    return {topic: partitions for topic, partitions in offsets.items() if topic in topics}
