"""Positions: from where each topic of a Kafka cluster is read, in a ledger that outlives topics and generations.

A topic gets its position when it is first to be read, before anything announces that; from then on the position only
moves forward. "Latest" is a number from that moment on: whoever asked for it again, after a restart or another
change of topics, would skip what came meanwhile. Every partition that the ledger does not name for a topic that it has
begins at its first record: the topic or the partition was not there when the topic was first to be read, or the
whole topic was wanted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from bindings.kafka.client import KafkaClient, KafkaUnreachable
from bindings.kafka.ends import KafkaEnds
from router.errors import BrokerUnreachable
from router.logs import get_logger
from router.sources.clusters import source_client
from router.sources.sources import Source, Start
from router.state.durable import damaged, missing, read_object, write_durably
from router.state.state import State

EARLIEST: Final = -2
Offsets: TypeAlias = dict[str, dict[str, int]]
"""By topic and partition, as Spark writes them; :data:`EARLIEST` is the first record there is."""
_WITHOUT: Final = (
    'restore it from a backup of the state folder, or set "offsets" to false in format.json: topics that no query '
    "reads then begin at `start` when they are added again"
)
_log = get_logger()


class Positions:
    """The ledger of a state folder. Not for concurrent use."""

    def __init__(self, state: State) -> None:
        self._path = state.root / "ledger" / "offsets.json"
        self._inventory = state.inventory

    def of(self, cluster: str) -> Offsets:
        """Return the positions of a cluster's topics.

        Raises:
            StateError: the ledger is damaged.
        """
        return dict(self._read().get(cluster, {}))

    def keep(self, cluster: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Note positions, durably; topics and partitions that are not named keep what they have."""
        ledger = self._read()
        for topic, partitions in offsets.items():
            ledger.setdefault(cluster, {}).setdefault(topic, {}).update(partitions)
        write_durably(self._path, json.dumps(ledger, sort_keys=True).encode())
        self._inventory.note_offsets()

    def advance(self, cluster: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
        """Note positions where they are further on than what the ledger has; they may be old."""
        known = self.of(cluster)
        further = {
            topic: {number: max(at, known.get(topic, {}).get(number, at)) for number, at in partitions.items()}
            for topic, partitions in offsets.items()
        }
        if further:
            self.keep(cluster, further)

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
        ends = _ends_of(source_client(sources[0]), latest) if latest else {}
        placed = {topic: {str(number): end for number, end in ends.get(topic, {}).items()} for topic in starts}
        self.keep(cluster, placed)
        for topic in latest:
            _log.info("topic is read from its end on", topic=topic, offsets=placed[topic])

    def check(self) -> None:
        """Make sure that the ledger can be read.

        Raises:
            StateError: it is damaged, or gone.
        """
        self._read()

    def _read(self) -> dict[str, Offsets]:
        form = read_object(self._path)
        if form is None:
            if self._inventory.holdings().offsets:
                raise missing(self._path, "positions of topics were kept in it", hint=_WITHOUT)
            return {}
        try:
            return {
                str(cluster): {
                    str(topic): {str(int(number)): _offset(at) for number, at in partitions.items()}
                    for topic, partitions in topics.items()
                }
                for cluster, topics in form.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise damaged(self._path, f"it has something else than positions ({error})") from error


def _ends_of(client: KafkaClient, topics: Iterable[str]) -> dict[str, dict[int, int]]:
    try:
        return KafkaEnds(client).ends(topics)
    except KafkaUnreachable as error:
        raise BrokerUnreachable(str(error)) from error


def _offset(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no offset")
    return value


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
