"""One router, both sources, every kind of sink: each record is where its route says, in the form of the contract."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.conftest import Kafka, TopicFactory
from tests.support.kafka import Message, create_topics, produce, read_all
from tests.support.ports import free_ports
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until

LIMIT = 300.0
JSON = b"application/json"
BATCH = "application/cloudevents-batch+json"
EVENT = {"specversion": "1.0", "id": "s1", "source": "/plants/9", "type": "temperature", "seq": 7}


def catalog(topic: str) -> dict[str, Any]:
    """Return a catalog with a Kafka and an HTTP endpoint."""
    source = {"source": {"value": "/plants/{plant}", "type": "uritemplate"}}
    temperature = {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": "temperature"}, **source}}
    order = {
        "envelope": "CloudEvents/1.0",
        "envelopemetadata": {"type": {"value": "order"}, "subject": {"value": "{number}"}, **source},
        "protocol": "HTTP",
        "protocoloptions": {"path": {"value": "/plants/{plant}/orders/{number}"}, "method": {"value": "POST"}},
    }
    return {
        "messagegroups": {
            "Sensors": {"messages": {"temperature": temperature}},
            "Orders": {"messages": {"order": order}},
        },
        "endpoints": {
            "lines": {
                "usage": "consumer",
                "protocol": "KAFKA",
                "protocoloptions": {"options": {"topic": topic}},
                "messagegroups": ["/messagegroups/Sensors"],
            },
            "shop": {
                "usage": "consumer",
                "protocol": "HTTP",
                "protocoloptions": {"options": {"path": "/plants/{plant}/orders/{number}", "method": "POST"}},
                "messagegroups": ["/messagegroups/Orders", "/messagegroups/Sensors"],
            },
        },
    }


def post(port: int, path: str, body: bytes, content_type: str = "application/json") -> int:
    """Send a message over HTTP and return the status."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"Content-Type": content_type, "Authorization": "Bearer secret-token"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(answer.status)


