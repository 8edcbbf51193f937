"""Which generation a query reads next: the one whose batch is unfinished, else one for the topics as they are now.

All that decides it is on the disk: generations, pins, and the positions of topics. Queries of one cluster (its lanes)
share positions: a topic that moves from one to another is read on where it was left.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from router.errors import ConfigError
from router.logs import few
from router.reading import generations
from router.reading.generations import Generation
from router.reading.planned import Spans
from router.reading.positions import EARLIEST, Offsets, Positions, cluster_of
from router.sources.sources import INBOX, REST, Source, Start, by_query
from router.state.state import State


class Succession:
    """The generations of all queries of a state folder. Not for concurrent use."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._positions = Positions(state)

    def place(self, sources: Sequence[Source], default: Start) -> None:
        """Note durably where each topic begins that is new, before anything announces it.

        *default* is where a topic begins whose source does not say.

        Raises:
            BrokerUnreachable: the brokers of a topic that is read from its end do not answer.
        """
        for query, members in by_query(sources).items():
            if query != INBOX:
                others = self._generations(cluster_of(query))
                self._positions.place(members, {topic for each in others for topic in each.topics}, default)

    def unfinished(self, query: str) -> Generation | None:
        """Return a query's generation if a batch of it may have been written in part; it goes before all else.

        One that was planned and never pinned has not been written: its records are judged anew.
        """
        known = generations.current(self._state, query)
        if known is None or known.pending is None:
            return None
        return known if self._state.pinned(query, known.pending) is not None else None

    def left(self, wanted: Collection[str]) -> list[str]:
        """Return queries that are not wanted any more, and have something to finish.

        The inbox always has: what it took was acknowledged, whoever still sends there.
        """
        names = sorted(path.name for path in self._state.checkpoints.glob("*"))
        return [name for name in names if name not in wanted and (name == INBOX or self.unfinished(name))]

    def inbox(self) -> Generation:
        """Return the generation that the inbox is read by, which is always the same."""
        return generations.current(self._state, INBOX) or generations.begin(self._state, INBOX, ())

    def rest(self, topic: str) -> Generation:
        """Return the generation that the rest topic is read by, which is always the same.

        Raises:
            ConfigError: it was begun for another topic, which may have records that are not routed.
        """
        known = generations.current(self._state, REST)
        if known is not None and known.topics != (topic,):
            before = ", ".join(known.topics)
            raise ConfigError(
                f"the rest topic was {before} before, which may hold records that are not routed",
                key="realtime.rest",
                hint=f"name {before} again; once it is read, remove {self._state.checkpoints / REST} and {REST!r} from "
                f'"generations" in {self._state.inventory.path}',
            )
        return known or generations.begin(self._state, REST, (topic,))

    def next(self, query: str, sources: Sequence[Source], default: Start) -> Generation:
        """Return the generation for these sources, a new one if their topics changed; no batch may be unfinished.

        No other query may be reading any of the topics.

        Raises:
            BrokerUnreachable: as :meth:`place`.
        """
        topics, cluster = topics_of(sources), cluster_of(query)
        known = generations.current(self._state, query)
        if known is not None and set(known.topics) == set(topics):
            return known
        for each in self._generations(cluster):
            if each.path.parent.name != query:
                self._positions.advance(cluster, _only(each.positions(), topics))
        if known is not None:
            self._positions.keep(cluster, known.positions())
        self._positions.place(sources, (), default)
        kept = self._positions.of(cluster)
        return generations.begin(self._state, query, topics, json.dumps(_only(kept, topics), sort_keys=True))

    def renew(self, query: str, again: Spans) -> Generation:
        """Begin a new generation of the same topics, which reads some partitions from the first record they have.

        *again* are those partitions; all others are read on where they were left. The batch that the old generation
        may have planned is dropped.
        """
        known = generations.current(self._state, query)
        assert known is not None
        positions = known.positions()
        for topic, partitions in again.items():
            positions[topic] = {**positions.get(topic, {}), **{str(number): EARLIEST for number in partitions}}
        if query not in (INBOX, REST):
            self._positions.keep(cluster_of(query), positions)
        return generations.begin(self._state, query, known.topics, json.dumps(positions, sort_keys=True))

    def _generations(self, cluster: str) -> list[Generation]:
        names = sorted(path.name for path in self._state.checkpoints.glob(f"kafka-{cluster}*"))
        current = (generations.current(self._state, name) for name in names)
        return [generation for generation in current if generation is not None]


def reads(sources: Sequence[Source], query: str) -> dict[str, str]:
    """Return what a query reads, for people: endpoints, and topics where these have some; a few of them."""
    members = [source for source in sources if source.query == query]
    names = {"endpoints": [source.endpoint for source in members], "topics": list(topics_of(members))}
    return {name: few(values) for name, values in names.items() if any(values)}


def topics_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the topics of Kafka sources, each once."""
    return tuple(dict.fromkeys(source.topic for source in sources))


def _only(offsets: Offsets, topics: Collection[str]) -> Offsets:
    return {topic: partitions for topic, partitions in offsets.items() if topic in topics}
