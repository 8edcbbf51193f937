"""No mapped record leaves as an invalid CloudEvent (MATCHING.md#mapping, CloudEvents 1.0.2 section 3)."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.columns.entries import is_valid_string
from catalog.definitions.constraints import Constraint
from catalog.model import CLOUDEVENTS, Catalog, Definition, Endpoint, Property, PropertyType
from catalog.templates import parse_template
from catalog.values import is_valid
from router.matching.context import extract_placeholder
from router.matching.inbox_columns import arrival_times, to_rfc3339
from router.matching.index.classes import KeyTable, PropertyClasses, Ragged, SplitColumn
from router.matching.mapping import check_types, is_always_valid, name_fault, types_of, value_fault
from router.matching.records import RecordMatcher
from tests.support.cases import read_cases
from tests.support.generation import ENDPOINT, GROUP
from tests.support.reference import Reference
from tests.support.rule_ways import decide_both

ODD = "\x00\x1f \x7e\x7f\x9f\xa0ä\ufdcf\ufdd0\ufdef\ufdf0\ufffd\ufffe\uffff\U0001fffd\U0001fffe\U0010ffff%/:?#[]2T-Z"
TEXTS = st.lists(st.none() | st.text(st.characters(codec="utf-8") | st.sampled_from(ODD), max_size=8), max_size=8)
URIS = st.text(st.sampled_from("aZ09-._~%20/:?#[]@!$&'()*+,;= {}ä"), max_size=10)
TIMES = st.from_regex(
    r"\A20[0-9]{2}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6]0:[0-6]0(\.[0-9]{0,10})?(Z|z|[+-]0[0-9]:00)?\Z"
)
CHECKED = ("uri", "urireference", "uritemplate", "timestamp", "symbol")
ATTRIBUTES = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")


def judge(record: dict[str, Any], *attributes: Property, uris: tuple[str, ...] = (), **rest: Any) -> dict[str, Any]:
    """Judge a record by both matchers, against one definition that takes it and maps it by these attributes."""
    options = tuple(Property(f"headers.{name}", "string", f"{{{name}}}") for name in _names(record))
    known: dict[str, Any] = {"envelope": CLOUDEVENTS, "protocol": "KAFKA", **rest}
    own = options if known["protocol"] == "KAFKA" else ()
    # Loading makes it absolute, which these values are as they are, or will never be.
    known |= next(({"schemauri": each.value} for each in attributes if each.name == "dataschema"), {})
    definition = Definition(f"{GROUP}/messages/m", GROUP, envelopemetadata=attributes, protocoloptions=own, **known)
    endpoint = Endpoint(ENDPOINT, uris=uris, candidates=(definition.xid,))
    catalog = Catalog({definition.xid: definition}, {GROUP: (definition.xid,)}, {ENDPOINT: endpoint})
    line = json.dumps({"endpoint": ENDPOINT, "protocol": known["protocol"], **record})
    found = decide_both(RecordMatcher(catalog), line)
    expected = Reference(catalog).outcome(line)
    assert (expected["outcome"], expected.get("reason")) == (found["outcome"], found.get("reason")), (expected, found)
    if found["outcome"] == "routed" and expected["cloudevent"]["id"] == "(position)":
        expected["cloudevent"]["id"] = found["cloudevent"]["id"]
    assert expected.get("cloudevent") == found.get("cloudevent")
    return found


def _names(record: dict[str, Any]) -> list[str]:
    headers = record.get("native", {}).get("headers", ())
    return [each["name"] for each in headers if each["name"] in ("x", "y")]


def with_x(text: str) -> dict[str, Any]:
    return {"native": {"topic": "t", "headers": [{"name": "x", "value": text}]}}


def refused(found: dict[str, Any], *words: str) -> None:
    assert found.get("reason") == "unmappable", found
    assert found["detail"].startswith(f"{GROUP}/messages/m: ")
    for word in words:
        assert word in found["detail"]


CASES: dict[str, Any] = read_cases(Path(__file__).parents[3] / "cases" / "matching" / "attributes.yaml")


@pytest.mark.parametrize(("name", "kind", "value"), CASES["constants"])
def test_constants_that_break_their_type(name: str, kind: PropertyType, value: Any) -> None:
    refused(judge(with_x("1"), Property(name, kind, value)), f"{name}: ")


@pytest.mark.parametrize(("name", "kind", "template", "text", "leaves"), CASES["templates"])
def test_templates_that_a_record_makes_break_their_type(
    name: str, kind: PropertyType, template: str, text: str, leaves: bool
) -> None:
    found = judge(with_x(text), Property(name, kind, template))
    if leaves:
        assert found["outcome"] == "routed" and found["cloudevent"][name]
    else:
        refused(found, f"{name}: ")


@pytest.mark.parametrize("case", CASES["records"], ids=lambda case: case["case"])
def test_a_record_is_mapped_as_its_case_says(case: dict[str, Any]) -> None:
    record = {"native": case["native"]} | ({"time": case["time"]} if "time" in case else {})
    attributes = [Property(*each) for each in case.get("attributes", ())]
    more = {"protocol": case.get("protocol", "KAFKA"), **case.get("definition", {})}
    found = judge(record, *attributes, uris=tuple(case.get("uris", ())), **more)
    if "fails" in case:
        refused(found, *case["fails"])
    else:
        assert found["outcome"] == ("dead-letter" if "dead" in case else "routed")
        assert {name: found["cloudevent"].get(name) for name in case.get("event", ())} == case.get("event", {})


@given(TEXTS)
def test_printable_agrees_with_one_by_one(texts: list[str | None]) -> None:
    expected = [None if text is None else not value_fault("ext", (), text) for text in texts]
    assert is_valid_string(pa.array(texts, pa.string())).to_pylist() == expected


@given(st.characters(codec="utf-8"))
def test_what_no_string_may_hold(text: str) -> None:
    nonchar = ord(text) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(text) <= 0xFDEF
    assert bool(value_fault("ext", (), text)) is (category(text) == "Cc" or nonchar)


@pytest.mark.slow
@given(st.lists(st.none() | URIS | TIMES | st.text(max_size=3), max_size=8), st.sampled_from(CHECKED))
def test_of_types_agrees_with_one_by_one(texts: list[str | None], kind: str) -> None:
    expected = [None if text is None else is_valid(kind, text, bits32=True) for text in texts]
    assert check_types(pa.array(texts, pa.string()), (kind,)).to_pylist() == expected


@given(st.lists(URIS, min_size=2, max_size=2), st.from_regex(r"\A([A-Za-z0-9\-._~]|%[0-9A-F]{2})+\Z"))
def test_templates_that_encode_need_no_look(pieces: list[str], value: str) -> None:
    """What is valid with a letter and with an escape is valid with all that encoding gives."""
    before, after = pieces
    types = types_of("source", "uritemplate")
    if is_always_valid("source", types, [before + probe + after for probe in ("a", "%20")]):
        assert not value_fault("source", types, before + value + after)


def test_names_of_cloudevents_are_names() -> None:
    assert not [name for name in (*ATTRIBUTES, "partitionkey", "a1") if name_fault(name)]


# Placeholders taken out of many values together are those that a template takes out of each.


LITERALS = st.sampled_from(
    ["-", "/", ".", "a", "-a", "--", "é", "\\", "$", "^", " ", "\n", "\0", "{", "(?", "|", "[^/]"]
)
PIECES = st.one_of(LITERALS, st.sampled_from(["{x}", "{y}", "{z.1}"]))


@given(st.lists(PIECES, min_size=1, max_size=8), st.booleans(), st.data())
def test_captured_is_what_the_template_takes(pieces: list[str], dots: bool, data: st.DataObject) -> None:
    template = parse_template("".join(pieces), dots=dots)
    if template.is_literal or template.is_bare:
        return
    filled = st.tuples(*(LITERALS if piece.endswith("}") else st.just(piece) for piece in pieces)).map("".join)
    texts = data.draw(st.lists(st.one_of(filled, st.lists(LITERALS, max_size=8).map("".join), st.none()), max_size=20))
    expected = [None if text is None else template.match(text) for text in texts]
    for name in dict.fromkeys(template.names):
        taken = extract_placeholder(template, name, pa.array(texts, pa.string()))
        if len(set(template.names)) < len(template.names):
            assert taken is None
        else:
            assert taken is not None
            assert taken.to_pylist() == [None if each is None else each[name] for each in expected]


# Instants of whole columns as RFC 3339 text.


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(st.lists(st.none() | st.datetimes(), max_size=6), st.sampled_from(("UTC", "Europe/Berlin", "+05:30")))
def test_arrivals_are_told_in_utc_to_the_microsecond(given: list[datetime | None], zone: str) -> None:
    moments = [
        None if each is None else (each.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for each in given
    ]
    texts = [None if each is None else f"{each.isoformat(timespec='microseconds')}Z" for each in given]
    assert arrival_times(pa.array(moments, pa.timestamp("us", tz=zone))).to_pylist() == texts


def test_milliseconds_keep_their_unit() -> None:
    stamps = pa.array([0, None, 1_700_000_000_123], pa.timestamp("ms"))
    assert to_rfc3339(stamps).to_pylist() == ["1970-01-01T00:00:00.000Z", None, "2023-11-14T22:13:20.123Z"]


def test_what_is_no_time_of_the_calendar_is_none() -> None:
    given = pa.array([-(2**62), 2**62, 253_402_300_800_000_000, 253_402_300_799_999_999], pa.timestamp("us", tz="UTC"))
    assert arrival_times(given).to_pylist() == [None, None, None, "9999-12-31T23:59:59.999999Z"]


# The array devices under the matcher, each against the plain Python it stands for.


KEYS = st.integers(-(1 << 62), 1 << 62)


def test_segments_under_a_null_are_none() -> None:
    # Arrow allows bytes under a null.
    column = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"a/bc/d"), pa.py_buffer(b"\x02")
    )
    assert SplitColumn(column).segments("/").counts.tolist() == [0, 2]


@given(st.lists(st.lists(KEYS, max_size=30), max_size=6))
def test_a_key_table_is_a_dictionary(batches: list[list[int]]) -> None:
    table, known = KeyTable(1000), dict[int, int]()
    for keys in batches:
        found = table.look_up(np.array(keys, np.int64), lambda key, _: key % 1000)
        known.update((key, key % 1000) for key in keys)
        assert found.tolist() == [key % 1000 for key in keys]
        again, met = table.probe(np.array([*known, 1 << 62], np.int64))
        assert met.tolist()[:-1] == [True] * len(known)
        assert again.tolist()[:-1] == list(known.values())


def test_a_key_table_past_its_limit_starts_anew_and_stays_right() -> None:
    table = KeyTable(500)
    for start in range(0, 4000, 250):
        keys = np.arange(start, start + 300)
        assert (table.look_up(keys, lambda key, _: -key) == -keys).all()


SOME_TEXTS = st.one_of(st.none(), st.text("ab/%ü", max_size=6), st.sampled_from(["a/b", "b/a", "a/", "/"]))


@given(st.lists(SOME_TEXTS, max_size=12), st.integers(0, 3))
def test_segments_are_those_of_split(texts: list[str | None], skipped: int) -> None:
    column = SplitColumn(pa.array(texts, pa.string())[skipped:])
    segments, kept = column.segments("/"), texts[skipped:]
    found = [
        None if not count else segments.entries.take(pa.array(start + 2 * np.arange(count))).to_pylist()
        for start, count in zip(segments.starts.tolist(), segments.counts.tolist(), strict=True)
    ]
    assert found == [None if text is None else text.split("/") for text in kept]
    assert segments.lengths.tolist() == [len(entry.encode()) for entry in segments.entries.to_pylist()]
    assert segments.has_empty or not any("" in text.split("/") for text in kept if text is not None)
    assert column.has_percent == any("%" in text for text in kept if text is not None)


@given(st.lists(st.lists(KEYS, max_size=4), min_size=1, max_size=5), st.data())
def test_ragged_lists_are_lists(lists: list[list[int]], data: st.DataObject) -> None:
    items = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    owners, values = Ragged(lists).expand(np.array(items, np.int64))
    wanted = [(place, value) for place, item in enumerate(items) for value in lists[item]]
    assert list(zip(owners.tolist(), values.tolist(), strict=True)) == wanted


# Classes of whole columns against the constraints they stand for, asked one value at a time.


VALUES = st.one_of(
    st.none(),
    st.text("ab./-", max_size=7),
    st.sampled_from(["a.b", "a/b", "a.b.a", "a/b/a", "a.b/a", "1", "1.0", "2024-02-29T00:00:00Z"]),
)
PLAIN_LITERALS = st.text("ab./-", max_size=3)


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Texts with placeholders between; a name never occurs twice, for that is not decided by classes."""
    parts = [draw(PLAIN_LITERALS)]
    for number in range(draw(st.integers(0, 3))):
        parts += ["{n" + str(number) + "}", draw(st.one_of(st.sampled_from(["/", ".", "", "-"]), PLAIN_LITERALS))]
    return "".join(parts)


