"""Typed tables through a whole router, held against two independent readers: types, values, lineage, and growth.

The sample catalogs are fed by ``emit``, a workshop of the test's own by bodies with known values; one router has both.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from catalog.load import load
from catalog.model import Catalog, Definition
from catalog.record import Record
from catalog.templates import parse_template
from router.commands.emit import command
from router.commands.emit.producer import MessageProducer
from tests.conftest import Kafka, TopicFactory
from tests.support import cases as samples
from tests.support import schemas as typed_bodies
from tests.support import workshop
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.tables import Content, by_delta, by_duckdb, sql_type
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
EACH: Final = 2
KAFKA: Final = ("desk", "honey", "cold-chain", "postbox", "Ferry.Log")
HTTP: Final = ("webshop", "tills", "Harbour.Arrivals")
TOPICS: Final = ("library.desk", "market.cold-chain", "depot.postbox", "ferry.log", '"topic": "honey"')
TYPES: Final[Mapping[str, str]] = {
    "Beehive.Swarmed": "STRUCT(queens BIGINT)",
    "Beehive.Weighed": "STRUCT(kilograms DOUBLE)",
    "Depot.Postbox.Leaflet": 'STRUCT("value" MAP(VARCHAR, VARCHAR))',
    "Depot.Postbox.Letter": "STRUCT(pages BIGINT)",
    "Ferry.Departed": "STRUCT(cars BIGINT)",
    "Harbour.ShipArrived": "STRUCT(name VARCHAR, draught DOUBLE)",
    "Library.Branch.Closed": 'STRUCT("until" DATE)',
    "Library.Branch.Measured": "STRUCT(number INTEGER, area DOUBLE)",
    "Library.Branch.Opened": "STRUCT(street VARCHAR, shelves INTEGER)",
    "Library.Branch.Painted": "STRUCT(colour VARCHAR)",
    "Library.Loan.Begun": "STRUCT(book VARCHAR, card BIGINT)",
    "Library.Loan.Ended": "STRUCT(book VARCHAR, damaged BOOLEAN)",
    "Library.Loan.Extended": "STRUCT(days BIGINT)",
    "Library.Loan.Overdue": "STRUCT(book VARCHAR, days BIGINT)",
    "Library.Reader.Enrolled": "STRUCT(card BIGINT)",
    "Library.Reader.Left": "STRUCT(card BIGINT, books BIGINT)",
    "Library.Reader.Moved": "STRUCT(street VARCHAR)",
    "Library.Reader.Warned": "STRUCT(card BIGINT, reason VARCHAR)",
    "Library.Shelf.Built": "STRUCT(shelf VARCHAR, metres DOUBLE)",
    "Library.Shelf.Counted": "STRUCT(shelf VARCHAR, books INTEGER, missing VARCHAR[])",
    "Library.Shelf.Filled": 'STRUCT("Filled" STRUCT(books INTEGER), "Moved" STRUCT("to" VARCHAR))',
    "Library.Shelf.Moved": 'STRUCT("to" VARCHAR)',
    "Market.ColdChain.Reading": "STRUCT(celsius DOUBLE)",
    "Market.ColdChain.TooWarm": "STRUCT(celsius DOUBLE)",
    "Market.Orders.Paid": "STRUCT(amount DOUBLE)",
    "Market.Orders.Placed": "STRUCT(items BIGINT, total DOUBLE)",
    "Market.Tills.Sale": "STRUCT(product VARCHAR, price DOUBLE)",
}
"""The definitions of the sample catalogs that come by Kafka or HTTP and have columns, with the type of these."""
WIDE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("id", "source", "specversion", "type", "subject", "datacontenttype", "dataschema"), "VARCHAR"),
    "time": "TIMESTAMP WITH TIME ZONE",
    "extensions": "MAP(VARCHAR, VARCHAR)",
    "data": "BLOB",
    **dict.fromkeys(("message", "endpoint", "epoch", "position", "protocol"), "VARCHAR"),
    "context": "MAP(VARCHAR, VARCHAR)",
    "native": "VARCHAR",
    "received": "TIMESTAMP WITH TIME ZONE",
    # A message of one sample has a relation, so that all tables of the plan have room for it.
    **dict.fromkeys(("relation", "relatedto"), "VARCHAR"),
}
WRITTEN_BY: Final = {"schema_id": "VARCHAR"}
"""Some topic's bodies may begin with the id of a schema; the wide table calls it as lineage does."""


