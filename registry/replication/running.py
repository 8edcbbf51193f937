"""Replication beside a server: a thread for each peer begins a round at intervals, and pauses longer after faults.

One process of those that share a database is enough; several do no harm, since each round takes up where any has got.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from bindings.backoff import Backoff
from catalog.errors import DocumentError
from registry.core.service import RegistryService
from registry.replication.peers import Exchange, Peer

_logger = logging.getLogger(__name__)
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 300.0


class Replication:
    """Keeps up with peers until it is stopped."""

    def __init__(self, service: RegistryService, peers: Sequence[Peer]) -> None:
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
            each.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, peer: Peer) -> None:
        backoff = Backoff(min(_FIRST_PAUSE, peer.interval), max(_LONGEST_PAUSE, peer.interval))
        failing = False
        while not self._stopping.is_set():
            try:
                for direction in peer.directions:
                    self._round(peer, direction)
            except DocumentError as error:
                pause = backoff.pause()
                # The first of several faults is news; the rest is for who looks closer.
                level = logging.DEBUG if failing else logging.WARNING
                _logger.log(level, "replication stands still: %s; next try in %.1f s", error, pause)
                failing = True
            except Exception:  # nobody waits for this thread, so its end would go unnoticed
                pause = backoff.pause()
                _logger.exception("replication with %s failed; next try in %.1f s", peer.url, pause)
                failing = True
            else:
                if failing:
                    _logger.warning("replication with %s goes on", peer.url)
                failing, pause = False, peer.interval
                backoff.reset()
            self._stopping.wait(pause)

    def _round(self, peer: Peer, direction: str) -> None:
        done = self._exchange.run(peer, "pull" if direction == "pull" else "push", self._stopping)
        if done.sent:
            told = (direction, peer.url, done.sent, done.applied, len(done.refused))
            _logger.info("replication: %s %s, changes %d, new %d, refused %d", *told)
