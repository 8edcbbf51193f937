"""Records as they arrive, read beside the router from topics and from its inbox, each from its end on.

What is not read in time is passed over and counted: a tap is a sample, and asks brokers and disk for little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bindings.inbox.errors import InboxDamaged, InboxError, InboxFormatError
from bindings.inbox.offsets import InboxPosition
from bindings.inbox.view import InboxView
from bindings.kafka.client import KafkaClient, KafkaEnds, KafkaUnreachable
from bindings.kafka.ranges import batch_of, reading, row_of
from router.commands.plan.chunks import kafka_chunk
from router.errors import BrokerUnreachable, ConfigError
from router.judging.chunk import Chunk
from router.judging.judging import INBOX_COLUMNS
from router.judging.plan import Plan
from router.sources.clusters import source_client

ROWS: Final = 500
"""Records of one follower that are read in one round."""
_WAIT_SECONDS: Final = 0.2
_INBOX: Final = "inbox"
_BOUNDED: Final = {"queued.max.messages.kbytes": 8192, "fetch.max.bytes": 4 << 20, "fetch.message.max.bytes": 1 << 20}
_HINT: Final = "start the broker, or correct bootstrap_servers and credentials"


class Follower(Protocol):
    """Reads what arrives at one place."""

    passed_over: int
    """Records that were there and are not shown, since more came than is read."""

    def more(self) -> Iterator[Chunk]:
        """Yield what came since the last call: at most :data:`ROWS` records, within a moment."""


class TopicFollower:
    """Follows the topics of one cluster. It joins no group and commits nothing."""

    def __init__(self, client: KafkaClient, topics: Sequence[str]) -> None:
        """Begin at the ends of the topics.

        Raises:
            KafkaUnreachable: no broker answers, or they refuse us.
        """
        self.passed_over = 0
        ends = KafkaEnds(client).ends(list(topics))
        self.lacking = tuple(topic for topic in topics if ends.get(topic) is None)
        """Topics that the brokers do not have."""
        self._places = {
            (topic, number): end for topic in topics for number, end in sorted((ends.get(topic) or {}).items())
        }
        self._consumer = Consumer({**reading(client), "group.id": "xrouter-tap", **_BOUNDED})
        self._consumer.assign([TopicPartition(*place, end) for place, end in self._places.items()])

    def more(self) -> Iterator[Chunk]:
        """Yield what came since."""
        messages = self._consumer.consume(ROWS, _WAIT_SECONDS)
        rows = [row_of(message) for message in messages if message.error() is None]
        for row in rows:
            self._places[row["topic"], row["partition"]] = row["offset"] + 1
        if rows:
            yield kafka_chunk(batch_of(rows))
        if len(messages) >= ROWS:
            self._catch_up()

    def _catch_up(self) -> None:
        """Go on near the ends of partitions that are far behind them."""
        for (topic, number), position in self._places.items():
            try:
                known = self._consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)
                end = known[1] if known is not None else position
                if end - position > 2 * ROWS:
                    self._consumer.seek(TopicPartition(topic, number, end - ROWS))
                    self.passed_over += end - ROWS - position
                    self._places[topic, number] = end - ROWS
            except KafkaException:
                continue  # It is not fetched from yet; the next round tries again.

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()


class InboxFollower:
    """Follows an inbox on the disk, whose segments a running router writes and removes meanwhile."""

    def __init__(self, folder: Path) -> None:
        """Begin at its end.

        Raises:
            InboxFormatError: there is no inbox, or one of another version.
        """
        self.passed_over = 0
        self._view = InboxView(folder)
        self._positions = {number: self._view.end(number) for number in self._view.partitions}

    def more(self) -> Iterator[Chunk]:
        """Yield what came since."""
        left = ROWS
        for number, start in self._positions.items():
            end = self._view.end(number)
            if end == start:
                continue
            try:
                first = self._first(number, start, end, left)
                for batch in self._view.read(number, self._view.spans(number, first, end)):
                    left -= batch.num_rows
                    yield Chunk("inbox", batch.select(list(INBOX_COLUMNS)))
            except InboxDamaged:
                self.passed_over += 1  # The router was done with them, and removed them: one at least.
            self._positions[number] = end

    def _first(self, number: int, start: InboxPosition, end: InboxPosition, most: int) -> InboxPosition:
        """Return from where to read so that at most so many records are."""
        there = self._view.count(number, start, end)
        over = max(0, there - max(1, most))
        self.passed_over += over
        return self._view.advance(number, start, over, end) if over else start


@contextmanager
def following(plan: Plan, note: Callable[[str], None]) -> Iterator[list[Follower]]:
    """Follow all that a plan reads, from now on; *note* is told of what cannot be.

    Raises:
        BrokerUnreachable: a cluster does not answer.
        ConfigError: there is nothing that can be followed.
    """
    topics: dict[int, tuple[KafkaClient, list[str], str]] = {}
    for source in plan.sources:
        if not source.pushed:
            client = source_client(source)
            same = next((key for key, each in topics.items() if each[0] == client), len(topics))
            named = topics.setdefault(same, (client, [], source.endpoint))[1]
            if source.topic not in named:
                named.append(source.topic)
    followers: list[Follower] = []
    with ExitStack() as stack:
        for client, names, endpoint in topics.values():
            try:
                follower = TopicFollower(client, names)
            except KafkaUnreachable as error:
                raise BrokerUnreachable(f"source {endpoint}: {error}", hint=_HINT) from error
            stack.callback(follower.close)
            followers.append(follower)
            for topic in follower.lacking:
                note(f"the brokers have no topic {topic}")
        if any(source.pushed for source in plan.sources):
            inbox = _inbox(plan, note)
            followers += [] if inbox is None else [inbox]
        if not followers:
            hint = "start the router once, or name endpoints with topics under sources"
            raise ConfigError("nothing can be tapped: no topic is read, and there is no inbox yet", hint=hint)
        yield followers


def _inbox(plan: Plan, note: Callable[[str], None]) -> InboxFollower | None:
    if plan.settings.inbox.kafka is not None:
        note(f"the inbox is topic {plan.settings.inbox.kafka.topic}, which is not read here")
        return None
    try:
        return InboxFollower(Path(plan.settings.state) / _INBOX)
    except (InboxFormatError, InboxError, OSError) as error:
        note(f"the inbox is not read: {error}")
        return None