@dataclass(slots=True)
class Plant:
    """A running router with its catalogs in ``folder``, and what was emitted so far by definition."""

    router: RouterProcess
    folder: Path
    catalog: Catalog
    url: str
    servers: str
    emitted: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    sent: int = 0

    def table(self, xid: str) -> Path:
        """Where the table of a definition is."""
        _, _, group, _, message = xid.split("/")
        return self.folder / "typed" / group / message

    def settle(self) -> None:
        """Wait until every record that was sent is in the tables, and none elsewhere."""
        total = "xrouter_records_total"
        wait_until(lambda: self.router.total(total) >= self.sent, LIMIT, lambda: self.router.log[-3000:])
        assert self.router.total(total, outcome="routed") == self.sent, self.router.metrics()

    def epoch(self) -> str:
        """The active epoch, as the metrics tell it."""
        return next(name.split('"')[1] for name in self.router.metrics() if name.startswith("xrouter_catalog_info"))


@pytest.fixture
def plant(kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess) -> Plant:
    folder, (port,) = router.folder, free_ports(1)
    copy_samples(folder / "catalogs", topic_factory)
    (folder / "catalogs/workshop.json").write_text(workshop.catalog(grown=False))
    paths = {"Harbour.Arrivals": {"path": "/arrivals"}}
    sources: list[dict[str, Any]] = [
        {"endpoint": f"/endpoints/{name}", "bootstrap_servers": kafka.bootstrap} for name in KAFKA
    ]
    sources += [{"endpoint": f"/endpoints/{name}", **paths.get(name, {})} for name in (*HTTP, "workshop")]
    router.configure(
        {
            "catalog": {"source": str(folder / "catalogs"), "poll": "200ms", "network": False},
            "sources": sources,
            "sinks": {
                "typed": {"type": "table", "layout": "definition", "path": str(folder / "typed")},
                "wide": {"type": "table", "path": str(folder / "wide")},
                "dead": {"type": "jsonl", "path": str(folder / "dead")},
            },
            "routes": [{"to": ["typed", "wide"]}],
            "dead_letters": {"sinks": ["dead"]},
            "http": {"port": port},
        }
    )
    router.start()
    catalog = load([folder / "catalogs"])
    return Plant(router, folder, catalog, f"http://127.0.0.1:{port}", kafka.bootstrap)


def copy_samples(folder: Path, topic_factory: TopicFactory) -> None:
    """Copy the sample catalogs, with topics of this test's own."""
    topics = {name: topic_factory(name.split('"')[-2] if '"' in name else name) for name in TOPICS}
    for path in samples.FOLDER.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            for name, topic in topics.items():
                text = text.replace(name, f'"topic": "{topic}"' if '"' in name else topic)
            target = folder / path.relative_to(samples.FOLDER)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


def test_typed_tables_are_read_back_as_they_were_sent(plant: Plant) -> None:
    for target, names in ((f"kafka://{plant.servers}", KAFKA), (plant.url, HTTP)):
        with command.open_destination(target, io.BytesIO()) as out:
            for xid, record in emitted(plant.catalog, names):
                out.send(record)
                plant.emitted[xid].append(record)
                plant.sent += 1
    first = list(workshop.events(grown=False))
    for event in first:
        workshop.post(plant.url, event)
    plant.sent += len(first)
    plant.settle()
    checked = [check_sample(plant, xid) for xid in plant.emitted if xid.rpartition("/")[2] in TYPES]
    assert len(checked) == len(TYPES)
    check_workshop(plant, first, grown=False)

    before = plant.epoch()
    (plant.folder / "fresh").write_text(workshop.catalog(grown=True))
    (plant.folder / "fresh").replace(plant.folder / "catalogs/workshop.json")
    wait_until(lambda: plant.epoch() != before, LIMIT, lambda: plant.router.log[-3000:])
    more = list(workshop.events(grown=True))
    for event in more:
        workshop.post(plant.url, event)
    plant.sent += len(more)
    plant.settle()
    check_workshop(plant, [*first, *more], grown=True)
    check_wide(plant, [*first, *more], {before, plant.epoch()})
    assert plant.router.stop() == 0, plant.router.log[-2000:]


