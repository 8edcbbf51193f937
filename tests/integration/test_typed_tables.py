"""Typed tables through a whole router, held against two independent readers: types, values, lineage, and growth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support import plain
from tests.support import schemas as typed_bodies
from tests.support.cases import read_cases
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.tables import by_delta, by_duckdb, sql_type
from tests.support.waiting import wait_until

CASES: Final = Path(__file__).resolve().parents[1] / "cases" / "workshop.yaml"
GROUP: Final = "Workshop"
ENDPOINT: Final = "/endpoints/workshop"
PATH: Final = "/workshop"
TIME: Final = "2026-03-04T05:06:07.008Z"


@dataclass(frozen=True, slots=True)
class Sent:
    """One event that was sent: the members of the payload that are to be there; None when it does not fit."""

    name: str
    number: int
    body: bytes
    content_type: str
    payload: Mapping[str, Any] | None

    @property
    def xid(self) -> str:
        """The definition that takes it."""
        return f"/messagegroups/{GROUP}/messages/{self.name}"


def cases() -> list[dict[str, Any]]:
    """Return the definitions as the cases have them."""
    found: list[dict[str, Any]] = read_cases(CASES)
    return found


def catalog(*, grown: bool) -> str:
    """Return the catalog, before or after its schemas changed."""
    messages = {
        case["name"]: {
            "envelopemetadata": {
                "type": {"value": f"workshop.{case['name']}"},
                "source": {"value": "/workshop/{bench}", "type": "uritemplate"},
            },
            "datacontenttype": content_type_of(case),
            "dataschemaformat": case["format"],
            "dataschema": stage(case, grown=grown)["schema"],
        }
        for case in cases()
    }
    endpoint = plain.endpoint("HTTP", {"path": PATH, "method": "POST"}, GROUP)
    document = plain.catalog({"workshop": endpoint}, **{GROUP: messages})
    document["messagegroups"][GROUP]["envelope"] = "CloudEvents/1.0"
    return json.dumps(document)


def stage(case: Mapping[str, Any], *, grown: bool) -> Mapping[str, Any]:
    """Return schema, type and rows of a definition before or after the change; most do not change."""
    found: Mapping[str, Any] = case["grown"] if grown and "grown" in case else case
    return found


def content_type_of(case: Mapping[str, Any]) -> str:
    """Return the content type that a definition asks for."""
    return str(case.get("contenttype", typed_bodies.JSON))


def events(*, grown: bool) -> Iterator[Sent]:
    """Give the events of all definitions, or of those that changed alone, numbered within each definition."""
    for case in cases():
        if grown and "grown" not in case:
            continue
        told, content_type = stage(case, grown=grown), content_type_of(case)
        for number, row in enumerate(told["rows"], 100 if grown else 0):
            body = typed_bodies.written(row, case["format"], told["schema"], content_type)
            yield Sent(case["name"], number, body, content_type, row["value"])


def post(url: str, sent: Sent) -> None:
    """Send an event in binary mode; it is taken."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": f"{sent.name}-{sent.number}",
        "ce-source": f"/workshop/b%2520{sent.number}",  # the binding decodes header values once
        "ce-type": f"workshop.{sent.name}",
        "ce-subject": "bench",
        "ce-time": TIME,
        "ce-shift": "late",
        "content-type": sent.content_type,
        "x-plant": "seven",
    }
    answer = httpx.post(url + PATH, content=sent.body, headers=headers, timeout=30)
    assert answer.status_code == 202, answer.text


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

    def post(self, events: list[Sent]) -> None:
        """Send events and wait until every record that was sent is in the tables, and none elsewhere."""
        for event in events:
            post(self.url, event)
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
    (folder / "workshop.json").write_text(catalog(grown=False))
    sinks = plain.tables(folder, "typed", layout="definition") | plain.tables(folder, "wide")
    told = plain.routed(folder / "workshop.json", sinks | plain.lines(folder, "dead"), http={"port": port})
    told["catalog"] |= {"poll": "200ms", "network": False}
    router.configure({**told, "sources": [{"endpoint": "/endpoints/workshop"}]})
    router.start()
    return Plant(router, folder, f"http://127.0.0.1:{port}")


def test_typed_tables_are_read_back_as_they_were_sent(plant: Plant) -> None:
    first = list(events(grown=False))
    plant.post(first)
    check_workshop(plant, first, grown=False)

    before = plant.epoch()
    (plant.folder / "fresh").write_text(catalog(grown=True))
    (plant.folder / "fresh").replace(plant.folder / "workshop.json")
    wait_until(lambda: plant.epoch() != before, LIMIT, lambda: plant.router.log[-3000:])
    more = list(events(grown=True))
    plant.post(more)
    check_workshop(plant, [*first, *more], grown=True)
    check_wide(plant, {before, plant.epoch()})
    assert plant.router.stop() == 0, plant.router.log[-2000:]


def check_workshop(plant: Plant, events: list[Sent], *, grown: bool) -> None:
    """Hold the workshop's tables against the cases: types, values, bytes, attributes, context and lineage."""
    for case in cases():
        wanted = {f"{event.name}-{event.number}": event for event in events if event.name == case["name"]}
        table = plant.folder / "typed" / GROUP / case["name"]
        for content in (by_duckdb(table), by_delta(table)):
            assert content.types == {
                **WIDE,
                "payload": sql_type(stage(case, grown=grown)["type"]),
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


def check_event(row: Mapping[str, Any], event: Sent) -> None:
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
    assert (row["message"], row["endpoint"], row["protocol"]) == (event.xid, ENDPOINT, "HTTP")
    native = json.loads(row["native"])
    assert {"name": "x-plant", "value": "seven"} in native["headers"]
    assert (native["method"], native["path"]) == ("POST", PATH)
    assert row["position"]
    assert row["received"] > "2026-03-04"


def check_wide(plant: Plant, epochs: set[str]) -> None:
    """The wide table has every record once, each with the very columns that it has in its definition's table."""
    content = by_duckdb(plant.folder / "wide")
    assert content.types == WIDE
    assert {row["epoch"] for row in content.rows} == epochs
    wide = {row["position"]: row for row in content.rows}
    assert len(wide) == len(content.rows) == plant.sent
    for case in cases():
        for row in by_duckdb(plant.folder / "typed" / GROUP / case["name"]).rows:
            assert {name: row[name] for name in WIDE} == wide.pop(row["position"])
    assert not wide
