"""The parts of drafting one by one: words, kinds, samples, schemas and noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from catalog.record import Record
from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import compile_schema
from catalog.schemas.library import CatalogLibrary
from router.commands.dead_letters.drafts import (
    FORMAT,
    MAX_KINDS,
    TOO_MANY_KINDS,
    FrequencyTable,
    Traits,
    extract_traits,
    infer_schema,
    is_noise,
    looks_like_id,
)

IDS = [
    "7",
    "-1.5",
    "10.0.0.1",
    "550e8400-e29b-41d4-a716-446655440000",
    "deadbeef01",
    "2026-01-02",
    "2026-01-02T03:04:05Z",
]
IDS += ["pump-17", "dev0042", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "42nd"]
KINDS = ["", "plants", "v1", "v1.2", "sha256", "s3", "state", "door-open", "oauth2", "API"]


@pytest.mark.parametrize(("word", "one"), [*((word, True) for word in IDS), *((word, False) for word in KINDS)])
def test_words_that_name_one_instance_or_a_kind(word: str, one: bool) -> None:
    assert looks_like_id(word) == one


def traits(topic: str, body: bytes = b"{}") -> Traits:
    found = extract_traits(
        Record("MQTT/5.0", {"topic_name": topic}, body), lambda protocol: False, lambda name, path: False
    )
    assert isinstance(found, Traits)
    return found


def name(number: int) -> str:
    """A name that does not look like an id."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


@pytest.mark.parametrize(
    ("topics", "addresses"),
    [
        ([f"plants/{name(n)}/state" for n in range(1000)], ["plants/{plant}/state"]),
        ([f"plants/{n}/state" for n in range(1000)], ["plants/{plant}/state"]),
        (
            [f"plants/{name(n)}/{kind}" for n in range(100) for kind in ("a", "b")],
            ["plants/{plant}/a", "plants/{plant}/b"],
        ),
        (["plants/7/state"] * 3, ["plants/{plant}/state"]),
        (["plants/north/state", "plants/south/state"], ["plants/north/state", "plants/south/state"]),
        (["a//b", *(f"a/{name(n)}/b" for n in range(100))], ["a//b", "a/{a}/b"]),
        ([f"fleet/status/{name(n)}" for n in range(100)] + ["plants/x/y"], ["fleet/status/{status}", "plants/x/y"]),
        (["7/8/9"], ["{id}/{id2}/{id3}"]),
    ],
)
def test_kinds_have_gaps_for_ids_and_for_many_words(topics: list[str], addresses: list[str]) -> None:
    table = FrequencyTable()
    for topic in topics:
        table.add(traits(topic))
    drafts = table.list_drafts(1)
    assert sorted(each.address for each in drafts) == addresses
    assert sum(each.letters for each in drafts) == len(topics)


def test_a_sample_is_bounded_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_SAMPLED", 10)
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_BYTES", 100_000)
    table = FrequencyTable()
    for number in range(1000):
        table.add(traits(f"a/{number}"))
        table.add(traits(f"b/{number}/c", b"x" * 5_000))
    assert [(each.letters, len(each.records)) for each in table.list_drafts(1)] == [(1000, 6), (1000, 6)]


def test_kinds_of_large_records_do_not_take_ever_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.commands.dead_letters.drafts.MAX_BYTES", 100_000)
    table = FrequencyTable()
    for number in range(100):
        table.add(traits(f"{name(number)}/x", b"x" * 5_000))
    assert table.left_out[TOO_MANY_KINDS] == 100 - sum(each.letters for each in table.list_drafts(1)) > 80


def test_an_address_of_very_many_words_is_of_no_kind() -> None:
    table = FrequencyTable()
    table.add(traits("/" * 998))
    assert [each.address for each in table.list_drafts(1)] == [""]


def test_there_are_not_ever_more_kinds() -> None:
    table = FrequencyTable()
    for number in range(MAX_KINDS + 5):
        table.add(traits(f"a{'/' * (number % 100)}{name(number)}"))
    assert table.left_out == {TOO_MANY_KINDS: 5}


def conforms(schema: dict[str, Any], document: Any) -> bool:
    validator = compile_schema(SchemaSource("JsonSchema", FORMAT.partition("/")[2], schema), CatalogLibrary({}))
    return validator.fault(json.dumps(document).encode(), "application/json") is None


def test_schema_of_objects() -> None:
    documents: list[dict[str, Any]] = [
        {"id": n, "value": n / 2, "tags": ["a"], "by": {"mail": f"a{n}@b.cd"}, "none": None} for n in range(4)
    ]
    documents[0]["extra"] = True
    documents[1]["value"] = 3
    assert infer_schema(documents) == {
        "type": "object",
        "properties": {
            "by": {"type": "object", "properties": {"mail": {"type": "string"}}, "required": ["mail"]},
            "extra": {"type": "boolean"},
            "id": {"type": "integer"},
            "none": {},
            "tags": {"type": "array", "items": {"type": "string"}},
            "value": {"type": "number"},
        },
        "required": ["by", "id", "none", "tags", "value"],
    }


@pytest.mark.parametrize("key", [lambda n: f"dev-{n}", name], ids=["ids", "ever new names"])
def test_an_object_with_many_members_is_a_map(key: Callable[[int], str]) -> None:
    schema = infer_schema([{key(n): {"on": True}} for n in range(10, 500)])
    assert schema["additionalProperties"]["required"] == ["on"] and "properties" not in schema


@pytest.mark.parametrize("documents", [[1, 2.5], ["a", None], [[], [1]], [{"a": {"b": {}}}, {"a": {}}], [True], [None]])
def test_documents_conform_to_their_schema(documents: list[Any]) -> None:
    assert all(conforms(infer_schema(documents), document) for document in documents)


NOISE = {
    "HTTP": ["p.headers.x-request-id", "p.headers.content-length", "p.headers.X-Api-Key", "p.query.access_token"],
    "NATS": ["p.headers.Nats-Msg-Id"],
    "AMQP/1.0": ["p.properties.message-id"],
    "MQTT/5.0": ["p.qos"],
    "KAFKA": ["p.key"],
    "": ["e.time", "e.traceparent"],
}
TELLING = {"HTTP": ["p.headers.x-event"], "MQTT/5.0": ["p.topic_name"], "": ["e.subject", "e.tenant"]}


@pytest.mark.parametrize(("known", "noise"), [(NOISE, True), (TELLING, False)], ids=["noise", "telling"])
def test_noise(known: dict[str, list[str]], noise: bool) -> None:
    assert {(is_noise(key, protocol), key) for protocol, keys in known.items() for key in keys} == {
        (noise, key) for keys in known.values() for key in keys
    }
