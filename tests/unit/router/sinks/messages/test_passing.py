"""Headers of a record that were no attributes go on with its message, within the limits of its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.amqp.publisher import encode_message
from bindings.amqp.values import decode_message
from bindings.http.binding import FIELD_NAME, FIELD_VALUE
from bindings.mqtt import publisher
from bindings.nats.binding import build_header_block
from bindings.protocols import BINDINGS
from bindings.sending import Outbound
from router.settings import KafkaSink
from router.settings.sinks.messages import HttpSink, MqttSink
from router.sinks.messages.definitions import make_header_forwarder
from router.sinks.messages.sink import HeaderForwarder, Mode, RoutedEvent, build_message
from tests.support.cases import read_cases

CASES: Final = Path(__file__).resolve().parents[4] / "cases" / "sinks" / "passing.yaml"
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


@pytest.mark.parametrize("case", read_cases(CASES), ids=lambda case: case["case"])
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
