"""The messages of one gateway on their way to the store, on the event loop that they arrived on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bindings.backoff import Backoff
from bindings.gateways import RowStore
from bindings.handover import Handover
from bindings.parts import InboxRow

_LOWEST_SECONDS: Final = 0.1
_HIGHEST_SECONDS: Final = 2.0

_logger = logging.getLogger(__name__)


class Owner(Protocol):
    """The owner of messages, which gets their outcomes; called on the event loop."""

    def stored(self, items: Sequence[Item]) -> None:
        """These survive a crash from now on."""

    def refused(self, items: Sequence[Item]) -> None:
        """These can never be stored."""


@dataclass(slots=True, eq=False)
class Item:
    """One message between arrival and disk; ``reply`` is the subject to acknowledge it at, ``since`` when it arrived,
    or was last reported as in progress.
    """

    row: InboxRow
    owner: Owner
    reply: bytes = b""
    since: float = 0.0


class Storing:
    """Hands messages to the store, and outcomes to their owners; used on one event loop only."""

    def __init__(self, store: RowStore, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handover = Handover(store, self, self._wake, Backoff(_LOWEST_SECONDS, _HIGHEST_SECONDS))
        self._due: asyncio.Handle | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def trouble(self) -> str:
        """Why the store takes nothing at present; empty when it does."""
        return self._handover.trouble

    def add(self, item: Item) -> None:
        """Store a message soon, together with others that are there by then; its owner gets the outcome."""
        self._handover.add(item)
        if self._idle.is_set():
            self._idle.clear()
            self._due = self._loop.call_soon(self._advance)

    async def settled(self) -> None:
        """Wait until nothing is on its way to the disk."""
        await self._idle.wait()

    def stored(self, messages: Sequence[Item]) -> None:
        shares: dict[int, list[Item]] = {}
        for item in messages:
            shares.setdefault(id(item.owner), []).append(item)
        for share in shares.values():
            share[0].owner.stored(share)

    def refused(self, message: Item) -> None:
        message.owner.refused([message])

    def held_back(self, messages: Sequence[Item]) -> Sequence[Item]:
        return messages

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._advance)
        except RuntimeError:
            _logger.debug("%s messages were settled after the gateway had ended", self._handover.held)

    def _advance(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._handover.advance()
        if not self._handover.held:
            self._idle.set()
        else:
            self._due = self._loop.call_later(self._handover.patience(_HIGHEST_SECONDS), self._advance)
