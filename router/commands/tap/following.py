"""Records as they arrive, read beside the router from topics and from its inbox, each from its end on.

What is not read in time is passed over and counted: a tap is a sample, and asks brokers and disk for little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bindings.inbox.errors import InboxDamaged, InboxError
from bindings.inbox.offsets import InboxPosition
from bindings.inbox.view import InboxView
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from bindings.kafka.inbox_rows import inbox_rows_of
from bindings.kafka.ranges import batch_of, reading, row_of
from router.commands.plan.chunks import inbox_chunk, kafka_chunk
from router.errors import BrokerUnreachable, ConfigError
from router.judging.chunk import Chunk
from router.judging.plan import Plan
from router.sources.clusters import inbox_client, source_client

ROWS: Final = 500
"""Records of one follower that are read in one round."""
_WAIT_SECONDS: Final = 0.2
_INBOX: Final = "inbox"
_BOUNDED: Final = {"queued.max.messages.kbytes": 8192, "fetch.max.bytes": 4 << 20, "fetch.message.max.bytes": 1 << 20}
_HINT: Final = "start the broker, or correct bootstrap_servers and credentials"


class Follower(Protocol):
    """Reads what arrives at one place."""

    passed_over: int
    """Records that were there and are not shown, since more came than is read; of topics at most so many."""

    def more(self) -> Iterator[Chunk]:
        """Yield what came since the last call: at most :data:`ROWS` records, within a moment."""


class TopicFollower:
    """Follows the topics of one cluster. It joins no group and commits nothing."""

    def __init__(self, client: KafkaClient, topics: Sequence[str], *, inbox: bool = False) -> None:
        """Begin at the ends of the topics; with *inbox* gateways fill them.

        Raises:
            KafkaUnreachable: no broker answers, or they refuse us.
        """
        self.passed_over = 0
        self._inbox = inbox
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
            batch = batch_of(rows)
            yield inbox_chunk(inbox_rows_of(batch)) if self._inbox else kafka_chunk(batch)
        if len(messages) >= ROWS:
            self._catch_up()

    def _catch_up(self) -> None:
        """Go on near the ends of partitions that are far behind them."""
        for (topic, number), position in self._places.items():
            try:
                # What is cached is the end of all records, also of those that a transaction holds back.
                known = self._consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_WAIT_SECONDS)
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
                    yield inbox_chunk(batch)
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
    """Follow all that a plan reads, from now on; *note* is called with what cannot be.

    Raises:
        BrokerUnreachable: a cluster does not answer.
        ConfigError: there is nothing that can be followed.
    """
    pushed = any(source.pushed for source in plan.sources)
    followers: list[Follower] = []
    with ExitStack() as stack:
        for name, client, topics, inbox in _clusters(plan, pushed=pushed):
            try:
                follower = TopicFollower(client, topics, inbox=inbox)
            except KafkaUnreachable as error:
                raise BrokerUnreachable(f"{name}: {error}", hint=_HINT) from error
            stack.callback(follower.close)
            followers.append(follower)
            for topic in follower.lacking:
                note(f"the brokers have no topic {topic}")
        if pushed and plan.settings.inbox.kafka is None:
            try:
                followers.append(InboxFollower(Path(plan.settings.state) / _INBOX))
            except (InboxError, OSError) as error:
                note(f"the inbox is not read: {error}")
        if not followers:
            hint = "start the router once, or name endpoints with topics under sources"
            raise ConfigError("nothing can be tapped: no topic is read, and there is no inbox yet", hint=hint)
        yield followers


def _clusters(plan: Plan, *, pushed: bool) -> Iterator[tuple[str, KafkaClient, list[str], bool]]:
    """Yield each cluster with a name for errors, its topics, and whether gateways fill them."""
    topics: list[tuple[str, KafkaClient, list[str], bool]] = []
    for source in plan.sources:
        if not source.pushed:
            client = source_client(source)
            named = next((each[2] for each in topics if each[1] == client), None)
            if named is None:
                topics.append((f"source {source.endpoint}", client, [source.topic], False))
            elif source.topic not in named:
                named.append(source.topic)
    yield from topics
    inbox = plan.settings.inbox.kafka
    if pushed and inbox is not None:
        yield "inbox", inbox_client(inbox), [inbox.topic], True
