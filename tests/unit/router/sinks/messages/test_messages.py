"""Event to message, for every protocol and mode: our own codec reads back what was sent, byte for byte."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.amqp.values import types_of, value_of_part
from bindings.envelope import Envelope
from bindings.events import to_json_members
from bindings.parts import Part
from bindings.protocols import BINDINGS, sending_of
from bindings.sending import Outbound
from router.settings.routes import AddressError, parse_address, validate_address
from router.sinks.messages.sink import Mode, RoutedEvent, build_message, make_event

TEXT = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\ufeff"), min_size=1, max_size=20
)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,10}", fullmatch=True).filter(
    lambda name: name not in ("data", "datacontenttype", "specversion", "id", "source", "type")
)
MEDIA = st.sampled_from(("application/json", "text/plain; charset=utf-8", "image/png", "application/x+json"))
DATA = st.none() | st.binary(max_size=30) | st.sampled_from((b'{"a": 1.00}', b"null", b'"\\u00e9"', b" [1]"))
EVERY = [(protocol, mode) for protocol in BINDINGS for mode in ("binary", "structured")]


@st.composite
def events(draw: st.DrawFn) -> RoutedEvent:
    named = {"specversion": "1.0", "id": draw(TEXT), "source": draw(TEXT), "type": draw(TEXT)}
    named |= draw(st.dictionaries(NAMES, TEXT, max_size=4))
    data = draw(DATA)
    media = draw(st.none() | MEDIA)
    if media is not None:
        named["datacontenttype"] = media
    context = draw(st.dictionaries(TEXT, TEXT, max_size=2))
    return RoutedEvent(named, data, "/messagegroups/G/messages/M", "/endpoints/E", "e", "t-0-1", context)


def read(made: Outbound, protocol: str) -> Envelope:
    binding = BINDINGS[protocol]
    # Through the JSON form and back: parts that the form cannot hold would not come back either.
    return binding.read_envelope(binding.split(binding.build(list(made.parts))), made.body, lambda: True)


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "mode"), EVERY)
@given(event=events(), lineage=st.booleans())
def test_an_event_comes_back_as_it_was(protocol: str, mode: Mode, event: RoutedEvent, lineage: bool) -> None:
    made = build_message(event, BINDINGS[protocol], mode, "a", lineage=lineage)
    envelope = read(made, protocol)
    expected = dict(event.attributes)
    assert envelope.mode == (mode if BINDINGS[protocol].binary else "structured")
    assert dict(envelope.attributes) == expected
    assert envelope.data == event.data
    assert not envelope.faults
    keys = [part.key for part in made.parts]
    assert len(keys) == len(set(keys))
    assert any("xrouter-lineage" in key for key in keys) == (lineage and BINDINGS[protocol].binary)


@pytest.mark.parametrize("protocol", BINDINGS)
def test_data_that_is_an_event_itself_is_not_taken_for_this_one(protocol: str) -> None:
    inner = b'{"specversion":"1.0","id":"inner","source":"s","type":"t"}'
    named = {"specversion": "1.0", "id": "outer", "source": "s", "type": "t"}
    event = RoutedEvent({**named, "datacontenttype": "application/cloudevents+json"}, inner, "m", "e", "e", "t-0-1", {})
    envelope = read(build_message(event, BINDINGS[protocol], "binary", "a"), protocol)
    assert (envelope.attributes["id"], envelope.data) == ("outer", inner)


def test_a_row_of_the_wide_table() -> None:
    row: dict[str, Any] = {"id": "1", "source": "s", "type": "t", "time_text": "2026-01-02T03:04:05.123456789+02:00"}
    columns = dict.fromkeys(("subject", "datacontenttype", "dataschema", "specversion"))
    event = make_event({**columns, **row, "extensions": [("seq", "7")], "context": [("x", "y")], "position": "t-0-1"})
    assert next(iter(event.attributes)) == "specversion"
    assert event.attributes["time"] == row["time_text"]
    assert event.attributes["seq"] == "7"
    assert event.context == {"x": "y"}
    assert event.more_lineage == {}


@pytest.mark.parametrize("protocol", list(BINDINGS))
def test_integers_and_booleans_keep_their_types_where_messages_have_types(protocol: str) -> None:
    row = {"id": "1", "source": "s", "type": "t", "extensions": [("n", "7"), ("dry", "false"), ("m", "7")]}
    columns = dict.fromkeys(("subject", "datacontenttype", "dataschema", "specversion"))
    event = make_event({**columns, **row, "typed": "n dry", "position": "t-0-1"})
    binary, structured = (build_message(event, BINDINGS[protocol], mode, "a") for mode in ("binary", "structured"))
    assert {"n": 7, "dry": False, "m": "7"}.items() <= to_json_members(read(structured, protocol).attributes).items()
    typed = protocol in ("AMQP/1.0", "MQTT/3.1.1")  # The one has types in binary mode, the other no binary mode.
    found = to_json_members(read(binary, protocol).attributes)
    assert (found["n"], found["dry"], found["m"]) == ((7, False, "7") if typed else ("7", "false", "7"))
    if protocol == "AMQP/1.0":
        key = "application-properties.cloudEvents:n"
        (part,) = (each for each in binary.parts if each.key == key)
        assert value_of_part(part, types_of(binary.parts)).kind == "int"


ANNOTATED = '{"message-annotations":{"x-opt-partition-key":"k"}}'


@pytest.mark.parametrize("mode", ["binary", "structured", "native"])
@pytest.mark.parametrize(
    ("protocol", "native", "more", "due"),
    [
        ("AMQP/1.0", ANNOTATED, {}, b"k"),
        ("AMQP/1.0", ANNOTATED, {"partitionkey": "own"}, b"own"),
        ("KAFKA", '{"key":"k"}', {}, b"k"),
        ("KAFKA", '{"key_base64":"/w=="}', {}, None),
        ("HTTP", ANNOTATED, {}, None),
        ("HTTP", "{}", {"partitionkey": "own"}, b"own"),
        ("AMQP/1.0", '{"message-annotations":"x-opt-partition-key"}', {}, None),
    ],
)
def test_a_partition_key_is_an_annotation_of_amqp(
    mode: Mode, protocol: str, native: str, more: dict[str, str], due: bytes | None
) -> None:
    named = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **more}
    event = RoutedEvent(named, None, "/m", "/e", "e", "t-0-1", {}, protocol, native)
    key = "message-annotations.x-opt-partition-key"
    parts = {part.key: part.value for part in build_message(event, BINDINGS["AMQP/1.0"], mode, "a").parts}
    assert parts.get(key) == due
    given = build_message(event, BINDINGS["AMQP/1.0"], mode, "a", [Part(key, b"declared")]).parts
    assert [part.value for part in given if part.key == key] == [b"declared"]
    assert all(part.key != key for part in build_message(event, BINDINGS["MQTT/5.0"], mode, "a").parts)


@pytest.mark.parametrize("protocol", [name for name, binding in BINDINGS.items() if binding.binary])
def test_lineage_tells_how_it_was_decided_between_definitions(protocol: str) -> None:
    named = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    event = RoutedEvent(named, None, "/m", "/e", "e", "t-0-1", {}, more_lineage={"ambiguous": "first of /a, /b"})
    parts = build_message(event, BINDINGS[protocol], "binary", "a").parts
    (told,) = [part.text for part in parts if part.key.endswith("xrouter-lineage")]
    due = {"endpoint": "/e", "epoch": "e", "position": "t-0-1", "ambiguous": "first of /a, /b"}
    assert json.loads(unquote(told or "")) == due
    parts = build_message(event, BINDINGS[protocol], "binary", "a", lineage="separate").parts
    named = {part.key.rpartition(".")[2]: unquote(part.text or "") for part in parts if "xrouter-" in part.key}
    assert named == {"xrouter-message": "/m", "xrouter-context": "{}"} | {f"xrouter-{name}": due[name] for name in due}


KINDS: tuple[str, ...] = ("mqtt", "amqp", "nats", "http", "kafka")


@given(type_=st.text(max_size=30), kind=st.sampled_from(KINDS))
def test_no_value_adds_a_level_or_a_wildcard(type_: str, kind: str) -> None:
    before, separator = ("https://h/a/", "/") if kind == "http" else ("a.", ".") if kind == "nats" else ("a-", "/")
    address = parse_address(f"{before}{{type}}", sending_of(kind)).expand({"type": type_})
    assert validate_address(address, sending_of(kind)) == address
    if kind != "kafka":
        assert separator not in address.removeprefix(before)
    assert not set(address) & set("+#*> ")


def test_an_address_may_be_too_long() -> None:
    with pytest.raises(AddressError, match="the http limit is 8000"):
        parse_address("https://h/{type}", sending_of("http")).expand({"type": "x" * 9000})
