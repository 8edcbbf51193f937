"""Producing: what `emit` makes must match its own definition (MATCHING.md#sending)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from catalog.load import load
from catalog.model import Catalog
from catalog.record import Record
from router.commands.emit.producer import MessageProducer, encode_record_line, join_as_batch, require_match
from router.matching.records import RecordMatcher
from tests.support.cases import read_cases

ROOT = Path(__file__).resolve().parents[4]
NOW = "2026-03-04T05:06:07.008Z"
PLACED = "/messagegroups/Market.Orders/messages/Market.Orders.Placed"
MESSAGE = "/messagegroups/G/messages/M"


@pytest.fixture(scope="module")
def market() -> Catalog:
    return load([ROOT / "catalog" / "samples"])


def produced(catalog: Catalog, xid: str, **options: Any) -> MessageProducer:
    return MessageProducer(
        catalog, xid, context={"store": "v{n}", "order": "v{n}"}, seed=7, clock=lambda: NOW, **options
    )


SCHEMAS: Final = read_cases(ROOT / "tests" / "cases" / "schemas" / "samples.yaml")["of each family"]


def with_schema(tmp_path: Path, form: str, schema: Any, **attributes: Any) -> Catalog:
    message = {"envelope": "CloudEvents/1.0", "dataschemaformat": form, "dataschema": schema, **attributes}
    path = tmp_path / "schema.xreg.json"
    path.write_text(json.dumps({"messagegroups": {"G": {"messages": {"M": message}}}}))
    return load([path])


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("family", SCHEMAS)
def test_data_is_what_the_schema_asks_in_every_family(tmp_path: Path, family: str, mode: str) -> None:
    form, schema, content_type = SCHEMAS[family]
    declared = {"datacontenttype": content_type} if content_type else {}
    catalog = with_schema(tmp_path, form, schema, **declared)

    def records() -> list[Record]:
        producer = MessageProducer(catalog, MESSAGE, protocol="KAFKA", mode=mode, seed=5, clock=lambda: NOW)
        made = [(producer.make_record(), producer.payload_doubt) for _ in range(5)]
        assert not [doubt for _, doubt in made if doubt]
        return [record for record, _ in made]

    made = records()
    assert made == records()
    assert len({record.body for record in made}) > 1
    matcher = RecordMatcher(catalog, group="/messagegroups/G", validation="always")
    for outcome in matcher.outcomes(encode_record_line(record) for record in made):
        assert (outcome["outcome"], outcome.get("message")) == ("routed", MESSAGE), outcome


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"$ref": "#"}, "a reference leads to itself"),
        ({"type": "array", "minItems": 200, "items": {"type": "string", "not": {"pattern": "^(?=z)"}}}, ""),
        ({"type": "array", "minItems": 200, "items": {"type": "string", "not": {"pattern": "^(?=[a-y])"}}}, "/0: "),
    ],
)
def test_data_that_is_costly_to_check_is_checked_within_limits(tmp_path: Path, schema: Any, told: str) -> None:
    """The validator refuses to judge such bodies in its own process, which once ended the command in a traceback."""
    producer = MessageProducer(with_schema(tmp_path, "JsonSchema", schema), MESSAGE, protocol="KAFKA")
    assert producer.make_record().body
    assert told in producer.payload_doubt
    assert bool(producer.payload_doubt) is bool(told)


def test_equal_seeds_give_equal_records(market: Catalog) -> None:
    def lines(seed: int) -> list[bytes]:
        producer = MessageProducer(
            market, PLACED, protocol="KAFKA", context={"store": "7", "order": "1"}, seed=seed, clock=lambda: NOW
        )
        return [encode_record_line(record) for record in producer.iter_records(5)]

    assert lines(1) == lines(1) != lines(2)
    assert len(set(lines(1))) == 5


def test_a_batch_holds_each_event(market: Catalog) -> None:
    producer = produced(market, PLACED, endpoint="/endpoints/webshop", mode="structured")
    batch = join_as_batch(list(itertools.islice(producer.iter_records(3), 3)))
    assert batch.native["headers"][-1] == {"name": "content-type", "value": "application/cloudevents-batch+json"}
    assert len(msgspec.json.decode(batch.body or b"")) == 3
    (outcome,) = RecordMatcher(market).outcomes([encode_record_line(batch)])
    assert [event["message"] for event in outcome["events"]] == [PLACED] * 3


@pytest.mark.parametrize("base_uri", ["", "https://set.example/api/"])
@pytest.mark.parametrize("protocol", ["HTTP", "AMQP/1.0", "MQTT/5.0", "MQTT/3.1.1", "KAFKA", "NATS"])
def test_dataschema_is_absolute_or_left_out(tmp_path: Path, protocol: str, base_uri: str) -> None:
    reference = "/schemagroups/S/schemas/s"
    message = {
        "envelope": "CloudEvents/1.0",
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschemauri": f"#{reference}",
    }
    tree = {
        "messagegroups": {"G": {"messages": {"M": message}}},
        "schemagroups": {"S": {"schemas": {"s": {"format": "JsonSchema/draft-07", "schema": {"type": "object"}}}}},
    }
    (tmp_path / "catalog.json").write_text(json.dumps(tree))
    catalog = load([tmp_path / "catalog.json"], base_uri=base_uri)
    producer = produced(catalog, MESSAGE, protocol=protocol)
    record = producer.make_record()
    require_match(catalog, producer, record)
    (outcome,) = RecordMatcher(catalog).decide([encode_record_line(record)])
    assert outcome["cloudevent"].get("dataschema") == (f"{base_uri.rstrip('/')}{reference}" if base_uri else None)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, br", "identity"])
@pytest.mark.parametrize("mode", ["binary", "native"])
def test_data_are_in_the_content_coding_that_the_definition_names(tmp_path: Path, mode: str, coding: str) -> None:
    headers = [{"name": "Content-Encoding", "value": coding}]
    options = {"protocol": "HTTP", "protocoloptions": {"method": "POST", "headers": headers}}
    catalog = with_schema(tmp_path, "JsonSchema/draft-07", {"type": "object", "required": ["x"]}, **options)
    producer = MessageProducer(catalog, MESSAGE, mode=mode, seed=7)
    record = producer.make_record()
    assert not producer.payload_doubt
    assert (record.body or b"").startswith(b"{") is (coding == "identity")
    require_match(catalog, producer, record)
    matcher = RecordMatcher(catalog, group="/messagegroups/G", validation="always")
    (outcome,) = matcher.decide([encode_record_line(record)])
    assert outcome["outcome"] == "routed", outcome
    broken = json.loads(encode_record_line(record)) | {"body": "{}", "body_base64": None}
    (outcome,) = matcher.decide([json.dumps(broken)])
    assert outcome["reason"] == "schema-violation", outcome
