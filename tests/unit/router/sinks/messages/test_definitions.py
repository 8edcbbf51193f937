"""Messages shaped by the definitions of a producer endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from catalog.load import load
from catalog.model import Catalog
from router.errors import SinkError
from router.settings import load_settings
from router.settings.sinks.messages import NatsSink
from router.sinks.contract import check_endpoints
from router.sinks.messages.definitions import make_composer
from router.sinks.messages.sink import HeaderForwarder, RoutedEvent, UnsendableMessage
from tests.support.composed import OneByOne

NAMED = {"specversion": "1.0", "id": "1", "source": "/plants/p1", "type": "T"}


def catalog(tmp_path: Path, endpoint: dict[str, Any], **messages: Any) -> Catalog:
    for message in messages.values():
        message.setdefault("envelope", "CloudEvents/1.0")
    document = {
        "messagegroups": {"G": {"messages": messages}},
        "endpoints": {"out": {"usage": "producer", "messagegroups": ["/messagegroups/G"], **endpoint}},
    }
    (tmp_path / "c.json").write_text(json.dumps(document))
    return load([tmp_path / "c.json"])


def composer(found: Catalog, **options: Any) -> OneByOne:
    endpoint = found.endpoints["/endpoints/out"]
    protocol = endpoint.protocol or ""
    return OneByOne(found, endpoint, BINDINGS[protocol], **options)


def event(context: dict[str, str] | None = None, message: str = "/m", **attributes: str) -> RoutedEvent:
    return RoutedEvent({**NAMED, **attributes}, b"{}", message, "/endpoints/in", "e", "t-0-1", context or {})


def parts(made: Outbound) -> dict[str, str | None]:
    return {part.key: part.text for part in made.parts}


def test_mqtt_topics_properties_and_options(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        {
            "protocol": "MQTT/5.0",
            "protocoloptions": {
                "endpoints": [{"uri": "mqtt://broker"}],
                "options": {"topic": "unused", "qos": 1, "retain": True},
            },
        },
        T={
            "envelopemetadata": {"type": {"value": "T"}, "source": {"value": "/plants/{plant}", "type": "uritemplate"}},
            "protocol": "MQTT/5.0",
            "protocoloptions": {
                "topic_name": {"value": "plants/{plant}/{line}", "type": "uritemplate"},
                "user_properties": [{"name": "line", "value": "{line}"}],
            },
        },
    )
    made = composer(found).compose_one(event({"line": "a/b+"}))
    assert made.address == "plants/p1/a%2Fb%2B"
    told = parts(made)
    assert (told["user_properties.line"], told["qos"], told["retain"]) == ("a/b+", "1", "true")
    assert told["user_properties.type"] == "T"
    with pytest.raises(UnsendableMessage, match="has no value for line"):
        composer(found).compose_one(event())


def test_the_definition_of_the_record_goes_first_then_one_whose_attributes_hold(tmp_path: Path) -> None:
    def message(source: str, topic: str) -> dict[str, Any]:
        return {
            "envelopemetadata": {"type": {"value": "T"}, "source": {"value": source}},
            "protocoloptions": {"topic_name": {"value": topic}},
        }

    any_source = message("{where}", "c")
    found = catalog(tmp_path, {"protocol": "MQTT/5.0"}, A=message("/a", "a"), B=message("/b", "b"), C=any_source)
    shaping = composer(found)
    assert shaping.compose_one(event(message="/messagegroups/G/messages/C", source="/b")).address == "c"
    assert shaping.compose_one(event(source="/b")).address == "b"
    assert shaping.compose_one(event(source="/other")).address == "c"
    assert shaping.compose_one(event(message="/messagegroups/G/messages/A", source="/b")).address == "b"
    with pytest.raises(UnsendableMessage, match="/endpoints/out has no definition of type 'other'"):
        shaping.compose_one(event(type="other"))


def test_what_would_not_match_its_definition_is_not_sent(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        {"protocol": "HTTP", "protocoloptions": {"endpoints": [{"uri": "https://h/x"}]}},
        Source={"envelopemetadata": {"source": {"value": "/a"}}},
        Content={"protocol": "HTTP", "datacontenttype": "text/csv"},
        Reply={"protocol": "HTTP", "protocoloptions": {"status": {"value": "200"}}},
        Held={"protocol": "HTTP", "protocoloptions": {"headers": [{"name": "ce-subject", "value": "s"}]}},
        Split={
            "protocol": "HTTP",
            "protocoloptions": {
                "headers": [{"name": "x-a", "value": "{a}-{b}"}, {"name": "x-b", "value": "{b}-{a}"}],
            },
        },
    )
    shaping = composer(found)
    asked = [
        event(type="Source"),
        event(type="Content", datacontenttype="application/json"),
        event(type="Reply"),
        event(type="Held", subject="other"),
        event({"a": "1-2", "b": "3"}, type="Split"),
        event({"a": "1", "b": "3"}, type="Split"),
        event(type="Source", source="/a"),
        event(type="Content", datacontenttype="text/csv"),
        event(type="Held", subject="s"),
    ]
    for _ in range(2):  # what was found out before is found again
        told = [str(made) if isinstance(made, UnsendableMessage) else "" for made in shaping.compose(asked)]
        assert [fault.partition(": it would not match: ")[2] for fault in told[:5]] == [
            "envelopemetadata.source should be '/a' and is '/plants/p1'",
            "datacontenttype should be 'text/csv' and is 'application/json'",
            "protocoloptions.status should be '200' and is None",
            "protocoloptions.headers.ce-subject should be 's' and is 'other'",
            "protocoloptions.headers.x-b {b} should be '2-3 as in protocoloptions.headers.x-a' and is '3'",
        ]
        assert told[5:] == ["", "", "", ""]


def test_a_stream_carries_no_subject_to_reply_to(tmp_path: Path) -> None:
    asks = {"protocol": "NATS", "protocoloptions": {"reply-to": {"value": "answers"}}}
    found = catalog(tmp_path, {"protocol": "NATS"}, T=asks)
    endpoint = found.endpoints["/endpoints/out"]
    made = make_composer(NatsSink(type="nats", endpoint=endpoint.xid, jetstream=False), endpoint, found)
    assert not isinstance(made.compose([event()])[0], UnsendableMessage)
    stored = make_composer(NatsSink(type="nats", endpoint=endpoint.xid), endpoint, found)
    (refused,) = stored.compose([event()])
    assert "reply-to should be 'answers' and is None" in str(refused)


def test_a_native_message_that_would_be_read_as_an_event(tmp_path: Path) -> None:
    native: dict[str, Any] = {
        "protocol": "MQTT/3.1.1",
        "envelope": None,
        "protocoloptions": {"topic_name": {"value": "t"}},
    }
    more = {"topic_name": {"value": "t"}, "user_properties": [{"name": "p", "value": "v"}]}
    listed = {**native, "protocoloptions": more}
    found = catalog(tmp_path, {"protocol": "MQTT/3.1.1"}, T=native, U=listed)
    shaping = composer(found)
    assert shaping.compose_one(event()).address == "t"
    with pytest.raises(UnsendableMessage, match=r"user_properties\.p should be 'v' and is None"):
        shaping.compose_one(event(type="U"))
    body = b'{"specversion": "1.0", "id": ""}'
    with pytest.raises(UnsendableMessage, match="it would not match: "):
        shaping.compose_one(RoutedEvent({**NAMED}, body, "/m", "/endpoints/in", "e", "t-0-1", {}))


def test_http_path_query_headers_and_method(tmp_path: Path) -> None:
    options = {"method": "PUT", "headers": [{"name": "X-Fixed", "value": "yes"}]}
    found = catalog(
        tmp_path,
        {"protocol": "HTTP", "protocoloptions": {"endpoints": [{"uri": "https://h:8443/base"}], "options": options}},
        T={
            "protocol": "HTTP",
            "protocoloptions": {
                "path": {"value": "/plants/{plant}", "type": "uritemplate"},
                "query": [{"name": "q", "value": "{plant}"}],
                "headers": [{"name": "X-Plant", "value": "{plant}"}],
            },
        },
        U={},
    )
    made = composer(found).compose_one(event({"plant": "a b/é"}))
    assert made.address == "https://h:8443/plants/a%20b%2F%C3%A9?q=a%20b%2F%C3%A9"
    told = parts(made)
    assert (told["method"], told["headers.x-fixed"], told["headers.x-plant"]) == ("PUT", "yes", "a b/é")
    assert composer(found).compose_one(event(type="U")).address == "https://h:8443/base"


def test_templates_in_the_address_of_an_endpoint(tmp_path: Path) -> None:
    uri = {"protocoloptions": {"endpoints": [{"uri": "https://h/p/{plant}/x?k=v"}]}}
    made = composer(catalog(tmp_path, {"protocol": "HTTP", **uri}, T={})).compose_one(event({"plant": "a/b"}))
    assert made.address == "https://h/p/a%2Fb/x?k=v"
    plain = {"protocoloptions": {"endpoints": [{"uri": "https://h"}], "options": {"path": "/o/{plant}"}}}
    made = composer(catalog(tmp_path, {"protocol": "HTTP", **plain}, T={})).compose_one(event({"plant": "7"}))
    assert made.address == "https://h/o/7"
    topic = {"protocoloptions": {"endpoints": [{"uri": "mqtt://h/plants/out"}]}}
    assert (
        composer(catalog(tmp_path, {"protocol": "MQTT/5.0", **topic}, T={})).compose_one(event()).address
        == "plants/out"
    )
    assert composer(catalog(tmp_path, {"protocol": "MQTT/5.0"}, T={})).compose_one(event()).address == "T"


@pytest.mark.parametrize(("least", "declared", "sent"), [(1, 0, "1"), (1, 2, "2"), (0, 0, "0")])
def test_what_is_to_be_confirmed_is_not_sent_with_qos_0(tmp_path: Path, least: int, declared: int, sent: str) -> None:
    by_endpoint = {"protocol": "MQTT/5.0", "protocoloptions": {"options": {"topic": "a", "qos": declared}}}
    assert (
        parts(composer(catalog(tmp_path, by_endpoint, T={}), least={"qos": least}).compose_one(event()))["qos"] == sent
    )
    message = {"protocol": "MQTT/5.0", "protocoloptions": {"qos": declared}}
    by_definition = catalog(tmp_path, {"protocol": "MQTT/5.0"}, T=message)
    assert parts(composer(by_definition, least={"qos": least}).compose_one(event()))["qos"] == sent


def test_an_endpoint_may_ask_for_structured_events_by_its_options(tmp_path: Path) -> None:
    options: dict[str, Any] = {"protocoloptions": {"options": {"subject": "s", "contentmode": "structured"}}}
    made = composer(catalog(tmp_path, {"protocol": "NATS", **options}, T={})).compose_one(event())
    assert parts(made)["headers.content-type"] == "application/cloudevents+json"
    options = {"envelopeoptions": {"mode": "binary"}, **options}
    assert (
        parts(composer(catalog(tmp_path, {"protocol": "NATS", **options}, T={})).compose_one(event()))["headers.ce-id"]
        == "1"
    )


def test_headers_of_the_record_go_on_behind_those_of_the_definition(tmp_path: Path) -> None:
    fixed = {"protocol": "HTTP", "protocoloptions": {"headers": [{"name": "X-A", "value": "ours"}]}}
    found = catalog(tmp_path, {"protocol": "HTTP", "protocoloptions": {"endpoints": ["https://h"]}}, T=fixed)
    native = json.dumps({"headers": [{"name": "x-a", "value": "theirs"}, {"name": "x-b", "value": "b"}]})
    came = RoutedEvent(NAMED, b"{}", "/m", "/endpoints/in", "e", "t-0-1", {}, "KAFKA", native)
    told = parts(composer(found, passing=HeaderForwarder(BINDINGS["HTTP"])).compose_one(came))
    assert (told["headers.x-a"], told["headers.x-b"]) == ("ours", "b")
    assert "headers.x-b" not in parts(composer(found).compose_one(came))


def test_nats_subjects_cannot_be_widened(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        {"protocol": "NATS", "protocoloptions": {"options": {"subject": "out.{type}.{place}"}}},
        T={},
        U={"protocol": "NATS", "protocoloptions": {"subject": {"value": "u.{place}", "type": "uritemplate"}}},
    )
    shaping = composer(found)
    assert shaping.compose_one(event({"place": "a.b>"})).address == "out.T.a%2Eb%3E"
    assert shaping.compose_one(event({"place": "a"}, type="U")).address == "u.a"
    with pytest.raises(UnsendableMessage, match="a value does not fit subject"):
        shaping.compose_one(event({"place": "a.b"}, type="U"))


def test_amqp_node_and_typed_properties(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        {"protocol": "AMQP/1.0", "protocoloptions": {"endpoints": [{"uri": "amqps://h/queue"}]}},
        T={
            "protocol": "AMQP/1.0",
            "protocoloptions": {
                "properties": {"subject": {"value": "{plant}"}, "message-id": {"required": True}},
                "application-properties": {"count": {"value": 7, "type": "integer"}},
            },
        },
    )
    made = composer(found).compose_one(event({"plant": "7"}))
    assert made.address == "queue"
    told = parts(made)
    assert (told["properties.subject"], told["properties.message-id"]) == ("7", "1")
    assert told["application-properties.count"] == "7"


def test_kafka_keys(tmp_path: Path) -> None:
    protocol = {"protocol": "KAFKA", "protocoloptions": {"options": {"topic": "out", "key": "{plant}"}}}
    found = catalog(tmp_path, protocol, T={}, U={"protocoloptions": {"key": {"value": "k-{plant}"}}})
    assert parts(composer(found).compose_one(event({"plant": "7"})))["key"] == "7"
    assert parts(composer(found).compose_one(event({"plant": "7"}, type="U")))["key"] == "k-7"
    protocol["protocoloptions"] = {"options": {"topic": "out"}}
    found = catalog(tmp_path, protocol, T={})
    assert "key" not in parts(composer(found).compose_one(event()))
    assert parts(composer(found).compose_one(event(partitionkey="p")))["key"] == "p"
    source = RoutedEvent(dict(NAMED), None, "/m", "/e", "e", "t-0-1", {}, "KAFKA", '{"key_base64": "a2V5"}')
    assert parts(composer(found).compose_one(source))["key"] == "key"


@pytest.mark.parametrize(
    ("protocol", "options", "place"),
    [
        ("KAFKA", {"key": {"type": "binary", "value": "/wA="}}, "key"),
        ("KAFKA", {"key_base64": {"value": "/wA="}}, "key"),
        ("KAFKA", {"headers": [{"name": "h", "type": "binary", "value": "/wA="}]}, "headers.h"),
        ("NATS", {"headers": [{"name": "h", "type": "binary", "value": "/wA="}]}, "headers.h"),
        ("HTTP", {"headers": [{"name": "h", "type": "binary", "value": "/wA="}]}, "headers.h"),
        ("MQTT/5.0", {"correlation_data": {"value": "/wA="}}, "correlation_data"),
        ("AMQP/1.0", {"properties": {"user-id": {"value": "/wA="}}}, "properties.user-id"),
        ("AMQP/1.0", {"properties": {"message-id": {"type": "binary", "value": "/wA="}}}, "properties.message-id"),
        (
            "AMQP/1.0",
            {"properties": {"correlation-id": {"type": "binary", "value": "/wA="}}},
            "properties.correlation-id",
        ),
        (
            "AMQP/1.0",
            {"application-properties": {"a": {"type": "binary", "value": "/wA="}}},
            "application-properties.a",
        ),
    ],
)
def test_values_of_type_binary_are_sent_as_the_bytes_they_stand_for(
    tmp_path: Path, protocol: str, options: dict[str, Any], place: str
) -> None:
    where = {"protocol": protocol, "protocoloptions": {"endpoints": [{"uri": "https://h/x"}]}}
    made = composer(catalog(tmp_path, where, T={"protocol": protocol, "protocoloptions": options})).compose_one(event())
    assert [part.value for part in made.parts if part.key == place] == [b"\xff\0"]


def test_bytes_where_mqtt_has_text_only(tmp_path: Path) -> None:
    def with_value(value: str) -> Catalog:
        told = {"user_properties": [{"name": "p", "type": "binary", "value": value}]}
        return catalog(tmp_path, {"protocol": "MQTT/5.0"}, T={"protocol": "MQTT/5.0", "protocoloptions": told})

    assert parts(composer(with_value("aGVsbG8=")).compose_one(event()))["user_properties.p"] == "hello"
    with pytest.raises(UnsendableMessage, match=r"user_properties\.p must be text"):
        composer(with_value("/wA=")).compose_one(event())


def test_modes(tmp_path: Path) -> None:
    structured = {"envelopeoptions": {"mode": "structured"}}
    native = {"envelope": None, "protocol": "HTTP", "protocoloptions": {"method": {"value": "PUT"}}}
    found = catalog(
        tmp_path,
        {"protocol": "HTTP", "protocoloptions": {"endpoints": [{"uri": "http://h/x"}]}},
        T={},
        S=structured,
        N=native,
    )
    shaping = composer(found)
    assert parts(shaping.compose_one(event()))["headers.ce-type"] == "T"
    assert parts(shaping.compose_one(event(type="S")))["headers.content-type"] == "application/cloudevents+json"
    told = parts(shaping.compose_one(event(type="N", datacontenttype="text/plain")))
    assert "headers.ce-type" not in told
    assert (told["method"], told["headers.content-type"]) == ("PUT", "text/plain")
    forced = composer(found, mode="structured").compose_one(event())
    assert json.loads(forced.body or b"")["type"] == "T"


@pytest.mark.parametrize(
    ("sink", "fault"),
    [
        ("{type: http, endpoint: /endpoints/none}", "the catalog has no endpoint /endpoints/none"),
        ("{type: nats, endpoint: /endpoints/out}", "/endpoints/out has HTTP, but the sink is nats"),
        ("{type: http, endpoint: /endpoints/in}", "/endpoints/in is for consumer"),
    ],
)
def test_endpoints_that_cannot_be_sent_to(tmp_path: Path, sink: str, fault: str) -> None:
    endpoints = {"out": {"usage": "producer", "protocol": "HTTP"}, "in": {"usage": "consumer", "protocol": "HTTP"}}
    (tmp_path / "c.json").write_text(json.dumps({"endpoints": endpoints}))
    (tmp_path / "r.yaml").write_text(f"sinks: {{s: {sink}}}\nroutes: [{{to: s}}]")
    with pytest.raises(SinkError, match=fault):
        check_endpoints(load_settings(tmp_path / "r.yaml", {}), load([tmp_path / "c.json"]))
