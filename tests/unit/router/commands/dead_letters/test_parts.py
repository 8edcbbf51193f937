"""The parts of drafting one by one: words, clusters, samples, schemas and noise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from catalog.record import Record
from catalog.schemas.contract import SchemaSource
from catalog.schemas.families import compile_schema
from catalog.schemas.library import CatalogLibrary
from router.commands.dead_letters.suggesting.bundles import cluster_rows
from router.commands.dead_letters.suggesting.drafts import FORMAT, draft_schema
from router.commands.dead_letters.suggesting.sampling import (
    TOO_MANY_SHAPES,
    Sampler,
    Traits,
    extract_traits,
    is_noise,
    looks_like_id,
    split_words,
    to_singular,
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


@pytest.mark.parametrize("word", IDS)
def test_words_that_name_one_instance(word: str) -> None:
    assert looks_like_id(word)


@pytest.mark.parametrize("word", KINDS)
def test_words_that_name_a_kind(word: str) -> None:
    assert not looks_like_id(word)


@pytest.mark.parametrize(
    "text", ["", "/", "a/b.c", "a//b", "at/2026-01-02T03:04:05.5Z/x", "https://h.example:80/p?q=1"]
)
@pytest.mark.parametrize("subject", [False, True])
def test_words_and_delimiters_make_the_value_again(text: str, subject: bool) -> None:
    words, delimiters = split_words(text, subject=subject)
    assert "".join(a + b for a, b in zip(words, (*delimiters, ""), strict=True)) == text


@pytest.mark.parametrize(
    ("word", "one"),
    [("plants", "plant"), ("batches", "batch"), ("stories", "story"), ("status", "status"), ("gas", "gas")],
)
def test_singular(word: str, one: str) -> None:
    assert to_singular(word) == one


def patterns(rows: Sequence[tuple[str, ...]], labels: list[int] | None = None) -> list[str]:
    found = cluster_rows(rows, labels or [0] * len(rows))
    assert sorted(row for each in found for row in each.rows) == list(range(len(rows)))
    return ["/".join("*" if word is None else word for word in each.pattern) for each in found]


def name(number: int) -> str:
    """A name that does not look like an id."""
    return "".join("abcdefghij"[int(digit)] for digit in str(number))


def test_a_thousand_devices_are_one_kind() -> None:
    assert patterns([("plants", name(number), "state") for number in range(1000)]) == ["plants/*/state"]
    assert patterns([("plants", str(number), "state") for number in range(1000)]) == ["plants/*/state"]


def test_three_kinds_of_a_thousand_devices_are_three() -> None:
    rows = [("plants", name(number), kind) for number in range(1000) for kind in ("state", "alarm", "log")]
    assert patterns(rows) == ["plants/*/alarm", "plants/*/log", "plants/*/state"]


def test_instances_in_other_places_of_other_kinds_do_not_mix() -> None:
    rows = [("plants", name(number), "state") for number in range(100)]
    rows += [("fleet", "status", name(number)) for number in range(100)]
    assert patterns(rows) == ["fleet/status/*", "plants/*/state"]


def test_few_places_with_one_kind_of_body_are_a_gap() -> None:
    rows = [(place, name(number), "state") for number in range(30) for place in ("north", "south")]
    assert patterns(rows) == ["*/*/state"]


def test_words_whose_bodies_differ_stay_apart() -> None:
    rows = [("v1", kind, name(number)) for number in range(30) for kind in ("pumps", "doors")]
    assert patterns(rows, [number % 2 for number in range(60)]) == ["v1/doors/*", "v1/pumps/*"]


def test_few_letters_of_many_devices_are_one_kind() -> None:
    assert patterns([("plants", each, "state") for each in ("ada", "bob", "cleo", "dan", "eve")]) == ["plants/*/state"]


def test_an_id_is_a_gap_even_when_it_is_always_the_same() -> None:
    assert patterns([("plants", "7", "state")] * 3) == ["plants/*/state"]


def test_empty_words_are_a_kind_of_their_own() -> None:
    rows = [("a", "" if number % 2 else name(number), "b") for number in range(100)]
    assert patterns(rows) == ["a//b", "a/*/b"]


def traits(topic: str, body: bytes = b"{}") -> Traits:
    found = extract_traits(Record("MQTT/5.0", {"topic_name": topic}, body), lambda protocol: False)
    assert isinstance(found, Traits)
    return found


def test_a_sample_is_bounded_and_counts_all() -> None:
    sampler = Sampler(max_each=10, max_records=15)
    for number in range(1000):
        sampler.add(traits(f"a/{number}"))
        sampler.add(traits(f"b/{number}/c"))
    assert [reservoir.seen_records for reservoir in sampler.reservoirs.values()] == [1000, 1000]
    assert sum(len(reservoir.sampled) for reservoir in sampler.reservoirs.values()) <= 15
    again = Sampler(max_each=10, max_records=15)
    for number in range(1000):
        again.add(traits(f"a/{number}"))
        again.add(traits(f"b/{number}/c"))
    assert again.reservoirs == sampler.reservoirs


def test_a_sample_is_bounded_by_bytes_and_shapes() -> None:
    sampler = Sampler(max_bytes=100_000)
    for number in range(100):
        sampler.add(traits(f"a/{number}", b"x" * 5_000))
    (reservoir,) = sampler.reservoirs.values()
    assert reservoir.seen_records == 100 and len(reservoir.sampled) <= 6
    for number in range(1_600):
        sampler.add(traits("a" + "/" * (number % 40) + "," * (number // 40), b"x"))
    assert len(sampler.reservoirs) == 1_000
    assert sampler.left_out[TOO_MANY_SHAPES] + sum(each.seen_records for each in sampler.reservoirs.values()) == 1_700


def conforms(schema: dict[str, Any], document: Any) -> bool:
    validator = compile_schema(SchemaSource("JsonSchema", FORMAT.partition("/")[2], schema), CatalogLibrary({}))
    return validator.fault(json.dumps(document).encode(), "application/json") is None


def test_schema_of_objects() -> None:
    documents = [
        {
            "id": n,
            "at": "2026-01-02T03:04:05Z",
            "value": n / 2,
            "tags": ["a"],
            "by": {"mail": f"a{n}@b.cd"},
            "none": None,
        }
        for n in range(4)
    ]
    documents[0]["extra"] = True
    documents[1]["value"] = 3
    assert draft_schema(documents) == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "at": {"type": "string", "format": "date-time"},
            "by": {
                "type": "object",
                "properties": {"mail": {"type": "string", "format": "email"}},
                "required": ["mail"],
            },
            "extra": {"type": "boolean"},
            "id": {"type": "integer"},
            "none": {},
            "tags": {"type": "array", "items": {"type": "string"}},
            "value": {"type": "number"},
        },
        "required": ["at", "by", "id", "none", "tags", "value"],
    }


def test_schema_of_maps_whose_keys_are_ids() -> None:
    documents = [{f"dev-{n}{m}": {"on": True} for m in range(5)} for n in range(10, 20)]
    schema = draft_schema(documents)
    assert schema["additionalProperties"]["required"] == ["on"] and "properties" not in schema


def test_schema_of_objects_with_ever_new_members_is_bounded() -> None:
    schema = draft_schema({name(n): n} for n in range(5_000))
    assert schema["additionalProperties"] == {"type": "integer"} and "properties" not in schema


def test_enums_need_few_words_of_many_records_and_hide_what_is_hidden() -> None:
    documents = [{"state": ("on", "off")[n % 2], "word": name(n), "nested": [{"state": "x"}]} for n in range(60)]
    shown = draft_schema(documents)["properties"]
    assert shown["state"] == {"type": "string", "enum": ["off", "on"]} and shown["word"] == {"type": "string"}
    assert draft_schema(documents, lambda member: member == "state")["properties"]["state"] == {"type": "string"}


@pytest.mark.parametrize("documents", [[1, 2.5], ["a", None], [[], [1]], [{"a": {"b": {}}}, {"a": {}}], [True], [None]])
def test_documents_conform_to_their_schema(documents: list[Any]) -> None:
    assert all(conforms(draft_schema(documents), document) for document in documents)


@pytest.mark.parametrize(
    ("key", "protocol"),
    [
        ("p.headers.x-request-id", "HTTP"),
        ("p.headers.content-length", "HTTP"),
        ("p.headers.X-Api-Key", "HTTP"),
        ("p.query.access_token", "HTTP"),
        ("p.headers.Nats-Msg-Id", "NATS"),
        ("p.properties.message-id", "AMQP/1.0"),
        ("p.qos", "MQTT/5.0"),
        ("p.key", "KAFKA"),
        ("e.time", ""),
        ("e.traceparent", ""),
    ],
)
def test_noise(key: str, protocol: str) -> None:
    assert is_noise(key, protocol)


@pytest.mark.parametrize(
    ("key", "protocol"),
    [("p.headers.x-event", "HTTP"), ("p.topic_name", "MQTT/5.0"), ("e.subject", ""), ("e.tenant", "")],
)
def test_what_says_something(key: str, protocol: str) -> None:
    assert not is_noise(key, protocol)
