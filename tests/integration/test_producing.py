"""Every definition, out through the sink of its protocol and a real broker, and back in through the source.

What arrives matches its definition, and has each part that was sent, its bytes and types kept (MATCHING.md#sending).
The samples, and one definition of each protocol that has all parts of its table; ``full``: the corpora.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, TopicPartition

from bindings.amqp.values import types_of
from bindings.http.request import HttpRoute
from bindings.parts import BINARY_KIND, Part
from bindings.sending import Outbound
from catalog.findings import DocumentError
from catalog.load import load
from catalog.model import Catalog
from router.settings import load_settings
from router.sinks import Commit, open_sink
from router.sinks.messages.definitions import EndpointComposer, make_composer
from router.sinks.messages.sink import UnsendableMessage, close_publishers, make_event
from tests.conftest import Kafka
from tests.support.amqp import queue_name
from tests.support.cases import samples
from tests.support.corpora import SHARED, documents
from tests.support.gateways import Rows, running, serving
from tests.support.kafka import create_topics
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer, core
from tests.support.qpid import amqp_for_tests
from tests.support.round_trip import OUT, Journey, journey, lost, mismatches, position_of
from tests.support.waiting import wait_until

LIMIT: Final = 300.0
ALL_PARTS: Final = Path(__file__).resolve().parents[1] / "cases" / "producing" / "all-parts.xreg.yaml"
RESPONSES: Final = "protocoloptions.status should be "
"""An HTTP response cannot be sent as a request."""
PARTITIONS: Final = 3
Received = dict[str, tuple[Sequence[Part], bytes | None]]


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    yield
    close_publishers()


def scope() -> list[Any]:
    small = [ALL_PARTS, *samples()]
    whole = documents() if SHARED else small
    return [
        pytest.param(small, id="samples"),
        pytest.param(whole, id="corpora", marks=[pytest.mark.full, pytest.mark.shared]),
    ]


def catalogs(paths: Sequence[Path]) -> Iterator[tuple[str, Catalog]]:
    for number, path in enumerate(paths):
        try:
            yield f"d{number}", load([path])
        except DocumentError:
            continue  # what cannot be read has no definitions; tests of the catalog say which must be


def sink_settings(folder: Path, kind: str, more: Mapping[str, Any]) -> Any:
    path = folder / "router.yaml"
    told = {"sinks": {"out": {"type": kind, "endpoint": OUT, **more}}, "routes": [{"to": "out"}]}
    path.write_text(json.dumps(told))
    return load_settings(path, {}).sinks["out"]


def shaped(settings: Any, sent: Journey) -> Mapping[str, Any]:
    """Return the messages that the sink will make, by position, or why it will make none."""
    composer = make_composer(settings, sent.catalog.endpoints[OUT], sent.catalog)
    assert isinstance(composer, EndpointComposer)
    events = [make_event(row) for row in sent.rows.drop_columns(["time", "received"]).to_pylist()]
    return dict(zip((event.position for event in events), composer.compose(events), strict=True))


def travel(
    folder: Path,
    kind: str,
    protocol: str,
    uri: str,
    paths: Sequence[Path],
    received: Callable[[list[str]], Received],
    *,
    options: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    before: Callable[[set[str]], None] = lambda addresses: None,
) -> None:
    """Send all definitions of these documents, and hold what comes back against them and against what was sent."""
    settings = sink_settings(folder, kind, more or {})
    journeys: list[tuple[str, Journey, Mapping[str, Any]]] = []
    for name, catalog in catalogs(paths):
        sent = journey(catalog, protocol, uri, options or {}, name)
        if sent is not None:
            journeys.append((name, sent, shaped(settings, sent)))
    assert journeys
    before({message.address for _, _, made in journeys for message in _sendable(made).values()})
    for name, sent, made in journeys:
        result = open_sink("out", settings, "events", sent.catalog).write(sent.rows, Commit(name, 1))
        refused = {record.position: record.reason for record in result.refused}
        assert refused.keys() == made.keys() - _sendable(made).keys(), refused
        faults = [reason for reason in refused.values() if RESPONSES not in reason]
        assert not faults, "\n".join(faults)
    came = received([position for _, _, made in journeys for position in _sendable(made)])
    wrong: list[str] = []
    for _, sent, made in journeys:
        messages = _sendable(made)
        mine = {position: came[position] for position in messages}
        wrong += mismatches(sent, mine)
        for position, (parts, body) in mine.items():
            message = messages[position]
            kept = [] if protocol == "MQTT/3.1.1" else list(lost(_carried(message.parts, protocol), parts))
            xid = sent.definitions[position].xid
            wrong += [f"{xid}: {part} was sent, and came as {_named(parts, part.key)}" for part in kept]
            wrong += [f"{xid}: another body"] if (body or b"") != (message.body or b"") else []
            types = {path: told for path, told in types_of(parts).items() if path != "body"}
            wrong += [f"{xid}: {types}"] if types_of(message.parts).items() - types.items() else []
    assert not wrong, "\n".join(wrong[:20])


def _sendable(made: Mapping[str, Any]) -> dict[str, Outbound]:
    return {position: each for position, each in made.items() if not isinstance(each, UnsendableMessage)}


def _carried(parts: Sequence[Part], protocol: str) -> list[Part]:
    """Return the parts that are in the message itself; address and path are held against the definition."""
    away = {"KAFKA": {"topic"}, "HTTP": {"path", "status"}}.get(protocol, set())
    return [part for part in parts if part.key not in away]


def _named(parts: Sequence[Part], key: str) -> list[Part]:
    return [part for part in parts if part.key == key]


def by_position(rows: Rows, expected: list[str]) -> Received:
    """Wait for as many rows, and return them by the position that each tells."""
    wait_until(lambda: len(rows.stored) >= len(expected), LIMIT, lambda: f"{len(expected)}, not {len(rows.stored)}")
    return {position_of(row.properties) or "": (row.properties, row.body) for row in rows.stored}


@pytest.mark.parametrize("paths", scope())
@pytest.mark.parametrize("version", ["5.0", "3.1.1"])
def test_mqtt(tmp_path: Path, version: str, paths: list[Path]) -> None:
    rows = Rows()
    protocol: Any = f"MQTT/{version}"

    def received(expected: list[str]) -> Received:
        if version == "5.0":
            return by_position(rows, expected)
        # MQTT 3.1.1 has no place for a position; one publisher's messages keep their order.
        wait_until(lambda: len(rows.stored) >= len(expected), LIMIT, lambda: f"rows, there are {len(rows.stored)}")
        return {at: (row.properties, row.body) for at, row in zip(expected, rows.stored, strict=True)}

    with (
        Mosquitto(tmp_path / "mosquitto") as broker,
        running(protocol, broker.uri, {"/endpoints/in": "#"}, rows),
    ):
        travel(tmp_path, "mqtt", protocol, broker.uri, paths, received, more={"version": version})


@pytest.mark.parametrize("paths", scope())
def test_nats(tmp_path: Path, paths: list[Path]) -> None:
    rows = Rows()
    with NatsServer(tmp_path / "nats") as server, running("NATS", server.uri, [core(">")], rows):
        plain = {"jetstream": False}  # a stream takes no subject to reply to
        travel(tmp_path, "nats", "NATS", server.uri, paths, lambda expected: by_position(rows, expected), more=plain)


@pytest.mark.parametrize("paths", scope())
def test_amqp(tmp_path: Path, paths: list[Path]) -> None:
    rows, node = Rows(), queue_name()
    # It listens before anything is sent: some definitions give messages a second to live.
    with amqp_for_tests(tmp_path / "qpid") as uri, running("AMQP/1.0", uri, {"/endpoints/in": node}, rows):
        options = {"node": node}
        travel(tmp_path, "amqp", "AMQP/1.0", uri, paths, lambda expected: by_position(rows, expected), options=options)


@contextmanager
def listening(rows: Rows) -> Iterator[str]:
    route = HttpRoute("/endpoints/in", "{any}", ("POST", "PUT", "PATCH", "GET", "DELETE"))
    with serving([route], rows) as gateway:
        yield f"http://127.0.0.1:{gateway.port}/in"
        close_publishers()


@pytest.mark.parametrize("paths", scope())
def test_http(tmp_path: Path, paths: list[Path]) -> None:
    rows = Rows()
    with listening(rows) as url:
        assert urlsplit(url).port
        travel(tmp_path, "http", "HTTP", url, paths, lambda expected: by_position(rows, expected))


@pytest.mark.parametrize("paths", scope())
def test_kafka(kafka: Kafka, tmp_path: Path, paths: list[Path]) -> None:
    topics: set[str] = set()

    def make(addresses: set[str]) -> None:
        create_topics(kafka.bootstrap, addresses, PARTITIONS)
        topics.update(addresses)

    def received(expected: list[str]) -> Received:
        found: Received = {}
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "producing"})
        try:
            consumer.assign([TopicPartition(topic, number, 0) for topic in topics for number in range(PARTITIONS)])

            def all_there() -> bool:
                for record in consumer.consume(1000, 0.5):
                    assert record.error() is None, record.error()
                    parts = [Part("topic", str(record.topic()).encode())]
                    key: Any = record.key()
                    parts += [Part("key", key, BINARY_KIND)] if key is not None else []
                    headers: Any = record.headers() or ()
                    parts += [Part(f"headers.{name}", value) for name, value in headers]
                    found[position_of(parts) or ""] = (parts, record.value())
                return len(found) >= len(expected)

            wait_until(all_there, LIMIT, lambda: f"{len(expected)} records, there are {len(found)}")
        finally:
            consumer.close()
        return found

    travel(tmp_path, "kafka", "KAFKA", kafka.bootstrap, paths, received, before=make)
