"""Event to message, for every protocol and mode: our own codec reads back what was sent, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.amqp.publisher import EncodingError, encode_message
from bindings.amqp.values import decode_message, types_of, value_of_part
from bindings.envelope import Envelope
from bindings.events import to_json_members
from bindings.http.binding import FIELD_NAME, FIELD_VALUE
from bindings.mqtt import publisher
from bindings.nats.binding import build_header_block
from bindings.parts import Part
from bindings.protocols import BINDINGS, sending_of
from bindings.sending import MessageRefusal, Outbound
from catalog.load import load
from catalog.model import Catalog
from router.errors import SinkError
from router.settings import KafkaSink, load_settings
from router.settings.routes import AddressError, parse_address, validate_address
from router.settings.sinks.messages import HttpSink, MqttSink, NatsSink
from router.sinks.contract import Commit, check_endpoints
from router.sinks.messages.definitions import EndpointComposer, make_composer, make_header_forwarder
from router.sinks.messages.sink import (
    MESSAGE,
    ConfirmedSink,
    DestinationCap,
    HeaderForwarder,
    Mode,
    RoutedEvent,
    TemplateComposer,
    UnsendableMessage,
    build_message,
    get_destination_cap,
    make_event,
)
from tests.support.cases import read_cases
from tests.support.commands import fits

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


# Headers of a record that were no attributes go on with its message, within the limits of its target.


PASSED: Final = Path(__file__).resolve().parents[4] / "cases" / "sinks" / "passing.yaml"
NAMED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
PLACES = {"HTTP": "headers", "NATS": "headers", "KAFKA": "headers", "MQTT/5.0": "user_properties"}
PLACES["AMQP/1.0"] = "application-properties"


def native_of(protocol: str, headers: list[dict[str, Any]], **more: Any) -> str:
    place = PLACES.get(protocol, "headers")
    held: Any = {each["name"]: each["value"] for each in headers} if place.startswith("appl") else headers
    return json.dumps({place: held, **more})


def sent(target: str, source: str, native: str, mode: Mode = "binary", taken: frozenset[str] = frozenset()) -> Outbound:
    event = RoutedEvent(NAMED, b"{}", "/m", "/endpoints/in", "e", "t-0-1", {}, source, native)
    binding = BINDINGS[target]
    return build_message(event, binding, mode, "a", lineage=False, passing=HeaderForwarder(binding, taken))


def passed(target: str, source: str, headers: list[dict[str, Any]], mode: Mode = "binary") -> dict[str, str | None]:
    made = sent(target, source, native_of(source, headers), mode)
    place = PLACES[target]
    found = {part.key.removeprefix(f"{place}."): part.text for part in made.parts if part.key.startswith(place)}
    attributes = {f"{prefix}{name}" for prefix in ("", "ce-", "ce_", "cloudEvents:") for name in NAMED}
    return {name: text for name, text in found.items() if name not in attributes and name != "content-type"}


def listed(**headers: str) -> list[dict[str, Any]]:
    return [{"name": name.replace("__", "-"), "value": value} for name, value in headers.items()]


@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("mode", ["binary", "structured", "native"])
def test_from_each_protocol_to_each(target: str, source: str, mode: Mode) -> None:
    headers = [*listed(trace__parent="00-ab", xrouter__epoch="old"), {"name": "Content-Type", "value": "text/plain"}]
    assert passed(target, source, headers, mode) == {"trace-parent": "00-ab"}


@pytest.mark.parametrize("case", read_cases(PASSED), ids=lambda case: case["case"])
def test_what_is_passed_is_what_its_case_says(case: dict[str, Any]) -> None:
    headers = [{"name": name, "value": value} for name, value in case["headers"].items()]
    assert passed(case["to"], case["from"], headers, case.get("mode", "binary")) == case["passed"]


def test_nothing_is_passed_without_properties_or_when_settings_want_none() -> None:
    native = native_of("KAFKA", listed(a="1"))
    assert sent("MQTT/3.1.1", "KAFKA", native, "structured").parts == ()
    assert sent("HTTP", "MQTT/3.1.1", json.dumps({"topic_name": "a"})).parts == sent("HTTP", "HTTP", "{").parts
    binding = BINDINGS["MQTT/5.0"]
    silent = MqttSink(type="mqtt", topic="t", uri=("mqtt://h",), pass_headers=False)
    assert make_header_forwarder(silent, binding) is None
    assert (
        make_header_forwarder(KafkaSink(type="kafka", bootstrap_servers="b", topic="t"), BINDINGS["KAFKA"]) is not None
    )


def test_what_target_and_definition_set_goes_before() -> None:
    sink = HttpSink(type="http", url="https://h", headers={"X-Fixed": "f"}, api_key="k", api_key_header="X-Key")
    passing = make_header_forwarder(sink, BINDINGS["HTTP"])
    assert passing is not None
    assert passing.taken == {"x-fixed", "x-key"}
    made = sent("HTTP", "KAFKA", native_of("KAFKA", listed(x__key="theirs", X__B="b")), taken=passing.taken)
    assert [part.key for part in made.parts if part.key.startswith("headers.x")] == ["headers.x-b"]


def amqp_properties(message: Outbound) -> Any:
    return BINDINGS["AMQP/1.0"].build(decode_message(encode_message(message)).parts)["application-properties"]


def test_types_of_amqp_are_kept_there_and_are_text_elsewhere() -> None:
    headers = [{"name": "n", "value": 7}, {"name": "b", "value": True}, {"name": "big", "value": 2**64}]
    assert passed("HTTP", "AMQP/1.0", headers) == {"n": "7", "b": "true", "big": str(2**64)}
    told = amqp_properties(sent("AMQP/1.0", "AMQP/1.0", native_of("AMQP/1.0", headers)))
    assert {name: told[name] for name in ("n", "b", "big")} == {"n": 7, "b": True, "big": str(2**64)}
    raw = native_of("KAFKA", [{"name": "x", "value_base64": "/w=="}])
    assert amqp_properties(sent("AMQP/1.0", "KAFKA", raw))["x"] == {"base64": "/w=="}
    properties = publisher.read_options(sent("MQTT/5.0", "KAFKA", raw), "MQTT/5.0").properties
    assert properties is not None
    assert properties.json()["UserProperty"] == list(NAMED.items())  # type: ignore[no-untyped-call]


def test_types_of_amqp_that_json_loses_are_kept_there() -> None:
    values = {"when": "2026-01-02T03:04:05.678Z", "who": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "n": 7, "s": "x"}
    kinds = {"when": "timestamp", "who": "uuid", "n": "ubyte", "s": "symbol"}
    types = {f"application-properties.{name}": kind for name, kind in kinds.items()}
    native = json.dumps({"application-properties": values, "types": types})
    read = decode_message(encode_message(sent("AMQP/1.0", "AMQP/1.0", native, "native")))
    found = BINDINGS["AMQP/1.0"].build(read.parts)
    assert values.items() <= found["application-properties"].items()
    assert found["types"] == types
    assert "types" not in [part.key for part in sent("KAFKA", "AMQP/1.0", native).parts]


@given(
    st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8) | st.text(max_size=8)), max_size=4),
    st.sampled_from(["binary", "structured", "native"]),
)
def test_no_header_makes_a_message_that_cannot_be_sent(
    headers: list[tuple[str, bytes | str | None]], mode: Mode
) -> None:
    parts = [
        {"name": name, "value": value.decode("latin-1") if isinstance(value, bytes) else value}
        for name, value in headers
    ]
    native = native_of("KAFKA", parts)
    for key, value in ((part.key, part.value) for part in sent("HTTP", "KAFKA", native, mode).parts):
        assert FIELD_NAME.fullmatch(key.removeprefix("headers."))
        assert FIELD_VALUE.fullmatch(value or b"")
    build_header_block(
        (part.key.removeprefix("headers."), part.value or b"") for part in sent("NATS", "KAFKA", native, mode).parts
    )
    publisher.read_options(sent("MQTT/5.0", "KAFKA", native, mode), "MQTT/5.0")


# Each case of ``tests/cases/sinks/definitions.yaml``: messages for a producer endpoint, shaped by its definitions.


DEFINED: Final = Path(__file__).resolve().parents[4] / "cases" / "sinks" / "definitions.yaml"
PLANT: Final = {"specversion": "1.0", "id": "1", "source": "/plants/p1", "type": "T"}


def load_catalog(folder: Path, endpoint: dict[str, Any], messages: dict[str, Any]) -> Catalog:
    document = {
        "messagegroups": {
            "G": {"messages": {name: {"envelope": "CloudEvents/1.0", **each} for name, each in messages.items()}}
        },
        "endpoints": {"out": {"usage": "producer", "messagegroups": ["/messagegroups/G"], **endpoint}},
    }
    (folder / "c.json").write_text(json.dumps(document))
    return load([folder / "c.json"])


def event_of(send: dict[str, Any]) -> RoutedEvent:
    protocol, native = send.get("native", ("", None))
    given = (send.get("message", "/m"), "/endpoints/in", "e", "t-0-1", send.get("context", {}))
    source = (protocol, json.dumps(native)) if protocol else ()
    return RoutedEvent({**PLANT, **send.get("attributes", {})}, send.get("data", "{}").encode(), *given, *source)


def check_message(send: dict[str, Any], made: Outbound | UnsendableMessage) -> None:
    if "refused" in send:
        assert isinstance(made, UnsendableMessage) and send["refused"] in str(made), made
        return
    assert isinstance(made, Outbound), made
    assert made.address == send.get("address", made.address)
    parts = {part.key: part for part in made.parts}
    for key, value in send.get("parts", {}).items():
        part = parts.get(key)
        assert (part and (part.value if isinstance(value, bytes) else part.text)) == value, (key, part)
    assert fits(send.get("body", {}), json.loads(made.body or b"{}"))
    if "unencodable" in send:
        with pytest.raises(EncodingError) as caught:
            encode_message(made)
        assert send["unencodable"] in str(caught.value)
    elif "amqp" in send:
        assert fits(send["amqp"], BINDINGS["AMQP/1.0"].build(decode_message(encode_message(made)).parts))


@pytest.mark.parametrize("case", read_cases(DEFINED), ids=lambda case: case["case"])
def test_messages_are_as_their_case_says(case: dict[str, Any], tmp_path: Path) -> None:
    catalog = load_catalog(tmp_path, case["endpoint"], case["messages"])
    endpoint = catalog.endpoints["/endpoints/out"]
    binding = BINDINGS[endpoint.protocol or ""]
    options = case.get("compose", {})
    if options.get("passing"):
        options = {**options, "passing": HeaderForwarder(binding)}
    composer = EndpointComposer(catalog, endpoint, binding, **options)
    for _ in range(2):  # What was found out before is found again.
        for send, made in zip(case["sends"], composer.compose([event_of(each) for each in case["sends"]]), strict=True):
            check_message(send, made)


def test_a_stream_carries_no_subject_to_reply_to(tmp_path: Path) -> None:
    asks = {"protocol": "NATS", "protocoloptions": {"reply-to": {"value": "answers"}}}
    found = load_catalog(tmp_path, {"protocol": "NATS"}, {"T": asks})
    endpoint = found.endpoints["/endpoints/out"]
    made = make_composer(NatsSink(type="nats", endpoint=endpoint.xid, jetstream=False), endpoint, found)
    assert not isinstance(made.compose([event_of({})])[0], UnsendableMessage)
    stored = make_composer(NatsSink(type="nats", endpoint=endpoint.xid), endpoint, found)
    (refused,) = stored.compose([event_of({})])
    assert "reply-to should be 'answers' and is None" in str(refused)


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


# The cap on distinct destinations of a sink.


class Taking:
    """A target that takes everything, and remembers where it went."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def send(self, messages: Sequence[Outbound]) -> list[MessageRefusal | None]:
        self.addresses += [each.address for each in messages]
        return [None] * len(messages)

    def close(self) -> None: ...


