"""The lines of section 9 of the architecture."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from bindings.events import decode_event
from router.sinks.jsonlines import DEAD_LETTER, WIDE, format_instant, render_letter_lines, wide_to_json_line

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
