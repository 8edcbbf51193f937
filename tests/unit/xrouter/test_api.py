"""The library: loading, matching, and messages of client libraries as they are."""

from __future__ import annotations

import doctest
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import proton
import pyarrow as pa
import pytest
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka import KafkaError, Message
from nats.aio.msg import Msg
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark import SparkFiles
from pyspark.cloudpickle import dumps, loads

import xrouter
from catalog.findings import DocumentError
from router.rendering.payloads import PayloadColumns
from xrouter.clients import to_record
from xrouter.columns import OUTCOMES
from xrouter.spark import _decode_batch, _open_columns, demultiplex, payload

ATTRIBUTES: Final = {
    "type": {"value": "garden.moisture"},
    "source": {"type": "uritemplate", "value": "/beds/{bed}"},
}
CATALOG: Final = {
    "messagegroups": {
        "garden": {
            "messages": {
                "Moisture": {"envelope": "CloudEvents/1.0", "envelopemetadata": ATTRIBUTES},
                "Valve": {"protocol": "NATS", "protocoloptions": {"subject": {"value": "valves.{valve}"}}},
            }
        },
        "shed": {
            "messages": {"Valve": {"protocol": "MQTT/5.0", "protocoloptions": {"topic_name": {"value": "v/{n}"}}}}
        },
    },
}
EVENT: Final = {"specversion": "1.0", "id": "1", "type": "garden.moisture", "source": "/beds/7"}
MOISTURE: Final = "/messagegroups/garden/messages/Moisture"


@pytest.fixture(scope="module")
def catalog() -> xrouter.LoadedCatalog:
    return xrouter.load(CATALOG)


LOADED: Final = """
import sys, time
start = time.process_time()
import xrouter
print(time.process_time() - start, *({'pyarrow', 'numpy', 'httpx', 'router', 'catalog'} & set(sys.modules)))
catalog = xrouter.load({'messagegroups': {'g': {'messages': {'M': {'envelope': 'CloudEvents/1.0'}}}}})
assert catalog.match(catalog.emit('M', protocol='KAFKA')).is_routed
import pyarrow
assert catalog.match_arrow(pyarrow.table({'value': [b'{}']})).num_rows == 1
extras = 'pyspark py4j deltalake confluent_kafka paho nats proton httptools sqlalchemy psycopg alembic'
print(*(set(extras.split()) & set(sys.modules)))
"""


@pytest.mark.slow
def test_importing_loads_nothing_else_and_matching_none_of_the_extras() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    seconds, extras = done.stdout.splitlines()
    assert float(seconds) < 0.3
    assert extras == ""


def test_a_catalog_is_loaded_from_all_that_names_one(tmp_path: Path, catalog: xrouter.LoadedCatalog) -> None:
    file = tmp_path / "garden.xreg.json"
    file.write_text(json.dumps(CATALOG))
    assert xrouter.load(file).epoch == xrouter.load(str(tmp_path)).epoch == catalog.epoch
    assert [each.rule for each in xrouter.load({"messagegroups": {"g": {"messages": 1}}}).check()]
    assert "3 definitions" in repr(catalog)
    with pytest.raises(DocumentError, match=r"absent\.json"):
        xrouter.load(tmp_path / "absent.json")
    with pytest.raises(DocumentError, match="no catalog source"):
        xrouter.load()
    assert list(xrouter.load({"messagegroups": {1: {"messages": {"m": {}}}}}).definitions) == [
        "/messagegroups/1/messages/m"
    ]


def test_a_record_is_emitted_and_matches(catalog: xrouter.LoadedCatalog) -> None:
    outcome = catalog.match(catalog.emit("Moisture", protocol="KAFKA", bed=7, seed=1))
    assert outcome.is_routed
    assert (outcome.message, dict(outcome.context)) == (MOISTURE, {"bed": "7"})
    assert outcome.to_cloudevent()["source"] == "/beds/7"
    assert outcome.explain() == f"routed: {MOISTURE} (bed=7)"
    with pytest.raises(KeyError, match="several definitions are called 'Valve'"):
        catalog.emit("Valve")


def test_a_dead_letter_says_why(catalog: xrouter.LoadedCatalog) -> None:
    record = {"protocol": "KAFKA", "native": {"headers": [{"name": "ce_type", "value": "other"}]}}
    outcome = catalog.match(record)
    assert (outcome.outcome, outcome.reason) == ("dead-letter", "no-match")
    assert outcome.explain().startswith("dead letter, no-match: nearest ")
    with pytest.raises(ValueError, match="is not an event"):
        outcome.to_cloudevent()
    broken = catalog.match_many([{"native": {}}, "{", b"[]", "\udc80", "[" * 100_000])
    assert [each.reason for each in broken] == ["undecodable"] * 5
    with pytest.raises(TypeError, match="match takes one"):
        catalog.match_many(record)
    with pytest.raises(TypeError, match="int is not a record"):
        catalog.match(7)
    with pytest.raises(KeyError, match="no endpoint '/endpoints/x'"):
        catalog.match(record, endpoint="/endpoints/x")


