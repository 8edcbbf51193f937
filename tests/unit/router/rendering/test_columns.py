"""Events and native records of whole arrays are, row by row, what the exact reading of each row has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.events import encode_event, restore_types
from bindings.kafka.record_columns import SOURCE_SCHEMA, KafkaColumnReader
from router.rendering.events import (
    encode_structured_events,
    event_columns,
    inbox_native_texts,
    native_texts,
    read_attributes,
)
from router.rendering.lineage import context_json
from router.rendering.texts import (
    EVENT_TYPE,
    INSTANT,
    SourceKind,
    native_json,
    parse_instant,
    parse_instants,
    parts_of_raw,
)
from tests.support.cases import read_cases
from tests.support.exact_rendering import event_attributes, render_event

CASES: Final = Path(__file__).resolve().parents[3] / "cases"
PAIR: Final = [("key", pa.string()), ("value", pa.binary())]
HEADERS: Final = pa.list_(pa.struct(PAIR))
KAFKA: Final = pa.struct([field for field in SOURCE_SCHEMA if field.name != "value"])
INBOX: Final = pa.struct(
    [
        *((name, pa.string()) for name in ("endpoint", "protocol", "position")),
        ("received", INSTANT),
        ("properties", pa.list_(pa.struct([*PAIR, ("type", pa.string())]))),
    ]
)
INT32: Final = st.integers(-(2**31), 2**31 - 1)
INT64: Final = st.integers(-(2**63), 2**63 - 1)
GIVEN_TEXTS: Final[Mapping[str, Any]] = read_cases(CASES / "values" / "columns.yaml")["rendering"]
HOSTILE_TEXTS, CONTENT_TYPES, TIMES, NUMBERS = (
    GIVEN_TEXTS[name] for name in ("hostile", "content types", "times", "numbers")
)
NAMES, ODD_NAMES, KEYS = (GIVEN_TEXTS[name] for name in ("names", "odd names", "keys"))


TEXTS: Final = st.one_of(
    st.sampled_from(("1.0", "a", "/plants/7", *HOSTILE_TEXTS, *CONTENT_TYPES, *TIMES, *NUMBERS)), st.text(max_size=8)
)
VALUES: Final = st.one_of(
    st.none(), TEXTS.map(str.encode), st.binary(max_size=8), st.sampled_from((b"\xff", b"\xc3", b"\xed\xa0\x80", b"ok"))
)


ATTRIBUTES: Final = st.one_of(st.sampled_from((*NAMES, *ODD_NAMES)), st.text(max_size=4))


def entry(key: str | None, value: bytes | None, **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, **more}


@st.composite
def attribute_entries(draw: st.DrawFn, /, prefix: str, media: str, **more: Any) -> list[dict[str, Any]]:
    """An event in binary mode, or near one: attributes in any order, perhaps one of them spoilt."""
    found = [entry(f"{prefix}{name}", draw(TEXTS).encode(), **more) for name in draw(st.permutations(NAMES[:5]))]
    found.append(entry(f"{prefix}specversion", b"1.0", **more))
    if draw(st.booleans()):
        found.insert(
            draw(st.integers(0, len(found))), entry(media, draw(st.sampled_from(CONTENT_TYPES)).encode(), **more)
        )
    if draw(st.booleans()):
        found.append(entry(f"{prefix}time", draw(st.sampled_from(TIMES)).encode(), **more))
    return found


KAFKA_NAMES: Final = st.one_of(
    ATTRIBUTES.map("ce_{}".format),
    st.sampled_from(("content-type", "Content-Type", "ce_", "x.y", "xrouter-epoch", "content-encoding")),
    st.text(max_size=4),
)
KAFKA_HEADERS: Final = st.one_of(
    st.none(),
    attribute_entries("ce_", "content-type"),
    st.lists(st.builds(entry, st.one_of(KAFKA_NAMES, st.none()), VALUES), max_size=6),
    st.tuples(
        attribute_entries("ce_", "content-type"), st.lists(st.builds(entry, KAFKA_NAMES, VALUES), max_size=3)
    ).map(lambda lists: [*lists[0], *lists[1]]),
)
KAFKA_ROWS: Final = st.fixed_dictionaries(
    {
        "topic": st.one_of(st.none(), TEXTS),
        "partition": st.one_of(st.none(), INT32),
        "offset": st.one_of(st.none(), INT64),
        "timestamp": st.one_of(st.none(), INT64),
        "key": VALUES,
        "headers": KAFKA_HEADERS,
    }
)
PROTOCOLS: Final[Mapping[str, list[str]]] = GIVEN_TEXTS["protocols"]

KINDS: Final = st.sampled_from((None, None, None, "json", "binary", "other"))


@st.composite
def inbox_rows(draw: st.DrawFn) -> dict[str, Any]:
    protocol = draw(st.sampled_from((*PROTOCOLS, None)))
    prefix, media = PROTOCOLS[protocol or "HTTP"]
    keys = st.one_of(
        ATTRIBUTES.map(lambda name: f"{prefix}{name}"), st.sampled_from((media, *KEYS)), st.text(max_size=4)
    )
    stray = st.lists(st.builds(entry, keys, VALUES, type=KINDS), max_size=5)
    parts = [*draw(stray), *draw(st.one_of(st.just([]), attribute_entries(prefix, media, type=None))), *draw(stray)]
    received = datetime(2026, 1, 2, tzinfo=UTC)
    return {
        "endpoint": "/endpoints/e",
        "protocol": protocol,
        "position": "p",
        "received": received,
        "properties": parts,
    }


GIVEN_NAMES: Final = st.sampled_from(("content-type", *(f"ce_{name}" for name in NAMES if name != "datacontenttype")))
GIVEN: Final = st.one_of(
    st.none(),
    st.none(),
    st.dictionaries(GIVEN_NAMES, TEXTS.map(str.encode), min_size=1).map(
        lambda named: [entry(*each) for each in sorted(named.items(), key=lambda each: each[0] == "content-type")]
    ),
)
JSON_BODIES: Final = (b'{"a":1}', b'{"a":1,"a":1}', b" {}", b"{\n}", b"{")
BODIES: Final = st.one_of(VALUES, st.sampled_from(JSON_BODIES))
PLACES: Final = st.one_of(st.none(), st.none(), INT32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[SourceKind, pa.StructArray, pa.ListArray, pa.Int32Array]:
    """A batch of rows of one source, perhaps a slice of a larger one, as batches of Spark may be."""
    kind: SourceKind = draw(st.sampled_from(("kafka", "inbox", "letters")))
    rows = st.tuples(KAFKA_ROWS if kind == "kafka" else inbox_rows(), GIVEN, PLACES)
    drawn = [(row, _given(kind, row, given), at) for row, given, at in draw(st.lists(rows, min_size=1, max_size=6))]
    raw = pa.array([row for row, _, _ in drawn], KAFKA if kind == "kafka" else INBOX)
    given = pa.array([attributes for _, attributes, _ in drawn], HEADERS)
    place = pa.array([at for _, _, at in drawn], pa.int32())
    begin = draw(st.integers(0, len(drawn)))
    end = draw(st.integers(begin, len(drawn)))
    return kind, raw[begin:end], given[begin:end], place[begin:end]


def _given(kind: SourceKind, row: dict[str, Any], given: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return the attributes of a row as matching gives them: none for a record of Kafka that it read by columns."""
    if given is not None:
        return given
    if kind == "kafka":
        read = KafkaColumnReader((), sniffs=False).read_columns(pa.RecordBatch.from_pylist([row], SOURCE_SCHEMA))
        if read.events[0] and not read.odd[0]:
            return None
    named = event_attributes(*parts_of_raw(row, kind, None), None) or {"id": "1"}
    media = named.pop("datacontenttype", None)
    headers = [entry(f"ce_{name}", text.encode()) for name, text in named.items()]
    return headers if media is None else [*headers, entry("content-type", media.encode())]


