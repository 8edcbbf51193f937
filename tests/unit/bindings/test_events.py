"""The JSON event codec: byte for byte as written, or refused (MATCHING.md#cloudevents). Cases in event_cases.json."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.exceptions import CloudEventValidationError
from hypothesis import example, given
from hypothesis import strategies as st

from bindings.cloudevents import to_cloudevent
from bindings.events import NotAnEvent, decode_batch, decode_event, encode_event, looks_like_event
from catalog.record import MAX_DEPTH
from catalog.schemas.contract import is_json_data

CASES: dict[str, list[dict[str, Any]]] = json.loads(Path(__file__).with_name("event_cases.json").read_text("utf-8"))
CONTENT_TYPES = [
    None,
    "application/json",
    "text/json; charset=utf-8",
    "a/b+json",
    "text/plain",
    "application/xml",
    "odd",
    "",
]


def cases(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", CASES[kind], ids=lambda case: str(case["why"]))


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


@cases("decodes")
def test_data_is_byte_exact(case: dict[str, Any]) -> None:
    event = decode_event(case["body"].encode())
    assert event.data == (None if case["data"] is None else case["data"].encode())
    assert event.faults == ()


@cases("attributes")
def test_attributes_are_text(case: dict[str, Any]) -> None:
    assert decode_event(case["body"].encode()).attributes == case["attributes"]


@cases("faults")
def test_faults_are_named(case: dict[str, Any]) -> None:
    (fault,) = decode_event(case["body"].encode()).faults
    assert fault.startswith(case["fault"])


@cases("refused")
def test_what_is_no_event_is_refused(case: dict[str, Any]) -> None:
    body = case["body"].encode()
    with pytest.raises(NotAnEvent):
        decode_event(body)
    with pytest.raises(NotAnEvent):
        decode_batch(b"[" + body + b",")
    assert not looks_like_event(body.replace(b"{", b'{"specversion":"1.0",', 1)) or case["why"] == "an array"


@pytest.mark.parametrize(
    "body", [None, b"\xff", b'{"a":"\xff"}', b'{"data":"\xed\xa0\x80"}', b"\xef\xbb\xbf{}", b"{}\x00"]
)
def test_bytes_that_are_no_text_are_refused(body: bytes | None) -> None:
    with pytest.raises(NotAnEvent):
        decode_event(body)
    assert not looks_like_event(body)


@pytest.mark.parametrize("levels", [1, 510, 511])
def test_the_event_and_its_data_may_have_512_levels(levels: int) -> None:
    data = nested(levels)
    assert decode_event(b'{"specversion":"1.0","data":' + data + b"}").data == data
    assert decode_batch(b"[" + data + b"]") == [data]


@pytest.mark.parametrize("levels", [512, 513, 1_000, 100_000])
def test_more_levels_are_refused(levels: int) -> None:
    body = b'{"specversion":"1.0","data":' + nested(levels) + b"}"
    with pytest.raises(NotAnEvent, match=r"512 levels|not valid JSON"):
        decode_event(body)
    assert not looks_like_event(body)
    with pytest.raises(NotAnEvent):
        decode_batch(b"[" + nested(levels) + b"]")


def test_many_brackets_side_by_side_are_no_depth() -> None:
    data = b"[" + b",".join([b"[]"] * 2_000) + b"]"
    assert decode_event(b'{"data":' + data + b"}").data == data


def test_a_batch_is_cut_into_raw_events() -> None:
    assert decode_batch(b' [ {"a": 1.0} , 3,"x" ,null] ') == [b'{"a": 1.0}', b"3", b'"x"', b"null"]
    assert decode_batch(b" [ ] ") == []


@pytest.mark.parametrize("body", [b"{}", b"", None, b"[1,]", b"[1] 2", b'[{"a":1,"a":2}]', b"[NaN]"])
def test_what_is_no_batch_is_refused(body: bytes | None) -> None:
    with pytest.raises(NotAnEvent):
        decode_batch(body)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        *((None, True), ("application/json", True), ("Text/JSON ; a=b", True), ("a/b+json", True)),
        *(("json", False), ("application/jsonl", False), ("text/plain; x=/json", False), ("", False)),
    ],
)
def test_json_content_types(content_type: str | None, expected: bool) -> None:
    assert is_json_data(content_type) is expected


names = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12).filter(
    lambda name: name not in ("data", "datacontenttype")
)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
json_bytes = st.builds(
    lambda value, indent, ascii_: json.dumps(value, indent=indent, ensure_ascii=ascii_).encode(),
    json_values,
    st.sampled_from([None, 1]),
    st.booleans(),
)


@pytest.mark.slow
@given(st.dictionaries(names, texts, max_size=5), st.sampled_from(CONTENT_TYPES), st.none() | st.binary() | json_bytes)
@example({}, "application/json", b"")
@example({}, "application/json", b"null")
@example({}, "application/json", b" 1")
@example({}, "application/json", nested(MAX_DEPTH - 1))
@example({}, "application/json", nested(MAX_DEPTH))
@example({}, "application/json", nested(MAX_DEPTH + 1))
@example({}, "application/json", b'{"a":1,"a":2}')
@example({}, "application/json", b'"\\ud800"')
@example({}, "text/plain", b"\xef\xbb\xbfx\x00")
def test_what_is_encoded_decodes_to_the_same(
    attributes: dict[str, str], content_type: str | None, data: bytes | None
) -> None:
    wanted = attributes if content_type is None else {**attributes, "datacontenttype": content_type}
    event = decode_event(encode_event(wanted, data))
    assert (event.attributes, event.data, event.faults) == (wanted, data, ())


@pytest.mark.slow
@given(json_bytes)
def test_any_json_survives_as_data(data: bytes) -> None:
    event = decode_event(b'{"specversion":"1.0" , "data": ' + data + b"}")
    assert event.data == (None if data == b"null" else data)


@given(st.binary(max_size=200) | json_bytes | st.builds(lambda text: text.encode(), texts))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    for decode in (decode_event, decode_batch):
        try:
            decode(body)
        except NotAnEvent as error:
            assert str(error)
    looks_like_event(body)


# Events as the SDK has them, for Python callers.


LEAST = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def test_texts_stay_texts_and_time_becomes_a_moment_with_its_offset() -> None:
    event = to_cloudevent(
        {**LEAST, "time": "2024-02-29T12:30:00.123456789+05:30", "count": "007", "ok": "true"}, b"{} "
    )
    assert event.get_time() == datetime(2024, 2, 29, 12, 30, 0, 123456, timezone(timedelta(hours=5, minutes=30)))
    assert event.get_time().utcoffset() == timedelta(hours=5, minutes=30)  # type: ignore[union-attr]
    assert (event.get_extension("count"), event.get_extension("ok"), event.get_data()) == ("007", "true", b"{} ")


def test_nothing_is_made_up() -> None:
    ours = dict(LEAST)
    event = to_cloudevent(ours)
    assert event.get_attributes() == ours == LEAST
    assert event.get_time() is None
    assert event.get_data() is None


@pytest.mark.parametrize("name", LEAST)
def test_an_event_that_lacks_what_it_must_have_is_refused(name: str) -> None:
    with pytest.raises(CloudEventValidationError, match=name):
        to_cloudevent({key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize("text", ["", "now", "2024-02-30T00:00:00Z", "2024-W01-1", "2016-12-31T23:59:60Z"])
def test_a_time_that_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        to_cloudevent({**LEAST, "time": text})


def test_small_letters_in_a_time_are_read() -> None:
    assert str(to_cloudevent({**LEAST, "time": "2024-01-01t00:00:00z"}).get_time()) == "2024-01-01 00:00:00+00:00"
