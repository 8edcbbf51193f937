"""The events of one subscriber that are in memory: those of one entity wait for one another, and for nobody else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bindings.backoff import Backoff
from registry.delivery.events import Event
from registry.store.subscribers import Progress

_FIRST_PAUSE = 0.25


@dataclass(slots=True)
class _Lane:
    """The events of one entity in order; the first is not tried before ``due``. ``held`` says that it failed."""

    backoff: Backoff
    events: deque[Event] = field(default_factory=deque)
    due: float = 0.0
    held: bool = False


class Lanes:
    """See the module. Times are those of a monotonic clock."""

    def __init__(self, max_pause: float) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._max_pause = max_pause
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, event: Event) -> None:
        """Take an event, newer than all of its entity's."""
        lane = self._lanes.get(event.entity)
        if lane is None:
            backoff = Backoff(_FIRST_PAUSE, self._max_pause, least=0.0)
            lane = self._lanes[event.entity] = _Lane(backoff)
        lane.events.append(event)
        self._count += 1

    def wave(self, now: float, most: int) -> list[Event]:
        """Return the first event of each entity that is due, the oldest first, and those that failed before last.

        Where there are more events than places, those that failed get a quarter, so that neither kind blocks the other.
        """
        due = sorted((lane for lane in self._lanes.values() if lane.due <= now), key=lambda lane: lane.events[0].number)
        fresh = [lane.events[0] for lane in due if not lane.held]
        again = [lane.events[0] for lane in due if lane.held]
        first = fresh[: most - min(len(again), most // 4)]
        return first + again[: most - len(first)]

    def due(self) -> float | None:
        """Return when the next event is due, None when there is none."""
        return min((lane.due for lane in self._lanes.values()), default=None)

    def done(self, event: Event) -> None:
        """Take the first event of an entity out: it is settled."""
        lane = self._lanes[event.entity]
        lane.events.popleft()
        self._count -= 1
        lane.held, lane.due = False, 0.0
        lane.backoff.reset()
        if not lane.events:
            del self._lanes[event.entity]

    def give_up(self, unwanted: Callable[[Event], bool]) -> int:
        """Take out the first events of all entities for as long as nobody wants them; return how many."""
        before = self._count
        for lane in list(self._lanes.values()):
            while lane.events and unwanted(lane.events[0]):
                self.done(lane.events[0])
        return before - self._count

    def give_up_oldest(self, count: int) -> int:
        """Take out so many of the oldest events, if any, and those of the same row; return how many."""
        if count <= 0:
            return 0
        numbers = sorted(each.number for lane in self._lanes.values() for each in lane.events)[:count]
        return self.give_up(lambda event: event.number <= numbers[-1]) if numbers else 0

    def hold(self, event: Event, now: float, least: float) -> bool:
        """Make an entity wait since its first event failed by itself; return whether that event failed before."""
        lane = self._lanes[event.entity]
        again = lane.held
        lane.held, lane.due = True, now + max(least, lane.backoff.pause())
        return again

    @property
    def held(self) -> int:
        """How many entities wait since an event of theirs failed."""
        return sum(lane.held for lane in self._lanes.values())

    @property
    def oldest(self) -> Event | None:
        """The oldest event."""
        return min((lane.events[0] for lane in self._lanes.values()), key=lambda each: each.number, default=None)

    def progress(self, read: int, least: int) -> Progress:
        """Return how far the subscriber has got, when all events up to *read* were added here.

        Those that wait for their first try put the position back, though never behind *least*, so that
        they are read again after a crash. Those that are held do not, or one entity would have all others come again.
        """
        fresh = [lane.events[0].number for lane in self._lanes.values() if not lane.held]
        position = max(min(fresh, default=read + 1) - 1, least)
        left = (each.number for lane in self._lanes.values() for each in lane.events)
        return Progress(position, frozenset(number for number in left if number <= position))
