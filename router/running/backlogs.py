"""Asks the sources what waits, at a steady interval, whatever the queries do: one thread for each query's sources.

A query that is held, fails or was never started cannot say how far it is behind. So nothing here asks the query: its
checkpoint says where it reads on, and its sources say where they end. A broker that does not answer holds up only its
own thread, and its figures are absent meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

from bindings.background import Background
from bindings.inbox.format import NAME as LAYOUT
from bindings.inbox.space import InboxDamaged, InboxError
from bindings.kafka.client import KafkaClient, KafkaUnreachable
from router.errors import RouterError
from router.judging.plan import Plan
from router.logs import get_logger
from router.reading import generations
from router.reading.backlogs import InboxBacklog, TopicBacklogs
from router.reading.generations import Offsets, Positions, cluster_of, reads, topics_of
from router.sources import INBOX, REST, Source, inbox_client, rest_client, source_client
from router.state.state import StateFolder
from router.watching.backlogs import Backlog, Backlogs
from router.watching.status import RouterStatus

TOPICS_SECONDS: Final = 5.0
"""Time between two questions to brokers."""
INBOX_SECONDS: Final = 0.5
"""Time between two looks at a local inbox, which costs next to nothing."""
_STOP_SECONDS: Final = 1.0
_log = get_logger()


class BacklogWatch:
    """Asks for what waits from when it is entered until it is left. *active* gives the plan that is in force.

    *status* is told which sources do not answer.
    """

    def __init__(
        self,
        state: StateFolder,
        active: Callable[[], Plan],
        backlogs: Backlogs,
        status: RouterStatus,
        *,
        topics_seconds: float = TOPICS_SECONDS,
        inbox_seconds: float = INBOX_SECONDS,
    ) -> None:
        self._state = state
        self._active = active
        self._backlogs = backlogs
        self._status = status
        self._pauses = (topics_seconds, inbox_seconds)
        self._ending = threading.Event()
        self._threads: dict[str, Background] = {}

    def __enter__(self) -> Self:
        self.follow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for thread in self._threads.values():
            thread.ask_to_end()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads.values():
            # A thread that waits for a broker ends with the process; nothing depends on it.
            thread.join(max(0.0, deadline - time.monotonic()))

    def follow(self) -> None:
        """Ask for what the plan in force reads, from now on; called again whenever it may be another one."""
        for query in _queries_of(self._active(), self._state):
            known = self._threads.get(query)
            if known is None or not known.alive:
                # Until it answers, nobody knows how far it is read.
                self._backlogs.answered(query, {})
                asking = _Asking(
                    query, self._state, self._active, self._backlogs, self._status, self._ending, self._pauses
                )
                self._threads[query] = Background("backlogs", asking.run, name=f"backlogs-{query}")
                self._threads[query].start()


class _Asking:
    """What one thread asks; it ends when its query has nothing to read any more."""

    def __init__(
        self,
        query: str,
        state: StateFolder,
        active: Callable[[], Plan],
        backlogs: Backlogs,
        status: RouterStatus,
        ending: threading.Event,
        pauses: tuple[float, float],
    ) -> None:
        self._query = query
        self._state = state
        self._active = active
        self._backlogs = backlogs
        self._status = status
        self._ending = ending
        self._topics_seconds, self._inbox_seconds = pauses
        self._client: KafkaClient | None = None
        self._trouble = ""
        self._uncommitted: dict[str, str] = {}
        self._inbox = InboxBacklog(state.inbox)

    def run(self) -> None:
        """Ask until the query has nothing to read any more, or everything stops."""
        while not self._ending.is_set() and self._wanted is not None:
            self._client = self._client_of(self._active())
            with self._connected() as topics:
                self._ask(topics)
        self._backlogs.forget(self._query)
        self._status.source(self._query, "")

    @property
    def _wanted(self) -> Sequence[Source] | None:
        return _queries_of(self._active(), self._state).get(self._query)

    def _connected(self) -> AbstractContextManager[TopicBacklogs | None]:
        return nullcontext() if self._client is None else TopicBacklogs(self._client)

    def _ask(self, topics: TopicBacklogs | None) -> None:
        """Ask over these connections as long as they match the plan in force."""
        read = self._inbox.read_until if topics is None else topics.read_until
        while (sources := self._wanted) is not None and self._client_of(self._active()) == self._client:
            wanted = self._topics(sources)
            try:
                backlogs = {INBOX: self._local()} if topics is None else topics.look(wanted, self._positions())
            except (KafkaUnreachable, InboxError, RouterError, OSError, ValueError) as error:
                self._say(sources, str(error))
                backlogs = dict.fromkeys(wanted if topics is not None else (INBOX,))
            else:
                self._say(sources, "")
            self._backlogs.answered(self._query, self._by_endpoint(backlogs, sources), read.seconds)
            ending = self._ending.wait(self._inbox_seconds if topics is None else self._topics_seconds)
            if topics is not None and not self._trouble:
                self._commit(topics, sources)
            if ending:
                return

    def _commit(self, topics: TopicBacklogs, sources: Sequence[Source]) -> None:
        """Commit how far sources are read to the groups that they name. It is for people to look at: nothing waits for
        it, and one that fails is tried again at the next look.
        """
        groups: dict[str, set[str]] = {}
        for source in sources:
            if source.settings.commit_offsets_to:
                groups.setdefault(source.settings.commit_offsets_to, set()).add(source.topic)
        for group, named in groups.items():
            try:
                topics.commit(group, named, self._positions())
                problem = ""
            except (KafkaUnreachable, RouterError, OSError, ValueError) as error:
                problem = str(error)
            before, self._uncommitted[group] = self._uncommitted.get(group, ""), problem
            if problem and not before:
                hint = "records are read all the same; let the router commit to this group, which nobody else may use"
                _log.warning("offsets are not committed", group=group, topics=sorted(named), problem=problem, hint=hint)
            elif before and not problem:
                _log.info("offsets are committed again", group=group, topics=sorted(named))

    def _say(self, sources: Sequence[Source], trouble: str) -> None:
        """Say once that a source does not answer, and once that it does again."""
        before, self._trouble = self._trouble, trouble
        self._status.source(self._query, trouble)
        if bool(trouble) == bool(before):
            return
        inputs = reads(sources, self._query) or {"source": self._query}
        if trouble:
            _log.warning("backlog of a source is not known", **inputs, problem=trouble)
        else:
            _log.info("connected again", **inputs)

    def _client_of(self, plan: Plan) -> KafkaClient | None:
        if self._query == INBOX:
            return None if plan.settings.inbox.kafka is None else inbox_client(plan.settings.inbox.kafka)
        if self._query == REST:
            return rest_client(plan.settings)
        sources = plan.queries.get(self._query)
        return source_client(sources[0]) if sources else self._client

    def _topics(self, sources: Sequence[Source]) -> tuple[str, ...]:
        settings = self._active().settings
        if self._query == INBOX:
            return () if settings.inbox.kafka is None else (settings.inbox.kafka.topic,)
        if self._query == REST:
            return () if settings.realtime is None else (settings.realtime.rest,)
        return topics_of(sources)

    def _positions(self) -> Offsets:
        """Return where each topic is to be read on, as the disk has it."""
        generation = generations.current(self._state, self._query)
        known = {} if generation is None else generation.positions()
        if self._query in (INBOX, REST):
            return known
        return {**Positions(self._state).of(cluster_of(self._query)), **known}

    def _local(self) -> Backlog:
        reached = self._reached()
        try:
            return self._inbox.look(reached)
        except InboxDamaged:
            # It was trimmed, if a batch of it was committed meanwhile.
            if (now := self._reached()) == reached:
                raise
            return self._inbox.look(now)

    def _reached(self) -> Mapping[str, Any] | None:
        generation = generations.current(self._state, INBOX)
        return None if generation is None else generation.reached()

    def _by_endpoint(
        self, backlogs: Mapping[str, Backlog | None], sources: Sequence[Source]
    ) -> dict[str, Backlog | None]:
        if self._query in (INBOX, REST):
            found = {self._query: next(iter(backlogs.values()), None)}
            if self._query == INBOX and self._client is None:
                known = None if found[INBOX] is None else self._inbox.endpoints
                names = dict.fromkeys((*(source.endpoint for source in sources), *(known or ())))
                found |= {name: None if known is None else known.get(name, Backlog(0)) for name in names if name}
            return found
        return {source.endpoint: backlogs.get(source.topic) for source in sources}


def _queries_of(plan: Plan, state: StateFolder) -> dict[str, tuple[Source, ...]]:
    """Return the sources of each query of a plan. The query of an inbox with rows left is there without sources too."""
    queries = dict(plan.queries)
    if (state.inbox / LAYOUT).exists():
        queries.setdefault(INBOX, ())
    return queries if plan.settings.realtime is None else {**queries, REST: ()}
