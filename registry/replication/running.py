"""Replication beside a server: a thread for each peer begins a round at intervals, and pauses longer after faults.

One process of those that share a database is enough; several do no harm, since each round takes up where any has got.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bindings.backoff import Backoff
from catalog.errors import DocumentError
from registry.core.service import RegistryService
from registry.replication.peers import Exchange, Peer, Round

_logger = logging.getLogger(__name__)
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 300.0


@dataclass(slots=True)
class PeerTally:
    """The counts of one direction with one peer, since the start.

    ``alike`` is when the last completed round began, which took or gave all that there was then; before the first it is
    the start. ``success`` is when that round ended, 0 without one. Both are in seconds since 1970.
    """

    alike: float
    success: float = 0.0
    changes: int = 0
    applied: int = 0
    refused: int = 0
    failures: int = 0


class Replication:
    """Keeps up with peers until it is stopped. ``tallies`` are by URL and direction; any thread may read them."""

    def __init__(self, service: RegistryService, peers: Sequence[Peer]) -> None:
        self.tallies: Final = {
            (peer.url, direction): PeerTally(time.time()) for peer in peers for direction in peer.directions
        }
        self._exchange = Exchange(service)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(each,), name=f"replication-{number}", daemon=True)
            for number, each in enumerate(peers)
        ]

    def start(self) -> None:
        """Begin."""
        for each in self._threads:
            each.start()

    def end(self) -> None:
        """Have all rounds end after the pages that are under way."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """Wait for the rounds to have ended; all together have so many seconds."""
        deadline = time.monotonic() + seconds
        for each in self._threads:
            if each.is_alive():
                each.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, peer: Peer) -> None:
        backoff = Backoff(min(_FIRST_PAUSE, peer.interval), max(_LONGEST_PAUSE, peer.interval))
        failing = False
        tally = self.tallies[peer.url, peer.directions[0]]
        while not self._stopping.is_set():
            try:
                for direction in peer.directions:
                    tally = self.tallies[peer.url, direction]
                    self._round(peer, direction, tally)
            except DocumentError as error:
                tally.failures += 1
                pause = backoff.pause()
                # The first of several faults is a warning; the others are for debugging.
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "replication stands still: %s; next try in %.1f s", error, pause)
                failing = True
            except Exception:  # nobody waits for this thread, so its end would go unnoticed
                tally.failures += 1
                pause = backoff.pause()
                _logger.exception("replication with %s failed; next try in %.1f s", peer.url, pause)
                failing = True
            else:
                if failing:
                    _logger.warning("replication with %s goes on", peer.url)
                failing, pause = False, peer.interval
                backoff.reset()
            self._stopping.wait(pause)

    def _round(self, peer: Peer, direction: Literal["pull", "push"], tally: PeerTally) -> None:
        begun, done = time.time(), Round()
        try:
            self._exchange.run(peer, direction, self._stopping, done)
        finally:
            tally.changes += done.sent
            tally.applied += done.applied
            tally.refused += done.refused
        if not self._stopping.is_set():
            tally.alike, tally.success = begun, time.time()
        if done.sent:
            figures = (direction, peer.url, done.sent, done.applied, done.refused)
            _logger.info("replication: %s %s, changes %d, new %d, refused %d", *figures)
