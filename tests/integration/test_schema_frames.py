"""What a router and ``emit`` write begins with the ids that a real schema registry knows the schemas by."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from router.cli import run_command_line
from tests.conftest import Kafka, TopicFactory
from tests.integration.test_schema_registry import SUBJECTS, Subject, catalog
from tests.support import plain
from tests.support.apicurio import Apicurio
from tests.support.kafka import Headers, produce, read_all
from tests.support.router import RouterProcess
from tests.support.waiting import wait_until
from tests.support.web import Front

pytestmark = pytest.mark.broker

LIMIT: Final = 300.0


def headers(subject: Subject) -> Headers:
    media = {"AVRO": "application/vnd.apache.avro", "PROTOBUF": "application/protobuf", "JSON": "application/json"}
    return plain.kafka_headers(subject.message, content=media[subject.kind])


def configure(router: RouterProcess, kafka: Kafka, url: str, source: str, shaped: str, **bus: Any) -> None:
    """Have the definitions as CloudEvents, told apart by type, and an endpoint that shapes what is sent."""
    form = catalog(source, kafka.bootstrap)
    for name, message in form["messagegroups"]["g"]["messages"].items():
        message.pop("protocol")
        message |= {"envelope": "CloudEvents/1.0", "envelopemetadata": {"type": {"value": name, "required": True}}}
    uri = f"kafka://{kafka.bootstrap}"
    form["endpoints"]["out"] = plain.endpoint("KAFKA", {"topic": shaped}, "g", uri=uri, usage="producer")
    framed = {"type": "kafka", "bootstrap_servers": kafka.bootstrap, "framing": "confluent", "subject_names": "record"}
    sinks = {"bus": {**framed, **bus}, "shaped": {**framed, **bus, "endpoint": "/endpoints/out"}}
    del sinks["shaped"]["topic"]
    router.configure(
        plain.routed(
            plain.write(router.folder, form),
            {**sinks, **plain.lines(router.folder, "dead")},
            schema_registries={"lake": {"url": url, "timeout": "5s"}},
            sources=[{"endpoint": "/endpoints/all"}],
            trigger="200ms",
        )
    )


def values(kafka: Kafka, topic: str, count: int) -> list[tuple[str, bytes | None]]:
    """Type and value of the records of a topic, once there are as many."""
    found = wait_until(
        lambda: told if len(told := read_all(kafka.bootstrap, topic)) >= count else None, LIMIT, f"records in {topic}"
    )
    return [(each.header("ce_type") or "", each.value) for each in found]


def test_sinks_write_the_ids_of_schemas(
    apicurio: Apicurio,
    kafka: Kafka,
    topic_factory: TopicFactory,
    router: RouterProcess,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, bus, shaped = topic_factory("in"), topic_factory("bus"), topic_factory("shaped")
    configure(router, kafka, apicurio.url, source, shaped, topic=bus)

    # A schema that is not registered is told before anything is sent.
    assert run_command_line(["doctor", str(router.config)]) == 1
    told = capfd.readouterr().out
    assert "fail sink bus schemas: subject " in told
    assert "of schema registry lake does not have the schema of /messagegroups/g/messages/" in told
    router.launch()
    assert router.wait() == 8, router.log[-3000:]
    assert "does not have the schema of /messagegroups/g/messages/" in router.log

    expected: list[tuple[str, bytes]] = []
    for n, subject in enumerate(SUBJECTS):
        ids, last = subject.register(apicurio), subject.versions[-1]
        kept, framed = subject.versions[0].framed(ids[0], 7), last.framed(ids[-1], n)
        produce(kafka.bootstrap, source, [(None, each, headers(subject)) for each in (last.body(n), kept, None)])
        expected += [(subject.message, framed), (subject.message, kept)]
    assert run_command_line(["doctor", str(router.config)]) == 0
    assert "ok   sink bus schemas: 5 definitions with the ids of their schemas" in capfd.readouterr().out
    router.start()
    count = len(expected) + len(SUBJECTS)
    for topic in (bus, shaped):
        found = values(kafka, topic, count)
        assert sorted(each for each in found if each[1] is not None) == sorted(expected), topic
    assert router.stop() == 0, router.log[-3000:]
    assert not plain.lines_of(router.folder / "dead")


def test_what_is_missing_is_registered_where_that_is_allowed(
    apicurio: Apicurio, kafka: Kafka, topic_factory: TopicFactory, router: RouterProcess
) -> None:
    """A registry that is away, with ids not known yet, holds the batch; then they are kept for ever."""
    source, bus, shaped = topic_factory("in"), topic_factory("bus"), topic_factory("shaped")
    subject, last = SUBJECTS[2], SUBJECTS[2].versions[-1]
    with Front(apicurio.url) as front:
        more = {"register_schemas": True, "subject_names": "topic-record"}
        configure(router, kafka, front.url, source, shaped, topic=bus, **more)
        front.mood = lambda path: (503, b"")
        produce(kafka.bootstrap, source, [(None, last.body(1), headers(subject))])
        router.launch()
        wait_until(lambda: "answers 503" in router.log, LIMIT, lambda: router.log[-3000:])
        wait_until(lambda: "answers 503" in json.dumps(router.readiness()), LIMIT, lambda: router.log[-3000:])
        front.mood = lambda path: None
        ((kind, value),) = values(kafka, bus, 1)
        ((_, other),) = values(kafka, shaped, 1)
        assert router.stop() == 0, router.log[-3000:]
        for topic, sent in ((bus, value), (shaped, other)):
            known = httpx.get(f"{front.url}/subjects/{topic}-billing.Bill/versions/latest", timeout=30).json()["id"]
            assert sent == last.framed(known, 1)
        asked = len(front.seen)
        produce(kafka.bootstrap, source, [(None, last.body(2), headers(subject))])
        router.start()
        assert value is not None and (values(kafka, bus, 2)[1][1] or b"")[:5] == value[:5]
        assert router.stop() == 0
        assert not [each for each in front.seen[asked:] if each.startswith("POST")]
    assert kind == subject.message


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
