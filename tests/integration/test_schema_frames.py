"""What a router and ``emit`` write begins with the ids that a real schema registry knows the schemas by."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.integration.test_schema_registry import SUBJECTS, Subject, catalog
from tests.support.apicurio import Apicurio
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Front

pytestmark = pytest.mark.broker

LIMIT: Final = 300.0


def headers(kind: str, content_type: str) -> list[tuple[str, str | bytes | None]]:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": kind}
    return [*((f"ce_{name}", text.encode()) for name, text in event.items()), ("content-type", content_type.encode())]


def content_type(subject: Subject) -> str:
    return {"AVRO": "application/vnd.apache.avro", "PROTOBUF": "application/protobuf", "JSON": "application/json"}[
        subject.kind
    ]


def typed_catalog(source: str, servers: str, shaped: str) -> dict[str, Any]:
    """The definitions as CloudEvents, told apart by type, and an endpoint that shapes what is sent."""
    form = catalog(source, servers)
    for name, message in form["messagegroups"]["g"]["messages"].items():
        message.pop("protocol")
        message |= {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": name, "required": True}}}
    options = {"endpoints": [{"uri": f"kafka://{servers}"}], "options": {"topic": shaped}}
    out = {
        "usage": ["producer"],
        "protocol": "KAFKA",
        "protocoloptions": options,
        "messagegroups": ["/messagegroups/g"],
    }
    form["endpoints"]["out"] = out
    return form


def settings(folder: Path, kafka: Kafka, url: str, topic: str, **more: Any) -> dict[str, Any]:
    framed = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "framing": "confluent", "subject_names": "record"}
    return {
        "catalog": {"source": str(folder / "catalog.json"), "network": False},
        "schema_registries": {"lake": {"url": url, "timeout": "5s"}},
        "sources": [{"endpoint": "/endpoints/all"}],
        "sinks": {
            "bus": {**framed, "topic": topic, **more},
            "shaped": {**framed, "endpoint": "/endpoints/out", **more},
            "dead": {"type": "jsonl", "path": str(folder / "dead")},
        },
        "routes": [{"to": ["bus", "shaped"]}],
        "dead_letters": {"sinks": ["dead"]},
        "trigger": "200ms",
    }


def values(kafka: Kafka, topic: str, count: int) -> list[tuple[str, Any]]:
    """Type and value of the first *count* records of a topic."""
    reading = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, **reading})
    consumer.subscribe([topic])
    found: list[tuple[str, Any]] = []

    def enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            kind = dict(message.headers() or [])["ce_type"]
            found.append((str(kind, "ascii") if isinstance(kind, bytes) else "", message.value()))
        return len(found) >= count

    try:
        wait_until(enough, LIMIT, lambda: f"{count} records in {topic}; there are {found}")
    finally:
        consumer.close()
    return found


def test_sinks_write_the_ids_of_schemas(
    apicurio: Apicurio,
    kafka: Kafka,
    topic_factory: TopicFactory,
    router: RouterProcess,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, bus, shaped = topic_factory("in"), topic_factory("bus"), topic_factory("shaped")
    folder = router.folder
    (folder / "catalog.json").write_text(json.dumps(typed_catalog(source, kafka.bootstrap, shaped)))
    router.configure(settings(folder, kafka, apicurio.url, bus))

    # A schema that is not registered is told before anything is sent.
    assert run_command_line(["doctor", str(router.config)]) == 1
    told = capfd.readouterr().out
    assert "fail sink bus schemas: subject " in told
    assert "of schema registry lake does not have the schema of /messagegroups/g/messages/" in told
    router.launch()
    assert router.wait() == 8, router.log[-3000:]
    assert "does not have the schema of /messagegroups/g/messages/" in router.log

    expected: list[tuple[str, bytes]] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for n, subject in enumerate(SUBJECTS):
        ids = [apicurio.register(subject.name, each.schema, subject.kind) for each in subject.versions]
        last = subject.versions[-1]
        head = struct.pack(">bI", 0, ids[-1]) + last.indexes
        kept = struct.pack(">bI", 0, ids[0]) + subject.versions[0].indexes + subject.versions[0].body(7)
        for body, value in ((last.body(n), head + last.body(n)), (kept, kept), (None, None)):
            producer.produce(source, body, headers=headers(subject.message, content_type(subject)))
            if value is not None:
                expected.append((subject.message, value))
    assert producer.flush(60) == 0
    assert run_command_line(["doctor", str(router.config)]) == 0
    assert "ok   sink bus schemas: 5 definitions with the ids of their schemas" in capfd.readouterr().out
    router.start()
    count = len(expected) + len(SUBJECTS)
    for topic in (bus, shaped):
        found = values(kafka, topic, count)
        assert sorted(each for each in found if each[1] is not None) == sorted(expected), topic
    assert router.stop() == 0, router.log[-3000:]
    assert not list((folder / "dead").glob("*.jsonl"))


def test_what_is_missing_is_registered_where_that_is_allowed(
    apicurio: Apicurio, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """A registry that is away, with ids not known yet, holds the batch; then they are kept for ever."""
    source, bus, shaped = topic_factory("in"), topic_factory("bus"), topic_factory("shaped")
    (router.folder / "catalog.json").write_text(json.dumps(typed_catalog(source, kafka.bootstrap, shaped)))
    subject = SUBJECTS[2]
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    with Front(apicurio.url) as front:
        more = {"register_schemas": True, "subject_names": "topic-record"}
        router.configure(settings(router.folder, kafka, front.url, bus, **more))
        front.mood = lambda path: (503, b"")
        producer.produce(source, subject.versions[-1].body(1), headers=headers(subject.message, content_type(subject)))
        assert producer.flush(60) == 0
        router.launch()
        wait_until(lambda: "answers 503" in router.log, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: "answers 503" in json.dumps(router.readiness()), LIMIT, lambda: router.log[-3000:])
        front.mood = lambda path: None
        ((kind, value),) = values(kafka, bus, 1)
        ((_, other),) = values(kafka, shaped, 1)
        assert router.stop() == 0, router.log[-3000:]
        assert value[5:] == other[5:] == subject.versions[-1].indexes + subject.versions[-1].body(1)
        known = ids_in(front, f"{bus}-billing.Bill"), ids_in(front, f"{shaped}-billing.Bill")
        assert known == (struct.unpack(">bI", value[:5])[1], struct.unpack(">bI", other[:5])[1])
        asked = len(front.seen)
        producer.produce(source, subject.versions[-1].body(2), headers=headers(subject.message, content_type(subject)))
        assert producer.flush(60) == 0
        router.start()
        assert values(kafka, bus, 2)[1][1][:5] == value[:5]
        assert router.stop() == 0
        assert not [each for each in front.seen[asked:] if each.startswith("POST")]
    assert kind == subject.message


def ids_in(front: Front, subject: str) -> int:
    import httpx

    number: int = httpx.get(f"{front.url}/subjects/{subject}/versions/latest", timeout=30).json()["id"]
    return number


def test_emit_writes_frames(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    form = catalog("any", "localhost:1")
    versions = form["schemagroups"]["s"]["schemas"]["Ride"]["versions"]["1"]
    versions["labels"] = {"schemaid": "12"}
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps(form))
    words = ["emit", "--catalog", str(file), "--framing", "confluent", "--message"]
    for message, more, head in (
        ("Ride", (), b"\0\0\0\0\x0c"),
        ("Stop", ("--schema-id", "300"), b"\0\0\0\x01\x2c"),
        ("Bill", ("--schema-id", "7"), b"\0\0\0\0\x07\x02\x02"),
        ("Order", ("--schema-id", "7"), b"\0\0\0\0\x07{"),
    ):
        assert run_command_line([*words, message, *more]) == 0
        record = json.loads(capfd.readouterr().out)
        body = record["body"].encode() if "body" in record else base64.b64decode(record["body_base64"])
        assert body.startswith(head), message
    for message, more, told in (
        ("Ride", ("--schema-id", "300"), "protocoloptions.schemaid expected '12', found '300'"),
        ("Order", (), "the schema id of"),
        ("Order", ("--schema-id", "4294967296"), "does not fit into four bytes"),
        ("Order", ("--schema-id", "x"), "does not fit into four bytes"),
    ):
        assert run_command_line([*words, message, *more]) == 1
        assert told in capfd.readouterr().err
    assert run_command_line(["emit", "--catalog", str(file), "--message", "Ride", "--schema-id", "1"]) == 1
    assert "add --framing confluent" in capfd.readouterr().err