def rows(*places: str) -> pa.Table:
    made: list[dict[str, Any]] = [
        {
            "id": str(at),
            "source": "/s",
            "type": "t",
            "position": f"t-0-{at}",
            "message": "/m",
            "context": [("x", place)],
        }
        for at, place in enumerate(places)
    ]
    return pa.Table.from_pylist(made, MESSAGE)


def test_past_the_cap_a_record_is_refused_and_the_known_destinations_go_on() -> None:
    target, spread = Taking(), DestinationCap(2)
    composer = TemplateComposer(parse_address("a/{context.x}", sending_of("mqtt")), BINDINGS["MQTT/5.0"], "binary")
    sink = ConfirmedSink("out", composer, target, spread=spread)
    result = sink.write(rows("p", "q", "r", "p", "s"), Commit("g", 1))
    assert target.addresses == ["a/p", "a/q", "a/p"]
    assert result.rows == 3
    assert [record.position for record in result.refused] == ["t-0-2", "t-0-4"]
    assert result.refused[0].reason.startswith(
        "a/r: it would be destination 3 of the sink, whose max_destinations is 2"
    )
    # What was decided of a batch stays decided while the process lives.
    again = ConfirmedSink("out", composer, target, spread=spread).write(rows("q", "r"), Commit("g", 2))
    assert [record.position for record in again.refused] == ["t-0-1"]