def test_every_sink_gets_what_its_route_says(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess, tmp_path: Path
) -> None:
    source = topic_factory("lines")
    out = f"{source}.Sensors.p_2F"
    create_topics(kafka.bootstrap, [out, f"{source}.Sensors.9"])
    port = free_ports(1)[0]
    (router.folder / "c.json").write_text(json.dumps(catalog(source)))
    bus = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "mode": "structured"}
    router.configure(
        {
            "catalog": {"source": str(router.folder / "c.json")},
            "sources": [
                {"endpoint": "/endpoints/lines", "bootstrap_servers": kafka.bootstrap},
                {"endpoint": "/endpoints/shop"},
            ],
            "http": {"port": port},
            "sinks": {
                "bus": {**bus, "topic": f"{source}.{{messagegroup}}.{{context.plant}}"},
                "lake": {"type": "table", "path": str(tmp_path / "lake")},
                "files": {"type": "jsonl", "path": str(tmp_path / "files")},
                "letters": {"type": "jsonl", "path": str(tmp_path / "letters")},
            },
            "routes": [
                {"when": {"messagegroup": "Sensors", "context": {"plant": ["9", "p*"]}}, "to": ["bus", "lake"]},
                {"to": ["files"]},
            ],
            "dead_letters": {"sinks": ["letters"]},
        }
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
    assert post(port, "/plants/9/orders/a%20b", b'{"n":1}') == 202
    batch = json.dumps([{**EVENT, "id": "h1", "data": "x"}, {"id": "broken"}]).encode()
    assert post(port, "/plants/9/orders/2", batch, BATCH) == 202
    assert post(port, "/plants/9/orders/3", b"{not json", "application/cloudevents+json") == 202


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
    files = [json.loads(line) for path in (folder / "files").glob("*.jsonl") for line in path.read_text().splitlines()]
    by_type = {line["cloudevent"]["type"]: line for line in files}
    assert set(by_type) == {"temperature", "order"}
    assert by_type["order"]["cloudevent"]["subject"] == "a b"
    assert by_type["order"]["cloudevent"]["data"] == {"n": 1}
    assert by_type["order"]["context"] == {"plant": "9", "number": "a b"}
    assert by_type["temperature"]["context"] == {"plant": "elsewhere"}
    letters = [
        json.loads(line) for path in (folder / "letters").glob("*.jsonl") for line in path.read_text().splitlines()
    ]
    by_reason = {letter["reason"]: letter for letter in letters}
    assert set(by_reason) == {"no-match", "invalid-cloudevent", "undecodable"}
    native = by_reason["no-match"]
    assert base64.b64decode(native["body"]) == b"\xff\x00raw"
    assert native["native"]["key_base64"] == "/g=="
    assert native["native"]["headers"] == [{"name": "kind", "value_base64": "/w=="}, {"name": "kind", "value": "two"}]
    assert native["nearest"][0]["message"] == "/messagegroups/Sensors/messages/temperature"
    assert base64.b64decode(by_reason["invalid-cloudevent"]["body"]) == b'{"id": "broken"}'
    assert base64.b64decode(by_reason["undecodable"]["body"]) == b"{not json"


def topic_lines(bootstrap: str, topic: str) -> list[tuple[str, str | None]]:
    """Return the subject (or id) and key of all messages of a topic, in order of the subject."""
    found = read_all(bootstrap, topic)
    return sorted((m.header("ce_subject") or m.header("ce_id") or "", m.key.decode() if m.key else None) for m in found)


ONE_WRITE = ("alarm.9", "none.9", "plain", "no-match", "odd.schema-violation", "orders", "cap.a", "cap.b", "dead")


def one_write(source: str, bus: dict[str, Any]) -> dict[str, Any]:
    """Return sinks and routes that are Kafka and binary alone, so that one write has them all.

    Topics are chosen by subject, source and reason, by what a schema says, and up to a cap.
    """
    return {
        "match": {"validate": "never"},
        "sinks": {
            "by": {**bus, "topic": f"{source}.{{subject|none}}.{{context.plant}}", "key": "{source|x}"},
            "strict": {**bus, "topic": f"{source}.{{attributes.kind}}", "missing": "reject"},
            "plain": {**bus, "topic": f"{source}.plain"},
            "why": {**bus, "topic": f"{source}.{{reason}}"},
            "odd": {**bus, "topic": f"{source}.odd.{{reason}}"},
            "orders": {**bus, "topic": f"{source}.orders"},
            "capped": {**bus, "topic": f"{source}.cap.{{context.plant}}", "max_destinations": 2},
            "dead": {**bus, "topic": f"{source}.dead"},
        },
        "routes": [
            {"when": {"context": {"plant": ["a", "b", "c", "d"]}}, "to": ["capped"]},
            {"when": {"messagegroup": "Orders"}, "to": ["orders"]},
            {"when": {"outcome": "dead-letter", "reason": "no-*"}, "to": "why"},
            {"when": {"outcome": "dead-letter", "reason": "schema-*"}, "to": "odd"},
            {"when": {"attributes": {"source": "/plants/9"}}, "to": ["by"], "validate": "always"},
            {"when": {"attributes": {"kind": "?*"}}, "to": ["plain"]},
            {"when": {"attributes": {"source": "/plants/8"}}, "to": ["strict"]},
            {"to": ["plain"]},
        ],
        "dead_letters": {"sinks": ["dead"]},
    }


def send_for_one_write(bootstrap: str, source: str) -> None:
    """Send seven records, of which every route but those of the cap and of orders takes some."""
    head = [("ce_specversion", b"1.0"), ("ce_type", b"temperature"), ("content-type", JSON)]
    nine, eight = ("ce_source", b"/plants/9"), ("ce_source", b"/plants/8")
    structured = json.dumps({**EVENT, "id": "s", "subject": "alarm", "data": {"t": 3}}).encode()
    produce(
        bootstrap,
        source,
        [
            (b"k", b'{"t": 1}', [*head, nine, ("ce_id", b"1"), ("ce_subject", b"alarm")]),
            (None, b'{"t": 1}', [*head, nine, ("ce_id", b"2")]),
            (None, b'{"u": 1}', [*head, nine, ("ce_id", b"3"), ("ce_subject", b"alarm")]),
            (None, b'{"u": 1}', [*head, eight, ("ce_id", b"4"), ("ce_kind", b"loud")]),
            (None, b'{"u": 1}', [*head, eight, ("ce_id", b"5")]),
            (None, structured, [("content-type", b"application/cloudevents+json")]),
            (None, b"raw", []),
        ],
    )


def of_plants(plants: str, first: int) -> bytes:
    """Return a batch of events of plants that are named by a letter, with ids from *first* on."""
    events = [{**EVENT, "id": str(n), "source": f"/plants/{p}", "data": n} for n, p in enumerate(plants, first)]
    return json.dumps(events).encode()


@pytest.mark.full
def test_one_write_has_what_attributes_reasons_and_a_cap_decide_and_keeps_whole_what_a_topic_cannot_take(
    kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    source = topic_factory("lines")
    port = free_ports(1)[0]
    topics = [f"{source}.{name}" for name in ONE_WRITE]
    create_topics(kafka.bootstrap, topics)
    told = catalog(source)
    temperature = told["messagegroups"]["Sensors"]["messages"]["temperature"]
    schema = {"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}
    temperature |= {"dataschemaformat": "JsonSchema/draft-07", "dataschema": schema}
    (router.folder / "c.json").write_text(json.dumps(told))
    lines = {"endpoint": "/endpoints/lines", "bootstrap_servers": kafka.bootstrap}
    router.configure(
        {
            "catalog": {"source": str(router.folder / "c.json")},
            "sources": [lines, {"endpoint": "/endpoints/shop"}],
            "http": {"port": port},
            **one_write(source, {"type": "kafka", "bootstrap_servers": kafka.bootstrap}),
        }
    )
    send_for_one_write(kafka.bootstrap, source)
    router.start()
    large = json.dumps("x" * 1_000_000).encode()
    assert post(port, "/plants/1/orders/1", large) == 202
    assert post(port, "/plants/1/orders/2", b"{}") == 202
    assert post(port, "/plants/9/orders/3", of_plants("abacbd", 10), BATCH) == 202
    wait_until(lambda: router.total("xrouter_records_total") >= 15, LIMIT, lambda: router.log[-3000:])
    # The cap holds for batches to come as well.
    assert post(port, "/plants/9/orders/4", of_plants("ca", 16), BATCH) == 202
    wait_until(lambda: router.total("xrouter_records_total") >= 17, LIMIT, lambda: router.log[-3000:])
    assert router.total("xrouter_records_total", reason="sink-rejected") == 5
    assert router.stop() == 0, router.log[-2000:]
    read = {topic.removeprefix(f"{source}."): topic_lines(kafka.bootstrap, topic) for topic in topics}
    assert read["alarm.9"] == [("alarm", "/plants/9"), ("alarm", "k")]
    assert read["none.9"] == [("2", "/plants/9")]
    assert read["plain"] == [("4", None)]
    assert read["no-match"] == [("", None)]
    assert read["orders"] == [("2", None)]
    assert [[name for name, _ in read[f"cap.{plant}"]] for plant in "ab"] == [["10", "12", "17"], ["11", "14"]]
    assert [m.header("xrouter-reason") for m in read_all(kafka.bootstrap, f"{source}.odd.schema-violation")] == [
        "schema-violation"
    ]
    check_rejected(router, read_all(kafka.bootstrap, f"{source}.dead"), f"{source}.cap", large)


def id_in(letter: Message) -> str:
    """Return the id of the event in a letter; '' when it has no body, since that was spilled."""
    return letter.header("ce_id") or ("" if letter.value is None else str(json.loads(letter.value)["id"]))


def check_rejected(router: RouterProcess, letters: list[Message], capped: str, large: bytes) -> None:
    """What has no topic, what is too large for its topic, and what would go to a topic past the cap."""
    assert {letter.header("xrouter-reason") for letter in letters} == {"sink-rejected"}
    by_id = {id_in(letter): letter for letter in letters}
    details = {name: letter.header("xrouter-detail") or "" for name, letter in by_id.items()}
    past = {name: text for name, text in details.items() if text.startswith("sink capped: ")}
    assert {name: text.partition(": it would be")[0] for name, text in past.items()} == {
        "13": f"sink capped: topic {capped}.c",
        "15": f"sink capped: topic {capped}.d",
        "16": f"sink capped: topic {capped}.c",
    }
    assert all("max_destinations is 2" in text for text in past.values())
    assert "sink strict" in details["5"] and "{attributes.kind}" in details["5"]
    spilled = by_id[""]
    kept = json.loads((router.folder / "state" / (spilled.header("xrouter-spill") or "")).read_text())
    assert kept["body"].encode() == large
    assert kept["native"]["path"] == "/plants/1/orders/1"
    assert len(letters) == len(by_id) == 5
