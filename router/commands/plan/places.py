"""The last records of a router: of its topics, its inbox and its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bindings.inbox.errors import InboxDamaged, InboxFormatError
from bindings.inbox.view import InboxView
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.inbox_rows import inbox_rows_of
from bindings.kafka.ranges import RangeUnreadable
from bindings.kafka.tails import shared, tail_of
from router.commands.plan.chunks import Place, inbox_chunk, kafka_chunk
from router.errors import BrokerUnreachable, ConfigError
from router.judging.chunk import Chunk
from router.judging.judging import INBOX_COLUMNS
from router.judging.plan import Plan
from router.letters.latest import latest_letters
from router.replay.rows import rows_of
from router.settings import Settings
from router.sources.clusters import inbox_client, source_client
from router.sources.sources import Source
from router.state.ledger import LetterLedger
from router.terminal import counted

MOST_LETTERS: Final = 10_000
"""Dead letters that are read at most: all of them are in memory at a time."""
_HINT: Final = (
    "start the broker, or correct bootstrap_servers and credentials; `--from inbox` or `--records FILE` does without it"
)
_INBOX: Final = "inbox"


@dataclass(slots=True)
class LastRecords:
    """Which records are meant: the last ``most`` of each place, or with ``since`` those from then on, no more."""

    most: int
    since: datetime | None = None
    _seen: set[str] = field(default_factory=set)

    def topics(self, plan: Plan) -> Iterator[Place]:
        """Yield the topics that a plan reads."""
        known: set[tuple[str, str]] = set()
        for source in plan.sources:
            if not source.pushed and (source.servers, source.topic) not in known:
                known.add((source.servers, source.topic))
                yield Place(f"topic {source.topic}", partial(self._topic, source))

    def inbox(self, settings: Settings) -> Iterator[Place]:
        """Yield the inbox, if there is one."""
        folder = Path(settings.state) / _INBOX
        if settings.inbox.kafka is not None or folder.is_dir():
            yield Place(_INBOX, partial(self._inbox, settings, folder))

    def letters(self, settings: Settings) -> Iterator[Place]:
        """Yield the dead letters; to be read after topics and inbox, of which they leave out what was read there."""
        yield Place("dead letters", partial(self._letters, settings))

    def _topic(self, source: Source, place: Place) -> Iterator[Chunk]:
        chunks = map(kafka_chunk, self._records(source_client(source), source.topic, place))
        return self._answered(f"source {source.endpoint}", chunks)

    def _answered(self, name: str, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Yield what brokers give, or say that they do not."""
        try:
            for chunk in chunks:
                self._seen.update(chunk.positions())
                yield chunk
        except (KafkaUnreachable, RangeUnreadable) as error:
            raise BrokerUnreachable(f"{name}: {error}", hint=_HINT) from error

    def _records(self, client: KafkaClient, topic: str, place: Place) -> Iterator[pa.RecordBatch]:
        since = None if self.since is None else int(self.since.timestamp() * 1000)
        tail = tail_of(client, topic, self.most, since)
        if tail is None:
            place.notes.append("the brokers have no such topic")
            return
        yield from tail.read()
        if self.since is None and tail.whole:
            self._note(place, tail.records)
        elif self.since is not None and not tail.whole:
            self._note(place, self.most + 1)

    def _inbox(self, settings: Settings, folder: Path, place: Place) -> Iterator[Chunk]:
        topic = settings.inbox.kafka
        if topic is not None:
            batches = self._records(inbox_client(topic), topic.topic, place)
            yield from self._answered("inbox", (inbox_chunk(inbox_rows_of(batch)) for batch in batches))
            return
        try:
            view = InboxView(folder)
            spans = {number: (view.first(number), view.end(number)) for number in view.partitions}
            rows = {number: view.count(number, *span) for number, span in spans.items()}
            self._note(place, sum(rows.values()))
            for number, share in shared(rows, self.most).items():
                first, end = spans[number]
                start = view.advance(number, first, rows[number] - share, end)
                for batch in view.read(number, view.spans(number, start, end)):
                    chunk = inbox_chunk(self._from_then_on(batch))
                    self._seen.update(chunk.positions())
                    yield chunk
        except (InboxDamaged, InboxFormatError) as error:
            # A running router removes what is routed, perhaps while it is read here.
            place.notes.append(f"the rest was not read: {error}")

    def _from_then_on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.since is None:
            return batch
        moment = pa.scalar(self.since, pa.timestamp("us", tz="UTC"))
        return batch.filter(pc.greater_equal(batch.column("received"), moment))

    def _letters(self, settings: Settings, place: Place) -> Iterator[Chunk]:
        try:
            letters = latest_letters(settings, min(self.most, MOST_LETTERS))
        except ConfigError as error:
            place.notes.append(error.message)
            return
        if len(letters) < self.most:
            place.notes.append(
                f"{counted(len(letters), 'letter')} found among the newest" if letters else "there are none"
            )
        with LetterLedger.open(Path(settings.state), create=False) as ledger:
            standing = ledger.standing(each.id for each in letters)
        mine = [
            each
            for each in letters
            if standing[each.id] != "replayed"
            and (self.since is None or (each.failed is not None and each.failed >= self.since))
            and each.position.partition("#")[0] not in self._seen
        ]
        if len(mine) < len(letters):
            left = counted(len(letters) - len(mine), "letter")
            place.notes.append(f"{left} left out: replayed, older than --since, or read at their source")
        for batch in rows_of(mine).select(list(INBOX_COLUMNS)).to_batches():
            yield Chunk("letters", batch)

    def _note(self, place: Place, there: int) -> None:
        """Note how many records there are, where that is not the number asked for."""
        if self.since is None and there < self.most:
            place.notes.append(f"it has no more than {there}" if there else "it is empty")
        elif self.since is not None and there > self.most:
            place.notes.append(f"only the last {self.most} were read")
