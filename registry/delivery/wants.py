"""What one subscriber wants to know of, and how and where it is told."""

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
    """Which events somebody wants: of these kinds, and where the others say something, what they say.

    ``types`` are those of events, ``entities`` kinds such as ``resource``. ``below`` are xids, which stand for
    themselves and what is below them.
    """

    kinds: tuple[Kind, ...] = ("xregistry",)
    types: frozenset[str] = frozenset()
    filter: Filter = everything
    entities: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    def events(self, row: Row, sources: Sources) -> list[Event]:
        """Return what of a row is wanted."""
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
        GatewayError, OSError: a certificate or an address that no waiting mends.
    """

    wants: Wants
    composer: Composer
    sender: Callable[[], Sender]