CONSTRAINTS = st.one_of(
    st.builds(
        Constraint, st.just("literal"), st.sampled_from(["string", "number"]), st.sampled_from(["a", "a.b", "1"])
    ),
    st.builds(
        Constraint, st.sampled_from(["present", "optional"]), st.sampled_from(["string", "timestamp", "integer"])
    ),
    st.builds(
        Constraint, st.just("template"), st.sampled_from(["string", "timestamp"]), templates(), dots=st.booleans()
    ),
)


@given(st.lists(CONSTRAINTS, min_size=1, max_size=8, unique=True), st.lists(st.lists(VALUES, max_size=8), max_size=3))
def test_a_class_satisfies_what_each_of_its_values_does(
    constraints: list[Constraint], batches: list[list[str | None]]
) -> None:
    classes: PropertyClasses = pickle.loads(pickle.dumps(PropertyClasses(constraints)))
    for values in batches:
        numbers = classes.classify(SplitColumn(pa.array(values, pa.string()))).tolist()
        for value, number in zip(values, numbers, strict=True):
            satisfied = [each.satisfied(value, present=value is not None) for each in constraints]
            found = [bool(classes.bits[number] >> place & 1) for place in range(len(constraints))]
            assert found == satisfied, value
            assert classes.class_of([] if value is None else [value]) == number