def kafka(headers: dict[str, str], value: bytes) -> Message:
    parts: dict[str, Any] = {"topic": "beds", "partition": 2, "offset": 9, "key": b"\xff", "value": value}
    parts["headers"] = [(name, text.encode()) for name, text in headers.items()]
    return Message(**parts, timestamp=(1, 1790000000000))


def mqtt() -> MQTTMessage:
    message = MQTTMessage(topic=b"v/3")
    message.payload, message.qos, message.retain = b"{}", 1, True
    message.properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    message.properties.UserProperty = [("a", "b")]
    message.properties.CorrelationData = b"\x01"
    return message


def nats() -> Msg:
    return Msg(_client=None, subject="valves.3", reply="inbox.1", data=b"{}", headers={"a": "b"})  # type: ignore[arg-type]


def amqp() -> proton.Message:
    properties = {f"cloudEvents:{name}": text for name, text in EVENT.items()}
    return proton.Message(body=b"{}", inferred=True, properties=properties, content_type="application/json")


MESSAGES: Final = {
    "kafka": (kafka({f"ce_{name}": text for name, text in EVENT.items()}, b"{}"), MOISTURE),
    "mqtt": (mqtt(), "/messagegroups/shed/messages/Valve"),
    "nats": (nats(), "/messagegroups/garden/messages/Valve"),
    "amqp": (amqp(), MOISTURE),
    "cloudevent": (CloudEvent({**EVENT, "time": datetime(2026, 1, 2, tzinfo=UTC)}, {"percent": 4}), MOISTURE),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_clients_are_matched_as_they_are(name: str, catalog: xrouter.LoadedCatalog) -> None:
    message, expected = MESSAGES[name]
    outcome = catalog.match(message)
    assert outcome.message == expected, outcome
    assert outcome.to_cloudevent()["type"]


def test_a_body_may_be_bytes(catalog: xrouter.LoadedCatalog) -> None:
    headers = {"content-type": "text/plain", **{f"ce_{name}": text for name, text in EVENT.items()}}
    native = {"headers": [{"name": name, "value": text} for name, text in headers.items()]}
    for body, member in ((b"text", {"data": "text"}), (b"\xff", {"data_base64": "/w=="})):
        told = catalog.match({"protocol": "KAFKA", "native": native, "body": body}).to_cloudevent()
        assert {**told, **member} == told, told


def test_data_that_is_an_event_too_stays_whole(catalog: xrouter.LoadedCatalog) -> None:
    inner = {**EVENT, "id": "2", "data": 1}
    record = to_record(kafka({f"ce_{name}": text for name, text in EVENT.items()}, json.dumps(inner).encode()))
    assert catalog.match(record.to_json()).to_cloudevent() == {
        **EVENT,
        **catalog.match(record.to_json()).attributes,
        "data": inner,
    }


def test_a_message_of_jetstream_has_its_place_as_id(catalog: xrouter.LoadedCatalog) -> None:
    message = nats()
    message.reply = "$JS.ACK.S.C.1.7.3.1790000000000000000.0"
    told = to_record(message).to_json()
    assert told["native"] == {
        "subject": "valves.3",
        "headers": [{"name": "a", "value": "b"}],
        "stream": "S",
        "sequence": 7,
    }
    event = catalog.match(message).to_cloudevent()
    assert ("7" in event["id"], event["time"]) == (True, "2026-09-21T14:13:20Z"), event


def test_a_message_that_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="an error: KafkaError"):
        to_record(Message(topic="beds", error=KafkaError(KafkaError._PARTITION_EOF)))
    # A consumer with a deserializer gives what it made of the bytes.
    with pytest.raises(TypeError, match="bytes-like"):
        to_record(Message(topic="beds", key=7, value=b"", timestamp=(0, 0)))  # type: ignore[arg-type]


def test_arrow_columns_are_matched(catalog: xrouter.LoadedCatalog) -> None:
    import pyarrow as pa

    headers = [{"key": f"ce_{name}", "value": text.encode()} for name, text in EVENT.items()]
    table = pa.table({"value": pa.array([b"{}", b"{}"]), "headers": [headers, []]})
    rows = catalog.match_arrow(table).to_pylist()
    assert [row["outcome"] for row in rows] == ["routed", "dead-letter"]
    assert rows[0]["context"] == [("bed", "7")]
    assert pickle.loads(pickle.dumps(catalog.column_matcher())).match_table(table).to_pylist() == rows
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us")}
    unknown = {name: pa.array([None, None], each) for name, each in types.items()}
    assert catalog.match_arrow(pa.table({**unknown, **table.to_pydict()})).to_pylist() == rows
    with pytest.raises(ValueError, match="the column value is missing; there are key"):
        catalog.match_arrow(pa.table({"key": [b"k"]}))
    with pytest.raises(ValueError, match="the column partition is string, and must be int32"):
        catalog.match_arrow(pa.table({"value": [b"k"], "partition": ["x"]}))


# The docstrings of the package: examples that run.


ROOT: Final = Path(__file__).resolve().parents[3]
MODULES: Final = sorted(f"xrouter.{path.stem}" for path in (ROOT / "xrouter").glob("[!_]*.py"))