def emitted(catalog: Catalog, endpoints: tuple[str, ...]) -> Iterator[tuple[str, Record]]:
    """Give some records of each definition of the endpoints."""
    for name in endpoints:
        endpoint = catalog.endpoints[f"/endpoints/{name}"]
        for xid in endpoint.candidates:
            context = dict.fromkeys(placeholders(catalog.definitions[xid]), "v{n}")
            producer = MessageProducer(catalog, xid, endpoint=endpoint.xid, context=context, seed=7)
            for number in range(1, EACH + 1):
                yield xid, producer.make_record(number)


def placeholders(definition: Definition) -> Iterator[str]:
    for prop in (*definition.protocoloptions, *definition.envelopemetadata):
        if isinstance(prop.value, str):
            yield from parse_template(prop.value).names


def check_sample(plant: Plant, xid: str) -> str:
    """Hold the table of a sample's definition against the bodies, read by the libraries of their formats."""
    definition = plant.catalog.definitions[xid]
    document = plant.catalog.schemas[definition.schemakey or ""]["document"]
    form, name = str(definition.dataschemaformat), definition.schemaname
    bodies = [record.body or b"" for record in plant.emitted[xid]]
    for content in (by_duckdb(plant.table(xid)), by_delta(plant.table(xid))):
        assert content.types == {**WIDE, **WRITTEN_BY, "payload": sql_type(TYPES[definition.messageid])}, xid
        found = [(row["data"], row["payload"]) for row in content.rows]
        wanted = [(body.hex(), as_columns(content, typed_bodies.read(body, form, document, name))) for body in bodies]
        assert sorted(found, key=repr) == sorted(wanted, key=repr), xid
    return xid


def as_columns(content: Content, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a body that the payload has columns for; a map alone stands under ``value``."""
    names = list(content.rows[0]["payload"])
    if names == ["value"] and "value" not in members:
        return {"value": {name: json.dumps(each) for name, each in members.items()}}
    return {name: members.get(name) for name in names}


def check_workshop(plant: Plant, events: list[workshop.Sent], *, grown: bool) -> None:
    """Hold the workshop's tables against the cases: types, values, bytes, attributes, context and lineage."""
    for case in workshop.cases():
        wanted = {f"{event.name}-{event.number}": event for event in events if event.name == case["name"]}
        table = plant.folder / "typed" / workshop.GROUP / case["name"]
        for content in (by_duckdb(table), by_delta(table)):
            assert content.types == {
                **WIDE,
                **WRITTEN_BY,
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


def check_wide(plant: Plant, events: list[workshop.Sent], epochs: set[str]) -> None:
    """The wide table has every record once, each with the very columns that it has in its definition's table."""
    content = by_duckdb(plant.folder / "wide")
    assert content.types == {**WIDE, "schemaid": "VARCHAR"}
    assert len(content.rows) == plant.sent
    assert {row["epoch"] for row in content.rows} == epochs
    wide = {row["position"]: row for row in content.rows}
    assert len(wide) == plant.sent
    xids = {*plant.emitted, *(event.xid for event in events)}
    assert {row["message"] for row in content.rows} == xids
    for xid in xids:
        for row in by_duckdb(plant.table(xid)).rows:
            written_by = {"schemaid": row["schema_id"]}
            assert {**{name: row[name] for name in WIDE}, **written_by} == wide[row["position"]]
