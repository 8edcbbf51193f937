"""The lines of section 9 of the architecture."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bindings.events import build_data_member, decode_event
from router.rendering.events import can_embed
from router.rendering.texts import TIME_TEXT
from router.sinks.jsonlines import (
    AMBIGUOUS,
    DEAD_LETTER,
    WIDE,
    WIDE_WITH_AMBIGUOUS,
    format_instant,
    render_event_lines,
    render_letter_lines,
    wide_to_json_line,
)
from tests.support.cases import read_cases

EVENT: dict[str, Any] = {"id": "1", "source": "s", "specversion": "1.0", "type": "t"}


def test_wide_columns() -> None:
    assert (
        WIDE.names
        == (
            "id source specversion type subject datacontenttype dataschema time extensions data "
            "message endpoint epoch position protocol context native received"
        ).split()
    )
    assert WIDE.field("time").type == pa.timestamp("us", "UTC")
    assert WIDE.field("data").type == pa.binary()


def test_dead_letter_columns() -> None:
    assert (
        DEAD_LETTER.names
        == (
            "letter reason detail nearest endpoint protocol native body epoch position received failed attempts"
        ).split()
    )
    assert DEAD_LETTER.field("attempts").type == pa.int32()


def test_wide_line() -> None:
    row = {
        **EVENT,
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "extensions": [("plant", "7")],
        "message": "/messagegroups/G/messages/M",
        "endpoint": "/endpoints/E",
        "context": [("x", "y")],
        "epoch": "e",
        "position": "t-0-1",
        "received": datetime(2026, 1, 2, 3, 4, 5, 120000, tzinfo=UTC),
    }
    assert json.loads(wide_to_json_line(row)) == {
        "cloudevent": {**EVENT, "time": "2026-01-02T00:00:00Z", "plant": "7"},
        "message": "/messagegroups/G/messages/M",
        "endpoint": "/endpoints/E",
        "context": {"x": "y"},
        "epoch": "e",
        "position": "t-0-1",
        "received": "2026-01-02T03:04:05.12Z",
    }


def test_time_as_the_event_wrote_it() -> None:
    line = wide_to_json_line({**EVENT, "time_text": "2026-01-02T03:04:05.123456789+02:00"})
    assert json.loads(line)["cloudevent"]["time"] == "2026-01-02T03:04:05.123456789+02:00"


@pytest.mark.parametrize(
    ("content_type", "data", "text"),
    [
        ("application/json", b'{"a": 1.00, "b":"\\u00e9"}', b'"data":{"a": 1.00, "b":"\\u00e9"}'),
        ("text/json", b"1e400", b'"data":1e400'),
        (None, b'{"a":1}', b'"data_base64":"eyJhIjoxfQ=="'),
        ("application/vnd.x+json; a=b", b"[1 ]", b'"data":[1 ]'),
        ("application/json", b'{"a":\n1}', b'"data_base64":"'),
        ("application/json", b"no json", b'"data_base64":"'),
        ("text/plain", "é\r\n".encode(), '"data":"é\\r\\n"'.encode()),
        ("text/plain", b"\xff", b'"data_base64":"/w=="'),
        ("image/png", b"", b'"data":""'),
    ],
)
def test_data_comes_back_byte_for_byte(content_type: str | None, data: bytes, text: bytes) -> None:
    line = wide_to_json_line({**EVENT, "datacontenttype": content_type, "data": data})
    assert text in line
    assert b"\n" not in line
    start = line.index(b'{"specversion"')
    event = decode_event(line[start : line.index(b',"message":')])
    assert event.data == data
    assert not event.faults


def letter_line(row: dict[str, Any]) -> bytes:
    (line,) = render_letter_lines(pa.RecordBatch.from_pylist([row], DEAD_LETTER)).to_pylist()
    return bytes(line.encode())


def test_dead_letter_line() -> None:
    row = {
        "letter": "l",
        "reason": "no-match",
        "nearest": '[{"message":"/m"}]',
        "native": '{"a":1e400}',
        "body": b"\x00\xff",
        "failed": datetime(2026, 1, 2, tzinfo=UTC),
        "attempts": 1,
    }
    line = letter_line(row)
    assert b'"native":{"a":1e400}' in line
    form = json.loads(line)
    assert list(form) == DEAD_LETTER.names
    assert (form["body"], form["nearest"], form["failed"]) == ("AP8=", [{"message": "/m"}], "2026-01-02T00:00:00Z")
    for odd in ("odd\n{", "{", "{}\n", '{"a":1} x', '{"a": 01}', '{"a" 1}', ""):
        assert json.loads(letter_line({"native": odd}))["native"] == odd


def test_instants() -> None:
    assert format_instant(None) is None
    assert format_instant(datetime(2026, 1, 2, 10, 0, 0, 1, tzinfo=UTC)) == "2026-01-02T10:00:00.000001Z"
    assert format_instant(datetime(2026, 1, 2, 10, tzinfo=UTC)) == "2026-01-02T10:00:00Z"


def test_integers_and_booleans_are_no_texts() -> None:
    row = {**EVENT, "extensions": [("n", "-7"), ("dry", "true"), ("m", "7")], "typed": "n dry"}
    event = json.loads(wide_to_json_line(row))["cloudevent"]
    assert (event["n"], event["dry"], event["m"]) == (-7, True, "7")
    assert json.loads(wide_to_json_line({**row, "datacontenttype": "a/json", "data": b"1\n"}))["cloudevent"]["n"] == -7


# Lines of whole batches are, row by row, those that each row has by itself.


EVENTS: Final = WIDE_WITH_AMBIGUOUS.append(pa.field(TIME_TEXT, pa.string()))
TEXTS_GIVEN: Final[Mapping[str, Any]] = read_cases(Path(__file__).parents[3] / "cases" / "values" / "columns.yaml")[
    "lines"
]
SPECIAL: Final[list[str]] = TEXTS_GIVEN["special"]
TEXTS: Final = st.one_of(st.sampled_from(SPECIAL), st.text(max_size=5))
CONTENT_TYPES: Final = st.sampled_from(
    (None, "", "application/json", "text/plain", "a/b+JSON; c=d", "application/xml", "é/json")
)
INSTANTS: Final = st.one_of(
    st.none(),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from(
        (
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(999, 12, 31, 0, 10, 20, 100, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        )
    ),
)
NAMES: Final = st.one_of(
    st.sampled_from(("id", "specversion", "time", "data", "data_base64", "x", "traceparent")), TEXTS
)
MAPS: Final = st.one_of(st.none(), st.lists(st.tuples(NAMES, st.one_of(TEXTS, st.none())), max_size=4))
KEYS: Final = st.sampled_from(TEXTS_GIVEN["keys"])


def spelt(text: str, way: int) -> str:
    """A JSON string in one of several ways to write it."""
    plain = json.dumps(text, ensure_ascii=False)
    return (plain, json.dumps(text), '"' + "".join(f"\\u{ord(each):04x}" for each in text) + '"')[way % 3]


@st.composite
def bodies(draw: st.DrawFn, depth: int = 3) -> str:
    """JSON text of any form, with blanks and with keys that may repeat."""
    blank = draw(st.sampled_from(("", "", "", "", " ", "\t", "\n")))
    kind = draw(st.integers(0, 6 if depth else 3))
    if kind == 0:
        return draw(
            st.sampled_from(("1", "-0", "1e999", "1.5E-3", "true", "null", "00", "1.", "NaN", "nul", "", '"\\ud800"'))
        )
    if kind == 1:
        return spelt(draw(st.one_of(KEYS, TEXTS)), draw(st.integers(0, 2)))
    if kind <= 3:
        return draw(
            st.sampled_from(("{}", "[]", '{"a" : 1}', '"x"', '{"a":1,"a":1}', '{"a":1,}', '"\\"', '"a":1', "1,2"))
        )
    items = [draw(bodies(depth - 1)) for _ in range(draw(st.integers(0, 4)))]
    if kind == 4:
        return f"[{blank}{f'{blank},'.join(items)}]"
    keys = [spelt(draw(KEYS), draw(st.sampled_from((0, 0, 0, 1, 2)))) for _ in items]
    return "{" + f",{blank}".join(f"{key}:{item}" for key, item in zip(keys, items, strict=True)) + "}"


DATA: Final = st.one_of(
    st.none(),
    st.binary(max_size=6),
    bodies().map(lambda text: text.encode("utf-8")),
    st.sampled_from([text.encode() for text in SPECIAL]),
)
EVENT_ROWS: Final = st.fixed_dictionaries(
    {
        **{field.name: st.one_of(st.none(), TEXTS) for field in EVENTS if field.type == pa.string()},
        "datacontenttype": CONTENT_TYPES,
        "time": INSTANTS,
        "received": INSTANTS,
        "extensions": MAPS,
        "context": MAPS,
        "data": DATA,
    }
)
LETTER_ROWS: Final = st.fixed_dictionaries(
    {
        **{field.name: st.one_of(st.none(), TEXTS) for field in DEAD_LETTER if field.type == pa.string()},
        "native": st.one_of(st.none(), bodies(), TEXTS),
        "nearest": st.one_of(st.none(), bodies(), TEXTS),
        "received": INSTANTS,
        "failed": INSTANTS,
        "attempts": st.one_of(st.none(), st.integers(0, 9)),
        "body": DATA,
    }
)


def check(
    rows: list[dict[str, Any]],
    schema: pa.Schema,
    lines: Callable[[pa.RecordBatch], pa.StringArray],
    line: Callable[[Mapping[str, Any]], bytes],
    begin: int,
) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)[begin:]
    made = lines(batch)
    made.validate(full=True)
    assert made.to_pylist() == [line(row).decode() + "\n" for row in batch.to_pylist()]


@given(st.lists(EVENT_ROWS, max_size=5), st.integers(0, 2))
def test_lines_of_events_are_those_of_each(rows: list[dict[str, Any]], begin: int) -> None:
    check(rows, EVENTS, render_event_lines, wide_to_json_line, begin)
    fewer = pa.schema([field for field in EVENTS if field.name not in (AMBIGUOUS, TIME_TEXT)])
    check(rows, fewer, render_event_lines, wide_to_json_line, begin)


def plain_letter_line(row: Mapping[str, Any]) -> bytes:
    """Return the line of one dead letter by the plain way."""
    members: dict[str, Any] = {}
    for name in DEAD_LETTER.names:
        value = members[name] = row.get(name)
        if name in ("received", "failed"):
            members[name] = format_instant(value)
        elif name == "body" and value is not None:
            members[name] = base64.b64encode(value).decode("ascii")
        elif name in ("nearest", "native") and value is not None and not set(value) & {"\n", "\r"}:
            with suppress(msgspec.DecodeError, RecursionError):
                msgspec.json.decode(value, type=msgspec.Raw)
                members[name] = msgspec.Raw(value.encode())
    return msgspec.json.encode(members)


@given(st.lists(LETTER_ROWS, max_size=5), st.integers(0, 2))
def test_lines_of_letters_are_those_of_each(rows: list[dict[str, Any]], begin: int) -> None:
    check(rows, DEAD_LETTER, render_letter_lines, plain_letter_line, begin)


TOGETHER: Final = [
    *([body.encode("latin-1") for body in bodies] for bodies in TEXTS_GIVEN["together"]),
    [b"[" * 511 + b"]" * 511, b"[" * 512 + b"]" * 512, b"[[]," * 400 + b"1" + b"]" * 400],
]


@given(st.lists(DATA, max_size=8))
@pytest.mark.parametrize("reverse", [False, True])
def test_a_body_is_embedded_as_by_itself(reverse: bool, data: list[bytes | None]) -> None:
    data = data[::-1] if reverse else data
    expected = [value is not None and "data" in build_data_member("application/json", value) for value in data]
    assert can_embed(pa.array(data, pa.binary())).tolist() == expected


for each in TOGETHER:
    test_a_body_is_embedded_as_by_itself = example(data=each)(test_a_body_is_embedded_as_by_itself)