def rows_of(*arrays: pa.Array) -> list[tuple[Any, ...]]:
    return list(zip(*(array.to_pylist() for array in arrays), strict=True))


@pytest.mark.slow
@given(batches())
def test_columns_are_what_each_row_is(batch: tuple[SourceKind, pa.StructArray, pa.ListArray, pa.Int32Array]) -> None:
    kind, raw, attributes, place = batch
    events = event_columns(*batch)
    events.validate(full=True)
    expected = [render_event(*parts_of_raw(row, kind, at), named) for row, named, at in rows_of(raw, attributes, place)]
    assert events.equals(pa.array(expected, EVENT_TYPE))
    natives = [native_json(*parts_of_raw(row, kind, at)) for row, at in rows_of(raw, place)]
    assert native_texts(kind, raw, place).to_pylist() == natives


@given(
    batches(),
    st.lists(BODIES, min_size=6, max_size=6),
    st.lists(st.sampled_from([None, None, "n", "n flag", "absent"]), min_size=6, max_size=6),
)
def test_structured_events_are_what_each_row_is(
    batch: tuple[SourceKind, pa.StructArray, pa.ListArray, pa.Int32Array],
    bodies: list[bytes | None],
    typed: list[str | None],
) -> None:
    kind, raw, attributes, place = batch
    body, names = pa.array(bodies[: len(raw)], pa.binary()), pa.array(typed[: len(raw)], pa.string())
    expected = [
        encode_event(restore_types(event_attributes(*parts_of_raw(row, kind, at), named), types), data)
        for row, named, at, data, types in rows_of(raw, attributes, place, body, names)
    ]
    assert encode_structured_events(read_attributes(raw, attributes), body, names).to_pylist() == expected


