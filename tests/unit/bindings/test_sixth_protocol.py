"""A protocol is a room and a line in a list: a sixth one is matched, mapped and sent without a change elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bindings.gateways import GatewayLimits
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog
from router.errors import ConfigError, SinkError
from router.intake.intake import group_connections, open_gateway
from router.matching.records import RecordMatcher
from router.settings import Settings, load_settings
from router.sinks import Commit, check_endpoints, open_sink
from router.sinks.messages.sink import MESSAGE
from router.sources import resolve_sources
from tests.support.gateways import Rows
from tests.support.round_trip import PROTOCOL, far_end, record_of, spoken
from tests.support.shop import Counts


@pytest.fixture(autouse=True)
def sixth_protocol() -> Iterator[None]:
    with spoken():
        yield


def catalog_of(folder: Path, uri: str = "pipe://127.0.0.1:1") -> Catalog:
    reading = {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": "T"}},
        "protocol": PROTOCOL,
        "protocoloptions": {"pipe": {"type": "uritemplate", "value": "plant/{line}"}},
    }
    note = {"protocol": PROTOCOL, "protocoloptions": {"pipe": {"value": "notes"}}}
    groups = {"G": {"messages": {"reading": reading, "note": note}}}
    options = {"endpoints": [{"uri": uri}]}
    both = {"usage": ["consumer", "producer"], "protocol": PROTOCOL, "protocoloptions": options}
    endpoint = {**both, "messagegroups": ["/messagegroups/G"]}
    (folder / "c.json").write_text(json.dumps({"messagegroups": groups, "endpoints": {"line": endpoint}}))
    return load([folder / "c.json"])


def line(pipe: str, **headers: str) -> bytes:
    listed = [{"name": name, "value": value} for name, value in headers.items()]
    return json.dumps({"protocol": "pipe/7", "native": {"pipe": pipe, "headers": listed}, "body": "x"}).encode()


def settings_of(folder: Path, sink: dict[str, Any]) -> Settings:
    file = folder / "router.yaml"
    file.write_text(json.dumps({"catalog": {"source": "c.json"}, "sinks": {"out": sink}, "routes": [{"to": "out"}]}))
    return load_settings(file, {})


def event(at: int, message: str, context: dict[str, str]) -> dict[str, Any]:
    named = {"id": str(at), "source": "/s", "type": "T", "specversion": "1.0"}
    place = {"message": message, "endpoint": "/endpoints/line", "position": f"p-0-{at}", "epoch": "e"}
    return {**named, **place, "protocol": PROTOCOL, "data": b"1", "context": list(context.items())}


def test_records_are_matched_and_mapped(tmp_path: Path) -> None:
    matcher = RecordMatcher(catalog_of(tmp_path), endpoint="/endpoints/line")
    attributes = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "T"}
    as_event, as_native, strange = matcher.outcomes(
        [line("plant/7", **attributes), line("notes"), line("elsewhere", **attributes)]
    )
    assert (as_event["message"], as_event["context"]) == ("/messagegroups/G/messages/reading", {"line": "7"})
    assert as_native["message"] == "/messagegroups/G/messages/note"
    assert as_native["cloudevent"]["type"] == "note"
    assert strange["reason"] == "no-match"
    assert any(each["property"] == "protocoloptions.pipe" for near in strange["nearest"] for each in near["mismatches"])


def test_a_gateway_takes_and_acknowledges_after_the_store(tmp_path: Path) -> None:
    message = {"pipe": "notes", "headers": [{"name": "a", "value": "1"}], "body": "eA=="}
    rows, counts = Rows(), Counts()
    with far_end({}, [message, message]) as (uri, got):
        catalog = catalog_of(tmp_path, uri)
        (source,) = resolve_sources(catalog, settings_of(tmp_path, {"type": "pipe", "uri": uri, "pipe": "a"}))
        (link,) = group_connections([source], "tests")
        gateway = open_gateway(link, rows, GatewayLimits(), counts)
        gateway.start()
        gateway.stop(30)
    assert (source.kind, source.addresses, source.brokered) == ("pipe", ("notes",), True)
    assert [each.get("answer") for each in got] == [None, "ok", "ok"]
    assert counts.stored == {"/endpoints/line": 2}
    native = BINDINGS[PROTOCOL].build(list(rows.stored[0].properties))
    (outcome,) = RecordMatcher(catalog).outcomes([json.dumps({"protocol": PROTOCOL, "native": native}).encode()])
    assert outcome["message"] == "/messagegroups/G/messages/note"


def test_a_template_sends_and_what_is_refused_is_told_from_what_is_down(tmp_path: Path) -> None:
    with far_end({"plant/closed": "this pipe is closed"}) as (uri, got):
        settings = settings_of(tmp_path, {"type": "pipe", "uri": uri, "pipe": "plant/{context.line|none}"})
        sink = open_sink("out", settings.sinks["out"], "events")
        events = [event(at, "/m", {"line": name}) for at, name in enumerate(("a/b", "closed", ""))]
        result = sink.write(pa.Table.from_pylist(events, MESSAGE), Commit("app", 1))
    assert [each["pipe"] for each in got] == ["plant/a%2Fb", "plant/closed", "plant/none"]
    assert [(each.position, each.reason) for each in result.refused] == [("p-0-1", "this pipe is closed")]
    with pytest.raises(SinkError, match="nobody is at the other end"):
        sink.write(pa.Table.from_pylist([event(9, "/m", {})], MESSAGE), Commit("app", 2))


def test_an_endpoint_shapes_what_its_own_matcher_takes(tmp_path: Path) -> None:
    with far_end({}) as (uri, got):
        catalog = catalog_of(tmp_path, uri)
        settings = settings_of(tmp_path, {"type": "pipe", "endpoint": "/endpoints/line"})
        check_endpoints(settings, catalog)
        sink = open_sink("out", settings.sinks["out"], "events", catalog)
        events = [event(1, "/messagegroups/G/messages/reading", {"line": "7"}), event(2, "/m", {})]
        result = sink.write(pa.Table.from_pylist(events, MESSAGE), Commit("app", 1))
    assert [each.position for each in result.refused] == ["p-0-2"]
    (outcome,) = RecordMatcher(catalog, endpoint="/endpoints/line").outcomes([record_of(got[0])])
    assert (outcome["message"], outcome["context"]) == ("/messagegroups/G/messages/reading", {"line": "7"})
    headers = {each["name"]: each["value"] for each in got[0]["headers"]}
    assert json.loads(headers["xrouter-lineage"])["position"] == "p-0-1"


@pytest.mark.parametrize(
    ("sink", "fault"),
    [
        ({"uri": "mqtt://h", "pipe": "a"}, "must be pipe:// and a host"),
        ({"uri": "pipe://h:1", "pipe": "a b"}, "must have letters, '-' and '/' outside its {variables}"),
        (
            {"uri": "pipe://h:1", "pipe": "a", "username": "u", "password": "${X}"},
            "would receive a secret in plain text",
        ),
        ({"uri": "pipe://h:1"}, "sinks.out.pipe: is required"),
        ({"kind": 1}, "unknown key 'kind'"),
    ],
)
def test_settings_are_checked_as_those_of_any_sink(tmp_path: Path, sink: dict[str, Any], fault: str) -> None:
    sink = {name: "hush" if value == "${X}" else value for name, value in sink.items()}
    if "password" in sink:
        (tmp_path / "secret").write_text("hush")
        sink["password"] = "file:secret"
    with pytest.raises(ConfigError) as caught:
        settings_of(tmp_path, {"type": "pipe", **sink})
    assert fault in "\n".join(caught.value.problems)
