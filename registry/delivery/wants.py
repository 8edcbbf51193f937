"""Which events one subscriber wants, and how and where they are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from registry.delivery.events import Event, Kind, Sources, event_of
from registry.delivery.filters import Filter
from registry.delivery.messages import Composer
from registry.delivery.sending import Sender
from registry.store.outbox import Row


def everything(_: Mapping[str, str]) -> bool:
    """Want every event."""
    return True


@dataclass(frozen=True, slots=True)
class Wants:
    """Which events a subscriber wants: those of ``kinds`` that match each other member that is not empty.

    ``types`` are those of events, ``entities`` kinds such as ``resource``. ``below`` are xids, which stand for
    themselves and what is below them.
    """

    kinds: tuple[Kind, ...] = ("xregistry",)
    types: frozenset[str] = frozenset()
    filter: Filter = everything
    entities: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    def events(self, row: Row, sources: Sources) -> list[Event]:
        """Return the events of a row that are wanted."""
        if self.entities and row.type.split(".")[2] not in self.entities:
            return []
        if self.below and not any(f"{row.subject}/".startswith(f"{each.rstrip('/')}/") for each in self.below):
            return []
        events = (event_of(row, kind, sources) for kind in self.kinds)
        return [each for each in events if each is not None and self._holds(each.attributes)]

    def _holds(self, attributes: Mapping[str, str]) -> bool:
        return (not self.types or attributes["type"] in self.types) and self.filter(attributes)


@dataclass(frozen=True, slots=True)
class Delivery:
    """All about one subscriber. ``sender`` connects at its first use, on the thread that sends.

    Raises (``sender``):
        GatewayError, OSError: a certificate or an address that will not work later either.
    """

    wants: Wants
    composer: Composer
    sender: Callable[[], Sender]
