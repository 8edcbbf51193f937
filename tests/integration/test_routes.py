"""One router, both sources, every kind of sink: each record is where its route says, in the form of the contract."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.kafka import create_topics, produce, read_all
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 300.0
JSON = b"application/json"
EVENT = {"specversion": "1.0", "id": "s1", "source": "/plants/9", "type": "temperature", "seq": 7}


def catalog(topic: str) -> dict[str, Any]:
    """Return a catalog with a Kafka and an HTTP endpoint."""
    source = {"source": {"value": "/plants/{plant}", "type": "uritemplate"}}
    path = "/plants/{plant}/orders/{number}"
    options = {"path": {"value": path}, "method": {"value": "POST"}}
    temperature, order = plain.event("temperature"), plain.event("order", protocol="HTTP", protocoloptions=options)
    temperature["envelopemetadata"] |= source
    order["envelopemetadata"] |= {"subject": {"value": "{number}"}, **source}
    endpoints = {
        "lines": plain.endpoint("KAFKA", {"topic": topic}, "Sensors"),
        "shop": plain.endpoint("HTTP", {"path": path, "method": "POST"}, "Orders", "Sensors"),
    }
    return plain.catalog(endpoints, Sensors={"temperature": temperature}, Orders={"order": order})


def test_every_sink_gets_what_its_route_says(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    source = topic_factory("lines")
    out = f"{source}.Sensors.p_2F"
    create_topics(kafka.bootstrap, [out, f"{source}.Sensors.9"])
    port = free_ports(1)[0]
    sinks = plain.topics(kafka.bootstrap, bus=f"{source}.{{messagegroup}}.{{context.plant}}")
    sinks["bus"]["mode"] = "structured"
    when = {"messagegroup": "Sensors", "context": {"plant": ["9", "p*"]}}
    router.configure(
        plain.routed(
            plain.write(router.folder, catalog(source)),
            sinks | plain.tables(tmp_path, "lake") | plain.lines(tmp_path, "files", "dead"),
            sources=[
                {"endpoint": "/endpoints/lines", "bootstrap_servers": kafka.bootstrap},
                {"endpoint": "/endpoints/shop"},
            ],
            http={"port": port},
            routes=[{"when": when, "to": ["bus", "lake"]}, {"to": ["files"]}],
        )
    )
    router.start()
    send(kafka.bootstrap, source, port)
    wait_until(lambda: router.total("xrouter_records_total") >= 8, LIMIT, lambda: router.log[-3000:])
    assert router.total("xrouter_gateway_acknowledged_total", endpoint="/endpoints/shop") == 3
    assert router.stop() == 0, router.log[-2000:]
    check_topics(kafka.bootstrap, source, out)
    check_table(tmp_path / "lake")
    check_lines(tmp_path)
    assert "secret-token" not in "".join(path.read_text() for path in (tmp_path / "files").glob("*.jsonl"))


def send(bootstrap: str, source: str, port: int) -> None:
    """Send eight records: five that conform, three that do not."""
    head = [("ce_specversion", b"1.0"), ("ce_type", b"temperature"), ("content-type", JSON)]
    produce(
        bootstrap,
        source,
        [
            (b"k1", b'{"t": 1.50}', [*head, ("ce_id", b"b1"), ("ce_source", b"/plants/p%2F"), ("other", b"\xff")]),
            (None, b'{"t": 2}', [*head, ("ce_id", b"b2"), ("ce_source", b"/plants/elsewhere")]),
            (
                b"k3",
                json.dumps({**EVENT, "data": {"t": 3}}).encode(),
                [("content-type", b"application/cloudevents+json")],
            ),
            (b"\xfe", b"\xff\x00raw", [("kind", b"\xff"), ("kind", b"two")]),
        ],
    )
    plain.post(port, "/plants/9/orders/a%20b", b'{"n":1}', Authorization="Bearer secret-token")
    batch = json.dumps([{**EVENT, "id": "h1", "data": "x"}, {"id": "broken"}]).encode()
    plain.post(port, "/plants/9/orders/2", batch, plain.BATCH)
    plain.post(port, "/plants/9/orders/3", b"{not json", plain.STRUCTURED)


def check_topics(bootstrap: str, source: str, out: str) -> None:
    first = read_all(bootstrap, out)
    assert [message.key for message in first] == [b"k1"]
    assert first[0].header("content-type") == "application/cloudevents+json"
    assert b'"data":{"t": 1.50}' in (first[0].value or b"")
    assert first[0].header("xrouter-message") == "/messagegroups/Sensors/messages/temperature"
    assert json.loads(first[0].header("xrouter-context") or "") == {"plant": "p/"}
    events = [json.loads(message.value or b"") for message in read_all(bootstrap, f"{source}.Sensors.9")]
    assert sorted(event["id"] for event in events) == ["h1", "s1"]
    assert {event["data"] if event["id"] == "h1" else event["data"]["t"] for event in events} == {"x", 3}


def check_table(path: Path) -> None:
    rows = {row["id"]: row for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()}
    assert set(rows) == {"b1", "s1", "h1"}
    assert rows["b1"]["data"] == b'{"t": 1.50}'
    assert dict(rows["s1"]["extensions"]) == {"seq": "7"}
    assert rows["h1"]["endpoint"] == "/endpoints/shop"
    assert rows["h1"]["protocol"] == "HTTP"
    assert rows["h1"]["position"].endswith("#0")
    assert {"name": "other", "value_base64": "/w=="} in json.loads(rows["b1"]["native"])["headers"]


def check_lines(folder: Path) -> None:
    by_type = {line["cloudevent"]["type"]: line for line in plain.lines_of(folder / "files")}
    assert set(by_type) == {"temperature", "order"}
    assert by_type["order"]["cloudevent"]["subject"] == "a b"
    assert by_type["order"]["cloudevent"]["data"] == {"n": 1}
    assert by_type["order"]["context"] == {"plant": "9", "number": "a b"}
    assert by_type["temperature"]["context"] == {"plant": "elsewhere"}
    by_reason = {letter["reason"]: letter for letter in plain.lines_of(folder / "dead")}
    assert set(by_reason) == {"no-match", "invalid-cloudevent", "undecodable"}
    native = by_reason["no-match"]
    assert base64.b64decode(native["body"]) == b"\xff\x00raw"
    assert native["native"]["key_base64"] == "/g=="
    assert native["native"]["headers"] == [{"name": "kind", "value_base64": "/w=="}, {"name": "kind", "value": "two"}]
    assert native["nearest"][0]["message"] == "/messagegroups/Sensors/messages/temperature"
    assert base64.b64decode(by_reason["invalid-cloudevent"]["body"]) == b'{"id": "broken"}'
    assert base64.b64decode(by_reason["undecodable"]["body"]) == b"{not json"
