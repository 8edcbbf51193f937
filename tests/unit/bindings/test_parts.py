"""Native records taken apart and put together again: nothing is lost, nothing unsound is taken."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.kafka.binding import split_row
from bindings.protocols import BINDINGS, binding_of
from catalog.findings import RecordError
from catalog.record import Record, parse_record
from tests.support.cases import read_cases

texts = st.text(st.characters(codec="utf-8"), max_size=8)
binaries = st.binary(max_size=8)
odd_binaries = binaries.filter(lambda data: not _is_text(data))
base64s = binaries.map(lambda data: base64.b64encode(data).decode())
int64s = st.integers(-(2**63), 2**63 - 1)
scalars = texts | int64s | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
plain = scalars | st.lists(scalars, max_size=3) | st.dictionaries(texts.filter(lambda name: name != "base64"), scalars)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def entries(names: st.SearchStrategy[str] = texts) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Name/value lists as the native form writes them, never empty."""
    value = st.fixed_dictionaries({"name": names, "value": st.none() | scalars})
    encoded = odd_binaries.map(lambda data: base64.b64encode(data).decode())
    return st.lists(value | st.fixed_dictionaries({"name": names, "value_base64": encoded}), min_size=1, max_size=5)


def maps() -> st.SearchStrategy[dict[str, Any]]:
    binary = base64s.map(lambda text: {"base64": text})
    return st.dictionaries(texts, plain | binary, min_size=1, max_size=4)


lower = texts.map(lambda name: name.lower()).filter(lambda name: name == name.lower())
NATIVES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "HTTP": st.fixed_dictionaries(
        {}, optional={"method": texts, "path": texts, "query": entries(), "headers": entries(lower), "status": int64s}
    ),
    "AMQP/1.0": st.fixed_dictionaries(
        {}, optional={name: maps() for name in ("properties", "application-properties", "header", "footer", "types")}
    ),
    "MQTT/5.0": st.fixed_dictionaries(
        {},
        optional={
            "topic_name": texts,
            "qos": st.integers(0, 2),
            "retain": st.booleans(),
            "correlation_data": base64s,
            "content_type": texts,
            "user_properties": entries(),
        },
    ),
    "KAFKA": st.fixed_dictionaries(
        {},
        optional={
            "topic": texts,
            "partition": st.integers(0, 2**31 - 1),
            "offset": int64s,
            "timestamp": int64s,
            "key": texts,
            "headers": entries(),
        },
    ),
    "NATS": st.fixed_dictionaries(
        {}, optional={"subject": texts, "reply-to": texts, "headers": entries(), "stream": texts, "sequence": int64s}
    ),
}
NATIVES["MQTT/3.1.1"] = NATIVES["MQTT/5.0"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", BINDINGS)
def test_a_native_record_survives(protocol: str) -> None:
    binding = BINDINGS[protocol]

    @given(NATIVES[protocol])
    def survives(native: dict[str, Any]) -> None:
        assert binding.build(binding.split(native)) == native

    survives()


@given(st.none() | binaries, st.lists(st.tuples(texts, st.none() | binaries), max_size=5))
def test_a_kafka_row_has_the_parts_of_its_record(key: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    row = {"topic": "t", "partition": 1, "offset": 2, "timestamp": 3, "key": key}
    row["headers"] = [{"key": name, "value": value} for name, value in headers]
    binding, parts = BINDINGS["KAFKA"], split_row(row)
    assert sorted(map(repr, binding.split(binding.build(parts)))) == sorted(map(repr, parts))


@given(
    st.sampled_from(list(BINDINGS)).flatmap(lambda name: st.tuples(st.just(name), NATIVES[name])),
    st.none() | binaries,
    st.none() | texts,
    st.none() | texts,
)
def test_a_record_survives_its_json(
    told: tuple[str, dict[str, Any]], body: bytes | None, endpoint: str | None, time: str | None
) -> None:
    record = Record(told[0], told[1], body, endpoint, time)
    assert parse_record(json.dumps(record.to_json())) == record
    assert parse_record(json.dumps(record.to_json(), ensure_ascii=False).encode()) == record


def test_http_header_names_become_lower_case_and_keep_their_order() -> None:
    headers = [{"name": "X-B", "value": "1"}, {"name": "x-a", "value": "2"}, {"name": "x-b", "value": "3"}]
    parts = BINDINGS["HTTP"].split({"headers": headers, "query": [{"name": "X", "value": "4"}]})
    assert [part.key for part in parts] == ["headers.x-b", "headers.x-a", "headers.x-b", "query.X"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(("kafka", "KAFKA"), ("Kafka/3.5", "KAFKA"), ("HTTP/2", "HTTP"), ("http", "HTTP"), ("mqtt", "MQTT/5.0")),
        *(("MQTT/3.1.1", "MQTT/3.1.1"), ("amqp", "AMQP/1.0"), ("NATS", "NATS"), ("MQTT/4", None), ("", None)),
    ],
)
def test_protocols_by_the_names_records_use(name: str, expected: str | None) -> None:
    binding = binding_of(name)
    assert (binding.protocol if binding else None) == expected


CASES: dict[str, Any] = read_cases(Path(__file__).parents[2] / "cases" / "values" / "records.yaml")


@pytest.mark.parametrize(
    ("line", "told"), [*CASES["lines"], (b"\xff", "not a JSON record"), ("[" * 100_000, "not a JSON record")]
)
def test_lines_that_are_no_record(line: str | bytes, told: str) -> None:
    with pytest.raises(RecordError, match=told):
        parse_record(line)


@pytest.mark.parametrize(("protocol", "native", "told"), CASES["natives"])
def test_natives_of_the_wrong_shape(protocol: str, native: dict[str, Any], told: str) -> None:
    with pytest.raises(RecordError, match=told):
        BINDINGS[protocol].split(native)
