"""Typed tables through a whole router, held against two independent readers: types, values, lineage, and growth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import plain, workshop
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.tables import by_delta, by_duckdb, sql_type
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
WIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema"), "VARCHAR"),
    "time": "TIMESTAMP WITH TIME ZONE",
    "extensions": "MAP(VARCHAR, VARCHAR)",
    "data": "BLOB",
    **dict.fromkeys(("message", "endpoint", "epoch", "position", "protocol"), "VARCHAR"),
    "context": "MAP(VARCHAR, VARCHAR)",
    "native": "VARCHAR",
    "received": "TIMESTAMP WITH TIME ZONE",
}


@dataclass(slots=True)
class Plant:
    """A running router with its catalog in ``folder``, and how much was sent so far."""

    router: RouterProcess
    folder: Path
    url: str
    sent: int = 0

    def post(self, events: list[workshop.Sent]) -> None:
        """Send events and wait until every record that was sent is in the tables, and none elsewhere."""
        for event in events:
            workshop.post(self.url, event)
        self.sent += len(events)
        total = "xrouter_records_total"
        wait_until(lambda: self.router.total(total) >= self.sent, LIMIT, lambda: self.router.log[-3000:])
        assert self.router.total(total, outcome="routed") == self.sent, self.router.metrics()

    def epoch(self) -> str:
        """The active epoch, as the metrics tell it."""
        return next(name.split('"')[1] for name in self.router.metrics() if name.startswith("xrouter_catalog_info"))


@pytest.fixture
def plant(router: RouterProcess) -> Plant:
    folder, (port,) = router.folder, free_ports(1)
    (folder / "workshop.json").write_text(workshop.catalog(grown=False))
    sinks = plain.tables(folder, "typed", layout="definition") | plain.tables(folder, "wide")
    told = plain.routed(folder / "workshop.json", sinks | plain.lines(folder, "dead"), http={"port": port})
    told["catalog"] |= {"poll": "200ms", "network": False}
    router.configure({**told, "sources": [{"endpoint": "/endpoints/workshop"}]})
    router.start()
    return Plant(router, folder, f"http://127.0.0.1:{port}")


def test_typed_tables_are_read_back_as_they_were_sent(plant: Plant) -> None:
    first = list(workshop.events(grown=False))
    plant.post(first)
    check_workshop(plant, first, grown=False)

    before = plant.epoch()
    (plant.folder / "fresh").write_text(workshop.catalog(grown=True))
    (plant.folder / "fresh").replace(plant.folder / "workshop.json")
    wait_until(lambda: plant.epoch() != before, LIMIT, lambda: plant.router.log[-3000:])
    more = list(workshop.events(grown=True))
    plant.post(more)
    check_workshop(plant, [*first, *more], grown=True)
    check_wide(plant, {before, plant.epoch()})
    assert plant.router.stop() == 0, plant.router.log[-2000:]


def check_workshop(plant: Plant, events: list[workshop.Sent], *, grown: bool) -> None:
    """Hold the workshop's tables against the cases: types, values, bytes, attributes, context and lineage."""
    for case in workshop.cases():
        wanted = {f"{event.name}-{event.number}": event for event in events if event.name == case["name"]}
        table = plant.folder / "typed" / workshop.GROUP / case["name"]
        for content in (by_duckdb(table), by_delta(table)):
            assert content.types == {
                **WIDE,
                "payload": sql_type(workshop.stage(case, grown=grown)["type"]),
            }, case
            assert sorted(row["id"] for row in content.rows) == sorted(wanted)
            for row in content.rows:
                event = wanted[row["id"]]
                assert row["payload"] == filled(event.payload, row["payload"]), (event, row["payload"])
                check_event(row, event)


def filled(wanted: Any, found: Any) -> Any:
    """Return what a payload is to be: null where it does not name a column, at whatever level the table has it."""
    if not isinstance(wanted, dict) or not isinstance(found, dict):
        return wanted
    nulls = {name: None for name, value in found.items() if value is None}
    return nulls | {name: filled(each, found.get(name)) for name, each in wanted.items()}


def check_event(row: Mapping[str, Any], event: workshop.Sent) -> None:
    """Hold the columns beside the payload against what was sent."""
    assert row["data"] == (event.body.hex() or None)
    told = {name: row[name] for name in ("source", "specversion", "type", "subject", "datacontenttype", "dataschema")}
    assert told == {
        "source": f"/workshop/b%20{event.number}",
        "specversion": "1.0",
        "type": f"workshop.{event.name}",
        "subject": "bench",
        "datacontenttype": event.content_type,
        "dataschema": None,
    }
    assert row["time"] == "2026-03-04T05:06:07.008000+00:00"
    assert row["extensions"] == {"shift": "late"}
    assert row["context"] == {"bench": f"b {event.number}"}
    assert (row["message"], row["endpoint"], row["protocol"]) == (event.xid, workshop.ENDPOINT, "HTTP")
    native = json.loads(row["native"])
    assert {"name": "x-plant", "value": "seven"} in native["headers"]
    assert (native["method"], native["path"]) == ("POST", workshop.PATH)
    assert row["position"]
    assert row["received"] > "2026-03-04"


def check_wide(plant: Plant, epochs: set[str]) -> None:
    """The wide table has every record once, each with the very columns that it has in its definition's table."""
    content = by_duckdb(plant.folder / "wide")
    assert content.types == WIDE
    assert {row["epoch"] for row in content.rows} == epochs
    wide = {row["position"]: row for row in content.rows}
    assert len(wide) == len(content.rows) == plant.sent
    for case in workshop.cases():
        for row in by_duckdb(plant.folder / "typed" / workshop.GROUP / case["name"]).rows:
            assert {name: row[name] for name in WIDE} == wide.pop(row["position"])
    assert not wide
