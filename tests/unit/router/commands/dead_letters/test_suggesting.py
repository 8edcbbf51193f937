"""Drafting as a whole, one behaviour at a time: what is literal, what ties, where drafts go, what they must not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from catalog.documents.fetching import Fetcher
from catalog.load import load
from catalog.record import Record
from router.commands.dead_letters.suggest import BaseCatalog, Suggestion, suggest
from router.commands.emit.producer import encode_record_line
from router.errors import RouterError
from router.matching.records import RecordMatcher

CLOUDEVENTS = "CloudEvents/1.0"


def basis_of(tmp_path: Path, endpoints: dict[str, Any], groups: dict[str, Any] | None = None) -> BaseCatalog:
    file = tmp_path / "catalog.json"
    file.write_text(json.dumps({"specversion": "1.0-rc4", "endpoints": endpoints, "messagegroups": groups or {}}))
    return BaseCatalog([file], Fetcher(network=False))


def consumer(protocol: str, *groups: str) -> dict[str, Any]:
    return {"usage": ["consumer"], "protocol": protocol, "messagegroups": [f"/messagegroups/{each}" for each in groups]}


def mqtt(topic: str, endpoint: str = "/endpoints/e", body: bytes | None = b"{}", **native: Any) -> Record:
    return Record("MQTT/5.0", {"topic_name": topic, **native}, body, endpoint)


def messages(found: Suggestion) -> dict[str, Any]:
    return {
        f"{group}/{name}": message
        for group, members in found.fragment.get("messagegroups", {}).items()
        for name, message in members["messages"].items()
    }


def only(found: Suggestion) -> dict[str, Any]:
    (message,) = messages(found).values()
    assert isinstance(message, dict)
    return message


def outcomes(tmp_path: Path, found: Suggestion, records: list[Record]) -> list[dict[str, Any]]:
    (tmp_path / "drafts.json").write_text(json.dumps(found.fragment))
    catalog = load([tmp_path / "catalog.json", tmp_path / "drafts.json"])
    return list(RecordMatcher(catalog).outcomes(encode_record_line(record) for record in records))


def test_drafts_go_into_a_group_that_the_endpoint_lists_and_nobody_else(tmp_path: Path) -> None:
    endpoints = {"e": consumer("MQTT/5.0", "Shared", "Own"), "f": consumer("MQTT/5.0", "Shared")}
    groups: dict[str, Any] = {"Shared": {"messages": {}}, "Own": {"messages": {}}}
    found = suggest([mqtt(f"a/{n}") for n in range(9)], basis_of(tmp_path, endpoints, groups))
    assert list(messages(found)) == ["Own/a"] and not found.attached


def test_a_group_that_is_listed_and_missing_is_the_one(tmp_path: Path) -> None:
    found = suggest([mqtt(f"a/{n}") for n in range(9)], basis_of(tmp_path, {"e": consumer("MQTT/5.0", "Gone")}))
    assert list(messages(found)) == ["Gone/a"] and not found.attached


@pytest.mark.parametrize("group", [{"protocol": "KAFKA"}, {"envelope": "Other/1.0"}])
def test_a_group_of_another_kind_is_left_alone_and_the_endpoint_has_to_change(
    tmp_path: Path, group: dict[str, Any]
) -> None:
    basis = basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}, {"G": {**group, "messages": {}}})
    found = suggest([mqtt(f"a/{n}") for n in range(9)], basis)
    assert found.attached == {"/endpoints/e": ["/messagegroups/e.drafts"]} and found.drafts[0].matched == 1
    with pytest.raises(RouterError, match="another envelope or protocol"):
        suggest([mqtt(f"a/{n}") for n in range(9)], basis, group="G")


def test_a_group_name_that_is_no_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match="no id of a message group"):
        suggest([mqtt(f"a/{n}") for n in range(9)], basis_of(tmp_path, {"e": consumer("MQTT/5.0")}), group="a b")


def test_an_endpoint_that_the_catalog_lacks_comes_with_the_fragment(tmp_path: Path) -> None:
    basis = basis_of(tmp_path, {"e": consumer("MQTT/5.0")})
    records = [mqtt(f"a/{n}", "/endpoints/new") for n in range(9)]
    found = suggest(records, basis)
    assert found.fragment["endpoints"]["new"] == {
        "endpointid": "new",
        "usage": ["consumer"],
        "protocol": "MQTT/5.0",
        "messagegroups": ["/messagegroups/new.drafts"],
    }
    assert {each["outcome"] for each in outcomes(tmp_path, found, records)} == {"routed"}


def test_a_lacking_endpoint_of_several_protocols_has_no_default(tmp_path: Path) -> None:
    topics = [mqtt(f"a/{n}", "/endpoints/new") for n in range(9)]
    subjects = [Record("NATS", {"subject": f"b.{n}"}, b"x", "/endpoints/new") for n in range(9)]
    found = suggest([*topics, *subjects], basis_of(tmp_path, {}))
    assert "protocol" not in found.fragment["endpoints"]["new"] and len(messages(found)) == 2
    assert {each["outcome"] for each in outcomes(tmp_path, found, [*topics, *subjects])} == {"routed"}


def test_properties_are_literal_required_optional_or_left_alone(tmp_path: Path) -> None:
    def record(n: int) -> Record:
        given = {
            "site": "north",
            "retry": "false",
            "plantid": f"p{n}0",
            "note": f"hello {'ab'[n % 2] * (n + 1)}",
            "trace-id": str(n),
        }
        given |= {"maybe": "x"} if n % 2 else {}
        listed = [{"name": name, "value": value} for name, value in given.items()]
        return mqtt(f"plants/p{n}0/state", user_properties=listed, qos=1)

    found = suggest([record(n) for n in range(9)], basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}))
    assert only(found)["protocoloptions"] == {
        "topic_name": {"value": "plants/{plant}/state"},
        "user_properties": [
            {"name": "site", "value": "north"},
            {"name": "note", "required": True},
            {"name": "retry", "required": True},
            {"name": "maybe"},
        ],
    }


def test_no_value_of_what_is_sensitive_is_told(tmp_path: Path) -> None:
    def record(n: int) -> Record:
        listed = [{"name": "patient", "value": "Mrs Smith"}, {"name": "x-api-key", "value": "k"}]
        return mqtt(f"ward/{n}", body=json.dumps({"ward": "ab"[n % 2]}).encode(), user_properties=listed)

    basis = basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")})
    records = [record(n) for n in range(90)]
    assert "Mrs Smith" in json.dumps(suggest(records, basis).fragment)
    hidden = json.dumps(suggest(records, basis, hides=lambda name, path: name in ("patient", "ward")).fragment)
    assert "Mrs Smith" not in hidden and "enum" not in hidden and "patient" not in hidden and "api-key" not in hidden


def test_bodies_of_two_media_types_on_one_address_are_one_draft_without_either(tmp_path: Path) -> None:
    records = [mqtt("a/b", content_type="application/json") for _ in range(9)]
    records += [mqtt("a/b", body=b"text", content_type="text/plain") for _ in range(9)]
    records += [mqtt("a/b", body=b"text") for _ in range(9)]
    found = suggest(records, basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}))
    assert len(found.drafts) == 1 and found.drafts[0].matched == 1
    assert "datacontenttype" not in only(found) and "dataschemaformat" not in only(found)
    assert {each["outcome"] for each in outcomes(tmp_path, found, records)} == {"routed"}


def test_kinds_that_nothing_tells_apart_are_one_draft(tmp_path: Path) -> None:
    records = [mqtt("a/b", user_properties=[{"name": "one", "value": "x" * n}]) for n in range(1, 20)]
    records += [mqtt("a/b", user_properties=[{"name": "two", "value": "y" * n}]) for n in range(1, 20)]
    records += [mqtt("a/b") for _ in range(9)]
    found = suggest(records, basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}))
    assert len(found.drafts) == 1 and found.drafts[0].letters == 47
    assert {each["outcome"] for each in outcomes(tmp_path, found, records)} == {"routed"}


def test_events_in_plain_json_stay_events_beside_drafts_for_native_messages(tmp_path: Path) -> None:
    opened = {"envelope": CLOUDEVENTS, "envelopemetadata": {"type": {"value": "opened"}}}
    basis = basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}, {"G": {"messages": {"opened": opened}}})
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "opened"}
    known = mqtt("doors/1", body=json.dumps(event).encode())
    strange = [mqtt("doors/1", body=json.dumps({**event, "type": "closed"}).encode()) for _ in range(9)]
    native = [mqtt("doors/1", body=b"{}", content_type="application/json") for _ in range(9)]
    found = suggest([*strange, *native], basis)
    routed = outcomes(tmp_path, found, [known, *strange, *native])
    assert [each.get("message") for each in routed] == [
        "/messagegroups/G/messages/opened",
        *["/messagegroups/G/messages/closed"] * 9,
        *["/messagegroups/G/messages/doors"] * 9,
    ]


def test_native_drafts_do_not_take_events_that_come_the_same_way(tmp_path: Path) -> None:
    opened = {"envelope": CLOUDEVENTS, "envelopemetadata": {"source": {"value": "/{x}", "type": "uritemplate"}}}
    basis = basis_of(tmp_path, {"e": consumer("KAFKA", "G")}, {"G": {"messages": {"opened": opened}}})
    headers = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t"}
    listed = [{"name": name, "value": value} for name, value in headers.items()]
    event = Record("KAFKA", {"topic": "doors", "headers": listed}, b"{}", "/endpoints/e")
    native = [Record("KAFKA", {"topic": "doors", "offset": n}, b"plain", "/endpoints/e") for n in range(9)]
    found = suggest(native, basis)
    assert outcomes(tmp_path, found, [event])[0]["message"] == "/messagegroups/G/messages/opened"
    assert {each["outcome"] for each in outcomes(tmp_path, found, native)} == {"routed"}


def test_a_draft_that_asks_nothing_is_only_for_a_channel_of_its_own(tmp_path: Path) -> None:
    records = [Record("AMQP/1.0", {"properties": {"message-id": str(n)}}, b"{}", "/endpoints/e") for n in range(9)]
    alone = suggest(records, basis_of(tmp_path, {"e": consumer("AMQP/1.0", "G")}))
    assert "asks for no value" in alone.drafts[0].notes[0] and alone.drafts[0].matched == 1
    other = {"protocol": "AMQP/1.0", "protocoloptions": {"properties": {"subject": {"value": "x"}}}}
    basis = basis_of(tmp_path, {"e": consumer("AMQP/1.0", "G")}, {"G": {"messages": {"other": other}}})
    beside = suggest(records, basis)
    assert not beside.drafts and beside.left_out == {"that have nothing in common to be recognised by": 9}


def test_nats_subjects_are_parted_where_their_tokens_end(tmp_path: Path) -> None:
    records = [Record("NATS", {"subject": f"plants.{n}.v1.5"}, b"{}", "/endpoints/e") for n in range(9)]
    found = suggest(records, basis_of(tmp_path, {"e": consumer("NATS", "G")}))
    assert only(found)["protocoloptions"]["subject"] == {"value": "plants.{plant}.v1.{id}"}
    assert found.drafts[0].matched == 1


def test_ids_of_drafts_are_not_taken_twice(tmp_path: Path) -> None:
    known = {"protocol": "MQTT/5.0", "protocoloptions": {"topic_name": {"value": "other"}}}
    basis = basis_of(tmp_path, {"e": consumer("MQTT/5.0", "G")}, {"G": {"messages": {"A": known}}})
    found = suggest([mqtt(f"a/{n}") for n in range(9)], basis)
    assert list(messages(found)) == ["G/a.2"]


def test_nothing_gives_nothing(tmp_path: Path) -> None:
    found = suggest([], basis_of(tmp_path, {"e": consumer("MQTT/5.0")}))
    assert found == Suggestion((), {"specversion": "1.0-rc4"})
