"""Events in JSON that columns settle are what the exact codec makes of them, and ordinary ones are settled so."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bindings.columns.envelopes import CONTENT_TYPE_NAME, JsonEvents
from bindings.envelope import STRUCTURED, Envelope
from bindings.events import looks_like_event
from bindings.parts import Part
from bindings.protocols import BINDINGS
from tests.support.cases import examples

PARTS = [Part("headers.content-type", STRUCTURED.encode())]
CASES: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).parents[1].joinpath("event_cases.json").read_text("utf-8")
)
CORE = '"specversion":"1.0","id":"1","source":"/s","type":"t"'


def exact(body: bytes) -> Envelope:
    return BINDINGS["HTTP"].read_envelope(PARTS, body, lambda: False)


def settled(events: JsonEvents, row: int) -> tuple[dict[str, str], bytes | None]:
    """Return attributes and data of one event, its attributes in their order and the content type last."""
    mine = [at for at, owner in enumerate(events.owners.tolist()) if owner == row]
    attributes = {events.names[events.codes[at]]: events.values[at].as_py().decode() for at in mine}
    for name, text in {**attributes, CONTENT_TYPE_NAME: events.types[row].as_py()}.items():
        column = events.types if name == CONTENT_TYPE_NAME else events.attribute_column(name)
        assert (None if column is None else column[row].as_py()) == text
    content = events.types[row].as_py()
    return {**attributes, **({} if content is None else {CONTENT_TYPE_NAME: content})}, events.data[row].as_py()


def held(bodies: list[bytes], begin: int = 0) -> JsonEvents:
    """Hold what columns say of these bodies, from *begin* on, against the exact codec."""
    events = JsonEvents(pa.array(bodies, pa.binary())[begin:])
    for row, body in enumerate(bodies[begin:]):
        if events.odd[row]:
            continue
        assert events.events[row] == looks_like_event(body), body
        if not events.events[row]:
            continue
        envelope = exact(body)
        assert (envelope.mode, envelope.faults) == ("structured", ()), body
        attributes = dict(envelope.attributes)
        content = attributes.pop(CONTENT_TYPE_NAME, None)
        due = {**attributes, **({} if content is None else {CONTENT_TYPE_NAME: content})}
        given, data = settled(events, row)
        assert (list(given.items()), data) == (list(due.items()), envelope.data), body
    return events


BLANKS = st.sampled_from(["", "", "", " ", "\n  ", "\t", " " * 40])
PLAIN = r"""null true false 0 -7 1.5 1e3 -0 NaN 01 tru "" "a" "1.0" "ü€" "\n" "\u0041" "\ud800" "a\"b" "\\" "{[:,"
"application/json" "text/plain" """
NAMED = r"""specversion id source type subject time datacontenttype dataschema ext partitionkey data data data_base64
Bad a_b ü a\u0062 data\n a:b {"""
SCALARS = st.sampled_from([*PLAIN.split(), '"\x01"', '"a b"', '""'])
NAMES = st.sampled_from([*NAMED.split(), ""])


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.lists(st.tuples(NAMES, BLANKS, BLANKS, values, BLANKS), max_size=4)
    return pairs.map(lambda each: "{" + ",".join(f'{a}"{n}"{b}:{a}{v}{c}' for n, a, b, v, c in each) + "}")


def lists(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(values, max_size=3), BLANKS).map(lambda each: f"[{each[1]}{','.join(each[0])}]")


VALUES = st.recursive(SCALARS, lambda inner: objects(inner) | lists(inner), max_leaves=8)
EVENTS = st.tuples(st.booleans(), objects(VALUES), BLANKS, BLANKS).map(
    lambda each: (
        each[2] + (each[1].replace("{", "{" + CORE + ("," if len(each[1]) > 2 else ""), 1)) + each[3]
        if each[0]
        else each[1]
    )
)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(
    st.lists(EVENTS | VALUES | st.sampled_from(["", "  ", '"abc"', ":1", "\ufeff{}"]), min_size=1, max_size=8),
    st.integers(0, 2),
)
def test_events_are_as_the_codec_reads_them(texts: list[str], begin: int) -> None:
    held([text.encode("utf-8", "surrogatepass") for text in texts], begin)


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(st.lists(EVENTS, min_size=1, max_size=4), st.integers(0), st.binary(max_size=3), st.integers(0, 3))
def test_a_spoilt_byte_changes_nothing_else(texts: list[str], at: int, spoilt: bytes, cut: int) -> None:
    bodies = [text.encode("utf-8", "surrogatepass") for text in texts]
    chosen = at % len(bodies)
    body = bodies[chosen]
    place = at % (len(body) + 1)
    bodies[chosen] = body[:place] + spoilt + body[place + cut :]
    held(bodies)


@pytest.mark.parametrize("kind", list(CASES))
def test_the_cases_of_the_codec(kind: str) -> None:
    bodies = [case["body"].encode() for case in CASES[kind]]
    held(bodies)
    held([b"{" + CORE.encode() + b"," + body.lstrip()[1:] for body in bodies])


def ordinary(chosen: Random, data: Any) -> bytes:
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"{chosen.random()}",
        "source": "/s",
        "type": "t",
        "time": "2026-07-01T00:00:00Z",
    }
    event |= {"subject": "ü", "count": 7, "flag": True, "none": None, "data": data}
    separators = chosen.choice([(", ", ": "), (",", ":"), (",\r\n", ":\t")])
    return json.dumps(event, separators=separators, indent=chosen.choice([None, 2]), ensure_ascii=False).encode()


def test_ordinary_events_are_settled() -> None:
    data: tuple[Any, ...] = ({"a": [1, {"b": '"{\\'}, {"b": 2}], "c": {"a": 1}}, [], "text", 1.5, None, True)
    bodies = [ordinary(Random(seed), data[seed % len(data)]) for seed in range(60)]
    events = held(bodies)
    assert not events.odd.any() and events.events.all()


ODD = {
    "a name twice": b'{"a":1,"a":1}',
    "a name twice among many": b"{" + b",".join(b'"n%d":1' % (at % 40) for at in range(41)) + b"}",
    "a name twice within": b'{"data":{"b":[{"a":1,"a":2}]}}',
    "deep": b'{"data":' + b"[" * 600 + b"]" * 600 + b"}",
    "deeper than the validator goes": b'{"data":' + b"[" * 100_000,
    "a list": b"[{}]",
    "nothing": b"",
    "no JSON": b"{]",
    "no UTF-8": b'{"a":"\xff"}',
    "a name by number": b'{"specversion":"1.0","\\u0069d":"1"}',
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_others_are_left_to_the_codec_beside_them(body: bytes) -> None:
    plain = b"{" + CORE.encode() + b',"data":{"a":1}}'
    events = held([plain, body, plain])
    assert events.odd.tolist() == [False, True, False]
