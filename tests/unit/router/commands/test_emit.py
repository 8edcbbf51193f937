"""Producing: what `emit` makes must match its own definition (MATCHING.md#sending)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bindings.protocols import BINDINGS
from catalog.definitions.constraints import match_candidate_of
from catalog.load import load
from catalog.model import Catalog, Definition
from catalog.record import Record
from catalog.templates import parse_template
from router.cli import run_command_line
from router.commands.emit.producer import MessageProducer, encode_record_line, join_as_batch, require_match
from router.matching.records import RecordMatcher
from tests.support.cases import samples
from tests.support.large_catalog import large_catalog

ROOT = Path(__file__).resolve().parents[4]
NOW = "2026-03-04T05:06:07.008Z"
SALE = "/messagegroups/Market.Tills/messages/Market.Tills.Sale"
PLACED = "/messagegroups/Market.Orders/messages/Market.Orders.Placed"
DOOR = "/messagegroups/Market.ColdChain/messages/Market.ColdChain.DoorOpened"
READING = "/messagegroups/Market.ColdChain/messages/Market.ColdChain.Reading"
MESSAGE = "/messagegroups/G/messages/M"
STUCK = "/messagegroups/Greenhouse/messages/Greenhouse.WindowStuck"


@pytest.fixture(scope="module")
def market() -> Catalog:
    return load([ROOT / "catalog" / "samples"])


def context_of(definition: Definition) -> dict[str, str]:
    """A value for each placeholder; where it is part of a timestamp, what makes that one valid."""
    context: dict[str, str] = {}
    for prop in (*definition.protocoloptions, *definition.envelopemetadata):
        if isinstance(prop.value, str):
            for name in parse_template(prop.value).names:
                context.setdefault(name, "v{n}")
            if prop.type == "timestamp" and parse_template(prop.value).names:
                whole = parse_template(prop.value).is_bare
                context.update(dict.fromkeys(parse_template(prop.value).names, NOW if whole else "2026-03-04"))
    return context


def endpoints_of(catalog: Catalog, xid: str) -> Iterator[str]:
    return (endpoint.xid for endpoint in catalog.endpoints.values() if xid in endpoint.candidates)


def produced(catalog: Catalog, xid: str, **options: Any) -> MessageProducer:
    definition = catalog.definitions[xid]
    return MessageProducer(catalog, xid, context=context_of(definition), seed=7, clock=lambda: NOW, **options)


def ways(catalog: Catalog, definition: Definition) -> Iterator[dict[str, str]]:
    """Every way in which a definition can be produced: protocols that it leaves open, modes, endpoints."""
    target = match_candidate_of(definition, catalog.endpoints.get(definition.group))
    if target is None:
        return
    for protocol in [target.protocol] if target.protocol else BINDINGS:
        modes = (
            ["structured"] if not BINDINGS.get(protocol or "", BINDINGS["HTTP"]).binary else ["binary", "structured"]
        )
        for mode in [*modes, *(["native"] if target.native is not None else [])]:
            yield {"protocol": protocol, "mode": mode}


@pytest.mark.slow
@pytest.mark.parametrize("path", samples(), ids=lambda path: path.name)
def test_each_sample_matches_its_own_definition(path: Path) -> None:
    catalog = load([path])
    for definition in catalog.definitions.values():
        for way in ways(catalog, definition):
            producer = produced(catalog, definition.xid, **way)
            for record in producer.iter_records(3):
                assert record.protocol == way["protocol"], (definition.xid, way)
                require_match(catalog, producer, record)


@pytest.mark.parametrize("path", samples(), ids=lambda path: path.name)
def test_samples_are_clean_and_win_against_all_others_of_their_endpoints(path: Path) -> None:
    catalog = load([path])
    # A sample of an older dialect spells names as that dialect does.
    assert not [each for each in catalog.findings if each.severity != "info" and each.rule != "unusual-name"]
    matcher = RecordMatcher(catalog)
    for xid in catalog.definitions:
        for endpoint in endpoints_of(catalog, xid):
            record = produced(catalog, xid, endpoint=endpoint).make_record()
            assert record.endpoint == endpoint
            (outcome,) = matcher.outcomes([encode_record_line(record)])
            assert (outcome["outcome"], outcome.get("message")) == ("routed", xid), outcome


def test_a_large_catalog_has_what_was_asked_for_and_matches_itself(tmp_path: Path) -> None:
    path = tmp_path / "large.xreg.json"
    path.write_text(json.dumps(large_catalog(50)))
    catalog = load([path])
    assert len(catalog.definitions) >= 50
    assert not [finding for finding in catalog.findings if finding.severity == "error"]
    matcher = RecordMatcher(catalog, endpoint="/endpoints/kafka")
    for xid, definition in catalog.definitions.items():
        if definition.protocol != "HTTP":
            record = produced(catalog, xid, endpoint="/endpoints/kafka").make_record()
            (outcome,) = matcher.outcomes([encode_record_line(record)])
            assert outcome.get("message") == xid, outcome


BINARY: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("KAFKA", {"key": {"type": "binary", "value": "aGVsbG8="}}, {"key": "hello"}),
    ("KAFKA", {"key_base64": {"value": "/wA="}}, {"key_base64": "/wA="}),
    ("KAFKA", {"headers": [{"name": "h", "type": "binary", "value": "/wA="}]}, {}),
    ("MQTT/5.0", {"correlation_data": {"value": "aGVsbG8="}}, {"correlation_data": "aGVsbG8="}),
    (
        "AMQP/1.0",
        {
            "properties": {"user-id": {"value": "aGVsbG9="}, "message-id": {"type": "binary", "value": "aGVsbG8="}},
            "application-properties": {"seal": {"type": "binary", "value": "aGVsbG8="}},
        },
        {
            "properties": {"user-id": {"base64": "aGVsbG8="}, "message-id": {"base64": "aGVsbG8="}},
            "application-properties": {"seal": {"base64": "aGVsbG8="}},
        },
    ),
]


@pytest.mark.parametrize(("protocol", "options", "native"), BINARY)
def test_values_of_type_binary_are_made_as_the_bytes_they_stand_for(
    tmp_path: Path, protocol: str, options: dict[str, Any], native: dict[str, Any]
) -> None:
    body = {"protocol": protocol, "protocoloptions": options}
    (tmp_path / "c.json").write_text(json.dumps({"messagegroups": {"G": {"messages": {"M": body}}}}))
    catalog = load([tmp_path / "c.json"])
    producer = produced(catalog, MESSAGE)
    record = producer.make_record()
    require_match(catalog, producer, record)
    for member, value in native.items():
        found = record.native[member]
        assert (found if isinstance(value, str) else {name: found[name] for name in value}) == value


@pytest.mark.parametrize("status", [{"value": "202"}, {"value": 202}, {"required": True, "type": "integer"}, {}])
def test_a_response_has_a_status_and_no_method(tmp_path: Path, status: dict[str, Any]) -> None:
    body = {"protocol": "HTTP", "protocoloptions": {"status": status, "headers": [{"name": "x-a", "value": "b"}]}}
    listed = {"usage": "consumer", "protocol": "HTTP", "protocoloptions": {"options": {"method": "PUT", "path": "/p"}}}
    tree = {"messagegroups": {"G": {"messages": {"M": body}}}, "endpoints": {"e": {**listed, "messagegroups": ["G"]}}}
    (tmp_path / "c.json").write_text(json.dumps(tree))
    catalog = load([tmp_path / "c.json"])
    for options in ({}, {"endpoint": "/endpoints/e"}):
        producer = produced(catalog, MESSAGE, **options)
        record = producer.make_record()
        require_match(catalog, producer, record)
        assert set(record.native) - {"status"} == {"headers"}
        assert ("status" in record.native) == bool(status)


SCHEMAS: dict[str, tuple[str, Any, str]] = {
    "json": (
        "JsonSchema/draft-07",
        {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        "",
    ),
    "structure": (
        "JsonStructure/draft-02",
        {"name": "M", "type": "object", "properties": {"n": {"type": "int64"}, "d": {"type": "decimal"}}},
        "",
    ),
    "avro": (
        "Avro/1.11",
        {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]},
        "application/vnd.apache.avro",
    ),
    "avro-json": ("Avro/1.11", {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}, "text/json"),
    "proto": ("Protobuf/3", 'syntax = "proto3"; message M { int32 n = 1; }', "application/protobuf"),
}


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
        ({"not": {}}, "MESSAGE#dataschema: "),
        ({"type": "nonsense"}, "MESSAGE#dataschema: this is not a valid JSON schema"),
        ({"$ref": "#/definitions/missing"}, "MESSAGE#dataschema: "),
    ],
)
def test_data_that_is_not_known_to_fit_is_told(tmp_path: Path, schema: Any, told: str) -> None:
    producer = MessageProducer(with_schema(tmp_path, "JsonSchema", schema), MESSAGE, protocol="KAFKA")
    assert producer.make_record().body
    assert producer.payload_doubt.startswith(told.replace("MESSAGE", MESSAGE))


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


def test_a_schema_that_was_not_loaded_is_told(tmp_path: Path) -> None:
    catalog = with_schema(tmp_path, "JsonSchema", None, dataschemauri="https://example.com/schema.json")
    producer = MessageProducer(catalog, MESSAGE, protocol="KAFKA")
    assert msgspec.json.decode(producer.make_record().body or b"") == {"message": "M", "number": 1}
    assert "https://example.com/schema.json" in producer.payload_doubt


def test_the_command_warns_once_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_schema(tmp_path, "JsonSchema", {"type": "array", "not": {}})
    catalog = str(tmp_path / "schema.xreg.json")
    arguments = ("emit", "--catalog", catalog, "--message", MESSAGE, "--protocol", "KAFKA", "--count", "3")
    status = run_command_line(arguments)
    out, err = capsys.readouterr()
    warnings = [line for line in err.splitlines() if line.startswith("warning: the data of")]
    assert (status, len(out.splitlines()), len(warnings)) == (0, 3, 1)
    assert f"{MESSAGE} is not known to fit: {MESSAGE}#dataschema: " in warnings[0]


def test_a_placeholder_has_one_value_percent_encoded_only_in_uri_templates(market: Catalog) -> None:
    context = {"store": "7 a", "till": "2/ü", "receipt": "R 1"}
    record = MessageProducer(market, SALE, mode="native", context=context).make_record()
    assert record.native["path"] == "/stores/7%20a/tills/2%2F%C3%BC/sales"
    assert {"name": "x-receipt", "value": "R 1"} in record.native["headers"]
    (outcome,) = RecordMatcher(market).outcomes([encode_record_line(record)])
    assert outcome["context"] == context


def test_the_running_number_stands_in_context_values(market: Catalog) -> None:
    producer = MessageProducer(market, SALE, context={"store": "7", "till": "2", "receipt": "R{n}"})
    subjects = [header["value"] for record in producer.iter_records(3) for header in record.native["headers"][:1]]
    assert subjects == ["R1", "R2", "R3"]


def test_equal_seeds_give_equal_records(market: Catalog) -> None:
    def lines(seed: int) -> list[bytes]:
        producer = MessageProducer(
            market, PLACED, protocol="KAFKA", context={"store": "7", "order": "1"}, seed=seed, clock=lambda: NOW
        )
        return [encode_record_line(record) for record in producer.iter_records(5)]

    assert lines(1) == lines(1) != lines(2)
    assert len(set(lines(1))) == 5


def test_now_and_valueless_properties_get_valid_values(market: Catalog) -> None:
    producer = produced(market, STUCK, protocol="NATS")
    headers = {header["name"]: header["value"] for header in producer.make_record().native["headers"]}
    assert headers["ce-time"] == NOW
    assert headers["ce-angle"].isdecimal()


def test_the_endpoint_gives_the_address(market: Catalog) -> None:
    shop = produced(market, PLACED, endpoint="/endpoints/webshop").make_record()
    assert (shop.protocol, shop.native["method"], shop.native["path"]) == ("HTTP", "POST", "/events")
    fridge = produced(market, DOOR, endpoint="/endpoints/cold-chain").make_record()
    assert fridge.native["topic"] == "market.cold-chain"


def test_a_batch_holds_each_event(market: Catalog) -> None:
    producer = produced(market, PLACED, endpoint="/endpoints/webshop", mode="structured")
    batch = join_as_batch(list(itertools.islice(producer.iter_records(3), 3)))
    assert batch.native["headers"][-1] == {"name": "content-type", "value": "application/cloudevents-batch+json"}
    assert len(msgspec.json.decode(batch.body or b"")) == 3
    (outcome,) = RecordMatcher(market).outcomes([encode_record_line(batch)])
    assert [event["message"] for event in outcome["events"]] == [PLACED] * 3


def test_the_record_form_is_read_back(market: Catalog) -> None:
    record = produced(market, READING).make_record()
    assert isinstance(record, Record)
    form = json.loads(encode_record_line(record))
    assert set(form) == {"protocol", "native", "body", "time"}


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
