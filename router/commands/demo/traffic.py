"""What the demo sends: well-formed messages made by ``emit``, and some that must fail, each for its own reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from catalog.model import Catalog
from catalog.record import Record
from router.commands.emit.producer import Producer, batch_of

ORDERS: Final = "/messagegroups/Market.Orders/messages/Market.Orders"
TILLS: Final = "/messagegroups/Market.Tills/messages/Market.Tills"
_BATCH: Final = 10
_ORDER: Final = {"store": "7", "order": "2026-{n}"}
_TILL: Final = {"store": "7", "till": "2", "receipt": "R{n}"}


@dataclass(frozen=True, slots=True)
class Step:
    """Some requests of one kind. ``events`` is how many records one request holds (a batch holds several)."""

    title: str
    requests: tuple[Record, ...]
    events: int = 1

    @property
    def records(self) -> int:
        """How many records the router will see."""
        return len(self.requests) * self.events


def steps(catalog: Catalog) -> Iterator[Step]:
    """Yield what is sent, in order; the same each time but for the clock."""

    def produced(message: str, count: int, context: Mapping[str, str], mode: str, endpoint: str) -> list[Record]:
        # A seed for each definition: from one seed all would have the same ids.
        seed = list(catalog.definitions).index(message)
        producer = Producer(catalog, message, endpoint=endpoint, mode=mode, context=context, seed=seed)
        return list(producer.records(count))

    shop, tills = "/endpoints/webshop", "/endpoints/tills"
    placed = produced(f"{ORDERS}.Placed", 126, _ORDER, "binary", shop)
    paid = produced(f"{ORDERS}.Paid", 83, _ORDER, "structured", shop)
    collected = produced(f"{ORDERS}.Collected", 60, _ORDER, "structured", shop)
    sales = produced(f"{TILLS}.Sale", 107, _TILL, "native", tills)
    batches = [batch_of(collected[at : at + _BATCH]) for at in range(0, len(collected), _BATCH)]
    yield Step("CloudEvents, binary: orders placed", tuple(placed[:120]))
    yield Step("CloudEvents, structured: orders paid", tuple(paid[:80]))
    yield Step(f"CloudEvents, batches of {_BATCH}: orders collected", tuple(batches), _BATCH)
    yield Step("plain HTTP: sales at a till", tuple(sales[:100]))
    yield Step("plain HTTP: drawers opened", tuple(produced(f"{TILLS}.DrawerOpened", 40, _TILL, "native", tills)))
    unknown = {"ce-type": "com.example.market.order.returned"}
    yield Step("to fail: an event type nobody declared", tuple(_headers(each, unknown) for each in placed[120:124]))
    yield Step("to fail: CloudEvents without an id", tuple(_headers(each, {"ce-id": None}) for each in placed[124:]))
    yield Step("to fail: events cut off in the middle", tuple(_cut(each) for each in paid[80:]))
    refunds = tuple(_native(each, path=str(each.native["path"]).replace("/sales", "/refunds")) for each in sales[100:])
    yield Step("to fail: a till message nobody declared", refunds)


def _headers(record: Record, changes: Mapping[str, str | None]) -> Record:
    """Return the record with headers changed, or left out where the change is None."""
    kept = [each for each in record.native["headers"] if each["name"] not in changes]
    added = [{"name": name, "value": value} for name, value in changes.items() if value is not None]
    return _native(record, headers=[*kept, *added])


def _native(record: Record, **changes: Any) -> Record:
    form = {**record.native, **changes}
    return replace(record, native=form)


def _cut(record: Record) -> Record:
    body = record.body or b""
    return replace(record, body=body[: len(body) // 2])