def test_a_message_that_is_refused_for_its_size_takes_no_place() -> None:
    target = Taking()
    composer = TemplateComposer(
        parse_address("a/{context.x}", sending_of("mqtt")), BINDINGS["MQTT/3.1.1"], "structured"
    )
    sink = ConfirmedSink("out", composer, target, max_body=1, spread=DestinationCap(1))
    result = sink.write(rows("p", "q"), Commit("g", 1))
    assert all("max_body" in record.reason for record in result.refused)


def test_the_known_destinations_outlive_a_plan_and_are_counted_by_sink_connection_and_template() -> None:
    told: dict[str, Any] = {"type": "mqtt", "topic": "t", "uri": ("mqtt://h",), "max_destinations": 1}
    assert get_destination_cap("a", MqttSink(**told)).fault("x") is None
    assert get_destination_cap("a", MqttSink(**told, qos=0)).fault("y") is not None
    assert get_destination_cap("a", MqttSink(**{**told, "max_destinations": 2})).fault("y") is None
    kafka = KafkaSink(type="kafka", bootstrap_servers="b", topic="t")
    for name, other in (
        ("b", MqttSink(**told)),
        ("a", MqttSink(**{**told, "topic": "u"})),
        ("a", MqttSink(**{**told, "uri": ("mqtt://k",)})),
        ("a", kafka),
        ("a", kafka.model_copy(update={"topic": "u"})),
    ):
        assert get_destination_cap(name, other).fault("z") is None
