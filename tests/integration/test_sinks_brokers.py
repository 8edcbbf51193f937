"""Message sinks against real brokers: what they send, our own gateways read back as it was; outages and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bindings.events import to_json_members
from bindings.gateways import Tls
from bindings.http.request import HttpRoute
from bindings.parts import InboxRow, first_part
from bindings.protocols import BINDINGS
from catalog.load import load
from catalog.model import Catalog
from router.errors import SinkError
from router.settings import load_settings
from router.sinks import ArrowSink, Commit, open_sink
from router.sinks.messages.sink import MESSAGE, close_publishers
from tests.conftest import Kafka, TopicFactory
from tests.support import plain
from tests.support.amqp import queue_name
from tests.support.gateways import Rows, running, serving
from tests.support.kafka import read_all
from tests.support.mqtt import Mosquitto
from tests.support.nats import NatsServer, core, make_stream, stream
from tests.support.ports import Authority
from tests.support.qpid import amqp_for_tests
from tests.support.waiting import wait_until
from tests.support.web import Http2Target

LIMIT = 300.0
E = "/endpoints/e"
FIRST = Commit("app", 1)
MODES = ("binary", "structured")
HEAD: Mapping[str, Any] = {
    "source": "/plants/p1",
    "specversion": "1.0",
    "type": "T",
    "message": "/messagegroups/G/messages/M",
    "endpoint": "/endpoints/in",
    "epoch": "e",
    "protocol": "HTTP",
    "native": "{}",
}
CASES: Sequence[Mapping[str, Any]] = (
    {"datacontenttype": "application/json", "data": b'{"a": 1.00, "b":"\\u00e9"}'},
    {"datacontenttype": "text/plain; charset=utf-8", "data": "é\r\n".encode()},
    {"datacontenttype": "image/png", "data": b"\xff\x00"},
    {"subject": 'a "b" %41 \u20ac', "dataschema": "http://h/s", "time_text": "2026-01-02T03:04:05.123456789+02:00"},
    {"type": "odd/+#.*> type", "data": b"{}"},
)


def table(*more: Mapping[str, Any]) -> pa.Table:
    """Return the rows of all cases, and more."""
    made = [
        {
            **dict.fromkeys(MESSAGE.names),
            **HEAD,
            "id": f"i{n}",
            "position": f"t-0-{n}",
            "extensions": [("seq", str(n)), ("n", "-7"), ("dry", "true")],
            "typed": "n dry",
            "context": [("line", "é/1")],
            **case,
        }
        for n, case in enumerate((*CASES, *more))
    ]
    return pa.Table.from_pylist(made, MESSAGE)


def sink(folder: Path, settings: Mapping[str, Any], catalog: Catalog | None = None) -> ArrowSink:
    """Open a sink as a router would."""
    path = folder / "router.yaml"
    path.write_text(json.dumps({"sinks": {"out": settings}, "routes": [{"to": "out"}]}))
    return open_sink("out", load_settings(path, {}).sinks["out"], "events", catalog)


def check(rows: Sequence[InboxRow], mode: str) -> None:
    """Each event is there once, as it was."""
    assert len(rows) == len(CASES)
    for number, (row, case) in enumerate(zip(rows, CASES, strict=True)):
        envelope = BINDINGS[row.protocol].read_envelope(row.properties, row.body, lambda: True)
        assert envelope.mode == mode
        expected: dict[str, Any] = {"specversion": "1.0", "id": f"i{number}", "source": "/plants/p1", "type": "T"}
        typed = mode == "structured" or row.protocol == "AMQP/1.0"
        expected |= {"seq": str(number), "n": -7 if typed else "-7", "dry": True if typed else "true"}
        expected |= {key.replace("_text", ""): text for key, text in case.items() if key != "data"}
        assert to_json_members(envelope.attributes) == expected
        assert (envelope.data or None) == case.get("data")
        assert not envelope.faults


def stored(rows: Rows, count: int) -> list[InboxRow]:
    """Wait for rows, and return them in the order of their events."""
    wait_until(lambda: len(rows.stored) >= count, LIMIT, lambda: f"{count} rows, there are {len(rows.stored)}")
    return rows.stored


def lineage(row: InboxRow, key: str) -> str | None:
    """Return the text of one part."""
    part = first_part(row.properties, key)
    return part.text if part else None


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    yield
    close_publishers()


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), extra="max_packet_size 3000\n") as each:
        yield each


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats"), max_payload=3000) as each:
        yield each


LARGE = {"data": b"x" * 4000, "position": "t-0-99"}


@pytest.mark.parametrize(("version", "mode"), [("5.0", "binary"), ("5.0", "structured"), ("3.1.1", "structured")])
def test_mqtt(mosquitto: Mosquitto, tmp_path: Path, version: str, mode: str) -> None:
    rows = Rows()
    topic = f"{version}-{mode}/{{messagegroup}}/{{type}}"
    settings: dict[str, Any] = {"type": "mqtt", "uri": mosquitto.uri, "topic": topic, "mode": mode, "version": version}
    if version == "3.1.1":
        settings["max_body"] = 3000  # such a broker does not tell its limit: it ends the connection
    with running("MQTT/5.0", mosquitto.uri, {E: f"{version}-{mode}/#"}, rows, client_id=f"{version}-{mode}"):
        result = sink(tmp_path, settings).write(table(LARGE), FIRST)
        check(stored(rows, len(CASES)), mode)
    assert [record.position for record in result.refused] == ["t-0-99"]
    assert lineage(rows.stored[4], "topic_name") == f"{version}-{mode}/G/odd%2F%2B%23.%2A%3E%20type"
    expected = '{"line":"é/1"}' if version == "5.0" else None
    assert lineage(rows.stored[0], "user_properties.xrouter-context") == expected


def test_a_broker_that_is_away_gets_each_message_once_it_is_back(mosquitto: Mosquitto, tmp_path: Path) -> None:
    rows = Rows()
    settings = {"type": "mqtt", "uri": mosquitto.uri, "topic": "away", "timeout": "2s"}
    target = sink(tmp_path, settings)
    assert target.write(table(), FIRST).rows == len(CASES)
    mosquitto.stop()
    with pytest.raises(SinkError, match="sink out: 5 of 5 messages were not confirmed"):
        target.write(table(), Commit("app", 2))
    mosquitto.start()
    with running("MQTT/5.0", mosquitto.uri, {E: "away"}, rows, client_id="away"):
        assert target.write(table(), Commit("app", 2)).rows == len(CASES)
        check(stored(rows, len(CASES)), "binary")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("jetstream", [False, True])
def test_nats(nats: NatsServer, tmp_path: Path, mode: str, jetstream: bool) -> None:
    rows = Rows()
    subject = f"{'js' if jetstream else 'core'}.{mode}"
    settings = {"type": "nats", "uri": nats.uri, "subject": subject + ".{type}", "mode": mode, "jetstream": jetstream}
    if jetstream:
        make_stream(nats)
    taken = stream(f"{subject}.>", durable=f"taker-{mode}") if jetstream else core(f"{subject}.>")
    with running("NATS", nats.uri, [taken], rows):
        target = sink(tmp_path, settings)
        result = target.write(table(LARGE), FIRST)
        check(stored(rows, len(CASES)), mode)
        if jetstream:
            # A crash forgets what was sent: the stream knows it by its id.
            sink(tmp_path, {**settings, "timeout": "29s"}).write(table(), FIRST)
            last = table({"id": "last", "position": "t-0-100"}).slice(len(CASES))
            target.write(last, Commit("app", 2))
            assert len(stored(rows, len(CASES) + 1)) == len(CASES) + 1
    assert [record.position for record in result.refused] == ["t-0-99"]
    assert lineage(rows.stored[4], "subject") == f"{subject}.odd%2F%2B%23%2E%2A%3E%20type"
    assert lineage(rows.stored[0], "headers.xrouter-message") == "/messagegroups/G/messages/M"


def test_a_subject_without_a_stream_holds_the_batch(nats: NatsServer, tmp_path: Path) -> None:
    settings = {"type": "nats", "uri": nats.uri, "subject": "nobody.{type}", "timeout": "3s"}
    with pytest.raises(SinkError, match="no stream has the subject"):
        sink(tmp_path, settings).write(table(), FIRST)


@pytest.fixture(scope="module")
def qpid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with amqp_for_tests(tmp_path_factory.mktemp("qpid")) as uri:
        yield uri


@pytest.mark.parametrize("mode", MODES)
def test_amqp(qpid: str, tmp_path: Path, mode: str) -> None:
    rows, node = Rows(), queue_name()
    settings = {"type": "amqp", "uri": qpid, "node": node, "mode": mode}
    assert sink(tmp_path, settings).write(table(), FIRST).rows == len(CASES)
    with running("AMQP/1.0", qpid, {E: node}, rows):
        check(stored(rows, len(CASES)), mode)
    assert json.loads(lineage(rows.stored[0], "application-properties.xrouter-lineage") or "")["position"] == "t-0-0"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", ["1.1", None])
def test_http_with_tls(tmp_path: Path, mode: str, version: str | None) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("server", alternatives="DNS:localhost,IP:127.0.0.1")
    rows = Rows()
    tls = Tls(None, pair.certificate, pair.key)
    with serving([HttpRoute(E, "/in/{type}")], rows, tls=tls) as gateway:
        told = {"type": "http", "url": f"https://localhost:{gateway.port}/in/{{type}}", "mode": mode, "timeout": "10s"}
        told |= {"version": version} if version else {}
        with pytest.raises(SinkError, match="certificate verify failed"):
            sink(tmp_path, told).write(table(), FIRST)
        assert not rows.stored
        trusted = {**told, "tls": {"ca": str(authority.certificate)}}
        assert sink(tmp_path, trusted).write(table(), FIRST).rows == len(CASES)
        close_publishers()
    check(rows.stored, mode)


@pytest.mark.parametrize("mode", MODES)
def test_http_2(tmp_path: Path, mode: str) -> None:
    authority = Authority(tmp_path / "tls")
    pair = authority.sign("server", alternatives="DNS:localhost,IP:127.0.0.1")
    with Http2Target(pair.certificate, pair.key) as target:
        told: dict[str, Any] = {"type": "http", "mode": mode, "version": "2", "timeout": "10s"}
        told |= {"url": f"https://localhost:{target.port}/in/{{type}}", "tls": {"ca": str(authority.certificate)}}
        assert sink(tmp_path, told).write(table(), FIRST).rows == len(CASES)
        close_publishers()
    binary = mode == "binary"
    assert len(target.taken) == len(CASES)
    assert all(request.headers[":method"] == "POST" for request in target.taken)
    assert all(("ce-id" in request.headers) == binary for request in target.taken)
    images = [bytes(request.body) for request in target.taken if request.headers.get("content-type") == "image/png"]
    assert images == ([b"\xff\x00"] if binary else [])


def test_kafka_shaped_by_an_endpoint(kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path) -> None:
    topic = topic_factory("out")
    options = {"key": {"value": "{plant}"}, "headers": [{"name": "line", "value": "{line}"}]}
    message = plain.event("T", protocol="KAFKA", protocoloptions=options)
    message["envelopemetadata"]["source"] = {"value": "/plants/{plant}", "type": "uritemplate"}
    endpoint = plain.endpoint("KAFKA", {"topic": topic}, "G", uri=kafka.bootstrap, usage="producer")
    catalog = load([plain.write(tmp_path, plain.catalog({"out": endpoint}, G={"T": message}))])
    target = sink(tmp_path, {"type": "kafka", "endpoint": "/endpoints/out"}, catalog)
    result = target.write(table({"data": b"x" * 2_000_000, "position": "t-0-99"}), FIRST)
    assert [record.position for record in result.refused] == ["t-0-4", "t-0-99"]
    assert "no definition of type 'odd/+#.*> type'" in result.refused[0].reason
    records = read_all(kafka.bootstrap, topic)
    assert [(record.key, record.value) for record in records] == [(b"p1", case.get("data")) for case in CASES[:4]]
    assert {(record.header("line"), record.header("ce_type")) for record in records} == {("é/1", "T")}