@pytest.mark.parametrize("name", ["xrouter", *MODULES])
def test_the_examples_of_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0
    undocumented = [
        each.name
        for each in doctest.DocTestFinder(exclude_empty=False).find(module)
        if not any(part.startswith("_") for part in each.name.split(".")) and not each.docstring
    ]
    assert not undocumented


def test_the_parts_of_messages_are_kept() -> None:
    told = to_record(MESSAGES["kafka"][0]).to_json()
    assert told["native"]["key_base64"] == "/w=="
    assert (told["native"]["offset"], told["native"]["timestamp"]) == (9, 1790000000000)
    told = to_record(MESSAGES["mqtt"][0]).to_json()
    assert told["native"]["user_properties"] == [{"name": "a", "value": "b"}]
    assert (told["native"]["correlation_data"], told["native"]["retain"]) == ("AQ==", True)
    assert to_record(MESSAGES["nats"][0]).to_json()["native"]["reply-to"] == "inbox.1"


# DataFrames that cannot be demultiplexed, and executors that lack the package.


KAFKA: Final = ["key", "value", "topic", "partition", "offset", "timestamp"]
NUMBERS: Final = {"type": "object", "properties": {"n": {"type": "integer"}}}
TYPED: Final = "/messagegroups/g/messages/Typed"
TREE: Final = {
    "messagegroups": {
        "g": {
            "messages": {
                "Plain": {},
                "Typed": {"dataschemaformat": "JsonSchema/draft-07", "dataschema": NUMBERS},
            }
        }
    }
}


@dataclass
class Frame:
    """Stands for a DataFrame: it has columns, and keeps what it is to be mapped with."""

    columns: list[str]
    mapped: list[Callable[[Iterator[Any]], Iterator[Any]]] = field(default_factory=list)

    def selectExpr(self, *columns: str) -> Frame:
        return self

    def mapInArrow(self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Frame:
        self.mapped.append(loads(dumps(function)))  # type: ignore[no-untyped-call]
        return self


@pytest.fixture(scope="module")
def typed() -> xrouter.LoadedCatalog:
    return xrouter.load(TREE)


@pytest.fixture
def mapped(typed: xrouter.LoadedCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Map no rows as an executor does."""
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    frame = Frame([*KAFKA])
    demultiplex(frame, typed)  # type: ignore[arg-type]
    return lambda: list(frame.mapped[0](iter([])))


def test_what_cannot_be_demultiplexed_is_told(typed: xrouter.LoadedCatalog) -> None:
    frame: Any = Frame(["id"])
    with pytest.raises(ValueError, match=r"rows must have the columns key, value, .*; these have id"):
        demultiplex(frame, typed)
    with pytest.raises(KeyError, match="no endpoint '/endpoints/x'"):
        demultiplex(Frame([*KAFKA]), typed, endpoint="/endpoints/x")  # type: ignore[arg-type]
    for message, told in {"Type": "no definition 'Type'", "*/Typ": "no definition matches '\\*/Typ'"}.items():
        with pytest.raises(KeyError, match=told):
            payload(frame, typed, message)
    with pytest.raises(ValueError, match="/messages/Plain has no typed columns: it names no schema"):
        payload(frame, typed, "Plain")


def test_executors_without_the_package_are_told(
    mapped: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mapped() == []
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "0.0.1")
        with pytest.raises(RuntimeError, match=r"the executors have xregistry-router 0\.0\.1, this program "):
            mapped()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RuntimeError, match="the Python of the executors lacks xregistry-router: install "):
        mapped()


def test_large_arrow_types_are_matched(typed: xrouter.LoadedCatalog) -> None:
    types = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
    headers = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    rows = pa.RecordBatch.from_pylist(
        [{"value": b'{"n": 3}', "topic": "t", "partition": 0, "offset": 1, "timestamp": 1, "headers": []}],
        pa.schema(
            [
                *types.items(),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.int64()),
                ("headers", headers),
            ]
        ),
    )
    outcomes = typed.column_matcher().match_batch("kafka", rows)
    assert outcomes.column("position").to_pylist() == ["t-0-1"]
    wide = {"data": pa.large_binary(), "position": pa.large_string()}
    given = {
        name: outcomes.column(name).cast(wide.get(name, kind.type))
        for name, kind in zip(OUTCOMES.names, OUTCOMES, strict=True)
    }
    columns = _open_columns(pickle.dumps(({TYPED: typed.definitions[TYPED]}, typed.catalog.schemas)))
    given["message"] = pa.array([TYPED])
    schema = pa.schema([OUTCOMES.field("position"), ("payload", payload_type(columns)), ("undecoded", pa.string())])
    assert _decode_batch(columns, schema, pa.RecordBatch.from_pydict(given)).to_pylist() == [
        {"position": "t-0-1", "payload": {"n": 3}, "undecoded": None}
    ]


def payload_type(columns: PayloadColumns) -> pa.DataType:
    column = columns.get(TYPED)
    assert column is not None
    return column.type