@pytest.mark.timeout(60)
def test_any_number_of_names_takes_time_that_grows_with_it() -> None:
    """Senders choose the names of extensions: 200,000 of them take a second, or minutes if each is searched for."""
    headers = [[{"key": f"ce_a{row}x{at}", "value": b"v"} for at in range(20)] for row in range(10_000)]
    given = pa.array(headers, pa.list_(pa.struct(PAIR)))
    attributes = read_attributes(pa.StructArray.from_arrays([pa.nulls(len(headers))], ["key"]), given)
    assert len(attributes.names) == len(attributes.texts) == 200_000


def test_ordinary_rows_are_not_odd() -> None:
    for protocol, (prefix, media) in PROTOCOLS.items():
        parts = [entry(f"{prefix}{name}", b"1.0", type=None) for name in NAMES[:5]]
        parts += [entry(media, b"text/plain", type=None), entry("qos", b"1", type="json")]
        inbox = pa.array([{"protocol": protocol, "properties": parts}], INBOX)
        assert inbox_native_texts(inbox)[1].tolist() == [protocol == "KAFKA"], protocol


@st.composite
def near_times(draw: st.DrawFn) -> str:
    """A date-time whose numbers are at or past their bounds, perhaps with one letter changed."""
    numbers = [
        draw(st.sampled_from(each)) for each in ((0, 1, 2024, 2023, 9999), (0, 1, 2, 12, 13), (0, 1, 28, 29, 31, 32))
    ]
    clock = [draw(st.sampled_from(each)) for each in ((0, 23, 24), (0, 59, 60), (0, 59, 60, 61))]
    date = "{:04}-{:02}-{:02}".format(*numbers)
    fraction = draw(st.one_of(st.just(""), st.from_regex(r"\.[0-9]{0,11}", fullmatch=True)))
    zone = draw(st.sampled_from(("Z", "z", "+00:00", "-23:59", "+24:00", "+01:60", "-00:01", "", "+0100", "+01")))
    text = date + draw(st.sampled_from("Tt ")) + "{:02}:{:02}:{:02}".format(*clock) + fraction + zone
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from("0:;/.-TZ9٣ ")) + text[at + 1 :]
    return text


@given(st.lists(st.one_of(st.none(), near_times(), st.sampled_from(TIMES), st.text(max_size=40))))
def test_instants_are_read_as_one_by_one(texts: list[str | None]) -> None:
    assert parse_instants(pa.array(texts, pa.string())).cast(pa.int64()).to_pylist() == [
        parse_instant(text) for text in texts
    ]


def test_instants_at_the_bounds_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    dates = ("2024-02-29", "2000-02-29", "0004-02-29", "0001-01-01", "9999-12-31", "0999-06-30", "3000-12-31")
    plain = [date + time for date in dates for time in ("T23:59:59Z", "t00:00:00.5z", "T12:30:05.123456789Z")]
    exact = [parse_instant(text) for text in plain]
    monkeypatch.setattr("router.rendering.texts.parse_instant", lambda text: None)
    assert parse_instants(pa.array(plain, pa.string())).cast(pa.int64()).to_pylist() == exact


@pytest.mark.slow
def test_rendering_and_lines_need_no_spark() -> None:
    modules = "router.rendering.events, router.rendering.events, router.sinks.jsonlines"
    script = f"import sys, {modules}\nsys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# The context attributes in a header are JSON.


def test_context_in_a_header_is_json_with_members_in_order() -> None:
    odd = "".join(chr(code) for code in range(0x21)) + '"\\/\x7f\u2028é😀'
    contexts: list[dict[str, str | None]] = [{}, {"a": "b"}, {odd: odd, "b": ""}, {"x": "1", "y": None}, {}, {"n": odd}]
    without_null = [each for each in contexts if None not in each.values()]
    for several in (contexts, without_null, without_null[:2]):
        maps = pa.array([[("z", "1")], *(list(each.items()) for each in several)], pa.map_(pa.string(), pa.string()))
        texts = context_json(maps.slice(1)).to_pylist()
        assert [list(json.loads(text).items()) for text in texts] == [list(each.items()) for each in several]
    assert texts == ["{}", '{"a":"b"}']
