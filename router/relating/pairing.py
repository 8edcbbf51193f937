"""Pairing in a running router: batches hand records over, a thread delivers pairs and gives up what is due."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bindings.background import Background
from bindings.backoff import Backoff
from router.errors import SinkError
from router.judging.relating import EXCHANGE, read_exchange
from router.logs import get_logger
from router.relating.exchanges import Exchanges, Half, Taken
from router.settings import Settings
from router.sinks.contract import Commit
from router.sinks.pairs import PairSink, open_pairs
from router.watching.relations import RelationMetrics

FOLDER: Final = "relations"
NAME: Final = "relations"
LOOK_SECONDS: Final = 1.0
"""Time between two looks at what is due while no batch comes."""
TURN_SECONDS: Final = 0.01
"""Time between two of them while there is more to do: the turn of a batch that waits for the file."""
RETRY: Final = (0.5, 30.0)
"""Seconds until the sink is tried again, at first and at most."""
_STOP_SECONDS: Final = 10.0
_log = get_logger()


class Pairing:
    """Pairs the messages of a router's batches, and delivers the pairs from when it is entered until it is left.

    What is undelivered then, or after a crash, is delivered after the next start.
    """

    def __init__(self, settings: Settings, metrics: RelationMetrics, read_until: Callable[[], float]) -> None:
        """Open the file of what is open. *read_until* gives the time up to which all that arrived has been read.

        Raises:
            StateError, DiskError: it cannot be used.
        """
        assert settings.relations is not None
        self._to = settings.relations.to
        self._most = settings.relations.most
        self._metrics = metrics
        self._sink: PairSink = open_pairs(self._to, settings.sinks[self._to])
        path = Path(settings.state) / FOLDER / "exchanges.db"
        wait = settings.relations.wait.total_seconds()
        self._exchanges = Exchanges(path, wait=wait, most=settings.relations.most, read_until=read_until)
        self._backoff = Backoff(*RETRY)
        self._news, self._stop = threading.Event(), threading.Event()
        self._thread = Background("relations", self._run)

    def __enter__(self) -> Self:
        self._measure()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._news.set()
        self._thread.ask_to_end()
        if self._thread.join(_STOP_SECONDS):
            self._exchanges.close()

    def require_room(self) -> None:
        """Let a batch wait while the sink is too far behind.

        Raises:
            SinkError: it is.
        """
        waiting = self._exchanges.undelivered
        if waiting >= self._most:
            hint = "repair the sink: the log says why it takes no pairs; or raise relations.most and restart"
            problem = f"{waiting} pairs wait for it, which is relations.most"
            raise SinkError(self._to, problem, hint=hint)

    def take(self, rows: Iterable[Mapping[str, Any]], commit: Commit, query: str, epoch: str) -> None:
        """Pair the records of a batch: durable when this returns, and done once however often the *commit* comes.

        *rows* have position, time of arrival (``received``), message, relation and exchange.

        Raises:
            StateError, DiskError: the file cannot be written.
        """
        left = iter(rows)
        row = next(left, None)
        if row is not None:  # A batch without any record to pair need not be noted.
            self._count(self._exchanges.take(commit, query, _records(chain((row,), left), epoch)))
            self._news.set()

    def _run(self) -> None:
        """Deliver and give up, until the router ends: then once more, as far as the sink takes it now.

        Neither waits for the other to have nothing left to do, nor for the pauses between tries of the sink.
        """
        again = 0.0
        while not self._stop.is_set():
            self._news.clear()
            self._count(self._exchanges.expire())
            due = time.monotonic() >= again
            if due and not self._deliver():
                due, again = False, time.monotonic() + self._backoff.pause()
            more = self._exchanges.overdue() or (due and self._exchanges.undelivered)
            self._news.wait(TURN_SECONDS if more else LOOK_SECONDS)
        while self._exchanges.undelivered and self._deliver():
            pass

    def _deliver(self) -> bool:
        """Hand the next delivery to the sink, if there is one; False when it does not take it now."""
        delivery = self._exchanges.delivery()
        if delivery is None:
            return True
        try:
            self._sink.write(delivery.rows, delivery.commit)
        except SinkError as error:
            _log.error("pairs wait for their sink", sink=self._to, waiting=len(delivery.rows), problem=str(error))
            self._metrics.write("error")
            return False
        self._exchanges.delivered(delivery)
        self._metrics.write("ok")
        self._backoff.reset()
        self._measure()
        return True

    def _count(self, settled: Counter[str]) -> None:
        self._metrics.settled(settled)
        self._measure()

    def _measure(self) -> None:
        self._metrics.waiting(self._exchanges.open, self._exchanges.undelivered)


def _records(rows: Iterable[Mapping[str, Any]], epoch: str) -> Iterator[Taken]:
    for row in rows:
        exchange = read_exchange(row[EXCHANGE])
        yield Taken(_half(row, exchange.id, exchange.correlation, epoch), exchange)


def _half(row: Mapping[str, Any], id: str, correlation: str, epoch: str) -> Half:
    received = row["received"]
    arrived = "" if received is None else received.isoformat(timespec="microseconds")
    return Half(row["message"], id, row["position"], arrived, epoch, row["relation"] or "", correlation)
