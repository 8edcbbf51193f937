"""Messages at which a broker ends the connection, and when that is the message's own fault.

An ended connection says nothing by itself: a broker that restarts ends connections as well. So the messages that were
under way are sent again, fewer at a time, until one is alone on a connection that the broker has accepted. When that
one ends it again and again, the messages behind it in its lane wait, and the others pass. It is given up when the
broker took others, or says that the message is at fault, and still ends the connection at this one; where nothing else
shows that the broker works, it takes many calls.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

ALONE: Final = 3
"""Times that a message by itself ends the connection before it is a suspect."""
LONELY: Final = 10
"""Calls in which a message was a suspect before it is given up with no other message to compare with."""
IN_A_ROW: Final = 8
"""Suspects, one after the other, after which the broker counts as down."""
PAUSE: Final = 0.1
"""Seconds between the tries of a message by itself, longer each time."""
_REMEMBERED: Final = 1000

R = TypeVar("R")


class Ended(Exception):
    """The broker ended a connection that it had accepted, with messages under way; the text has no secrets.

    *sure* when the broker says itself that what it was sent is at fault.
    """

    def __init__(self, text: str, *, sure: bool = False) -> None:
        super().__init__(text)
        self.sure = sure


@dataclass(frozen=True, slots=True)
class Item:
    """One message: ``lane`` names what it keeps its order with, ``key`` is the same in each of its calls."""

    lane: str
    key: int


class Calls:
    """How often messages were suspects; thread-safe and bounded."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._lock = threading.Lock()

    def count(self, key: int) -> int:
        """Count one more call, and return how many there were."""
        with self._lock:
            if len(self._calls) >= _REMEMBERED:
                self._calls.clear()
            calls = self._calls[key] = self._calls.get(key, 0) + 1
        return calls

    def forget(self, key: int) -> None:
        """Forget a message that is settled."""
        with self._lock:
            self._calls.pop(key, None)


class Suspects(Generic[R]):
    """Sends messages past those at which the broker ends the connection. *refusal* makes an outcome of a reason."""

    def __init__(self, refusal: Callable[[str], R], *, pause: float = PAUSE) -> None:
        self._refusal = refusal
        self._pause = pause
        self._calls = Calls()

    def send(
        self, items: Sequence[Item], exchange: Callable[[Sequence[int]], None], settled: dict[int, R | None]
    ) -> None:
        """Settle every item: *settled* has the outcomes by place, None for a message that the broker took.

        *exchange* sends the messages at these places in order, on a new connection if the last one ended, and writes
        what the broker said of each. The order of a lane is kept.

        Raises:
            Ended: by *exchange*, when it may be the broker's fault and not a message's. Some items may be settled.
        """
        run = _Run(items, exchange, settled, self._pause)
        held = run.pass_through({})
        while held:
            for lane, (place, ended) in list(held.items()):
                key = items[place].key
                works = ended.sure or any(outcome is None for outcome in settled.values())
                if not works and self._calls.count(key) < LONELY:
                    raise ended
                try:
                    exchange((place,))
                except Ended as error:
                    if place not in settled:
                        settled[place] = self._refusal(f"the broker ends the connection at this message: {error}")
                self._calls.forget(key)
                del held[lane]
            held = run.pass_through(held)


class _Run(Generic[R]):
    """One call of :meth:`Suspects.send`."""

    def __init__(
        self,
        items: Sequence[Item],
        exchange: Callable[[Sequence[int]], None],
        settled: dict[int, R | None],
        pause: float,
    ) -> None:
        self._pause = pause
        self._items = items
        self._exchange = exchange
        self._settled = settled

    def pass_through(self, held: dict[str, tuple[int, Ended]]) -> dict[str, tuple[int, Ended]]:
        """Send all that is not behind a suspect; return suspects by lane, with what is known against each."""
        held = dict(held)
        size, tries, in_a_row = len(self._items), 0, 0
        while part := self._open(held)[:size]:
            before = len(self._settled)
            try:
                self._exchange(part)
            except Ended as error:
                if len(self._settled) > before:
                    tries = in_a_row = 0
                if len(part) > 1 or part[0] in self._settled:
                    size = 1
                    continue
                tries += 1
                if tries < ALONE:
                    # Jitter is for other clients' sake and changes nothing that is sent.
                    time.sleep(self._pause * tries * random.uniform(0.5, 1.0))
                    continue
                held[self._items[part[0]].lane] = (part[0], error)
                tries, in_a_row = 0, in_a_row + 1
                if in_a_row >= IN_A_ROW:
                    raise
            else:
                tries = in_a_row = 0
                size *= 2
        return held

    def _open(self, held: dict[str, tuple[int, Ended]]) -> list[int]:
        return [place for place, item in enumerate(self._items) if place not in self._settled and item.lane not in held]
