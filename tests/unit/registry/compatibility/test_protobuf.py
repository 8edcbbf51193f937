"""Compatibility of Protobuf schemas: cases as data, and no message that refutes what is called readable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from catalog.schemas.contract import EmptyLibrary, SchemaSource
from catalog.schemas.protobuf.validating import open_message
from registry.compatibility.schemas import Budget, Undecided, find_protobuf_gap, parse_messages
from tests.support.cases import examples

FILE = Path(__file__).parents[3] / "cases" / "compatibility" / "protobuf.yaml"
CASES = yaml.safe_load(FILE.read_text("utf-8"))
WORDS = {True: "yes", False: "no", "unknown": "unknown"}


def source(text: str) -> SchemaSource:
    return SchemaSource("Protobuf", "", text)


def fault(reader: str, writer: str) -> str:
    return find_protobuf_gap(parse_messages(source(reader)), parse_messages(source(writer)), Budget())


def verdict(reader: str, writer: str) -> str:
    try:
        return "no" if fault(reader, writer) else "yes"
    except Undecided:
        return "unknown"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    assert verdict(case["newer"], case["older"]) == WORDS[case["backward"]]
    assert verdict(case["older"], case["newer"]) == WORDS[case["forward"]]


def test_a_fault_names_the_field_and_both_types() -> None:
    older, newer = (f'syntax = "proto3"; package p; message M {{ {kind} a = 1; }}' for kind in ("int64", "int32"))
    assert fault(newer, older) == "p.M.a: int64 cannot be read as int32"


@pytest.mark.slow
@pytest.mark.parametrize(("messages", "fields"), [(103, 300), (400, 2)])
def test_comparing_ends_soon(messages: int, fields: int) -> None:
    def circle(length: int) -> str:
        """Return messages of many fields, the first of which lead round in a circle."""
        more = " ".join(f"int32 f{n} = {n};" for n in range(2, fields + 1))
        inner = (f"message M{n} {{ M{n + 1 if n + 1 < length else 0} next = 1; {more} }}" for n in range(messages))
        return 'syntax = "proto3"; ' + " ".join(inner)

    assert not fault(circle(messages), circle(messages))
    reader, writer = (parse_messages(source(circle(length))) for length in (messages - 2, messages))
    before = time.process_time()
    with pytest.raises(Undecided, match="too large to compare"):
        find_protobuf_gap(reader, writer, Budget())
    assert time.process_time() - before < 5


KINDS = (
    *("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "sfixed64", "bool", "string", "bytes"),
    *("float", "double", "E"),
)
NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, -(2**63), 2**63 - 1, 2**64 - 1)
FIELD = st.tuples(st.sampled_from(KINDS), st.sampled_from(["", "", "optional ", "repeated "]))
SHAPE = st.dictionaries(st.integers(1, 3), FIELD, min_size=1)


def text_of(shape: dict[int, tuple[str, str]]) -> str:
    fields = " ".join(f"{label}{kind} f{number} = {number};" for number, (kind, label) in shape.items())
    return f'syntax = "proto3"; message M {{ {fields} }} enum E {{ A = 0; B = 1; }}'


def values(kind: str) -> list[Any]:
    if kind == "bool":
        return [False, True]
    if kind == "string":
        return ["", "a", "\u00e9"]
    if kind == "bytes":
        return [b"", b"a", b"\xff"]
    if kind in ("float", "double"):
        return [0.0, 0.5, -2.0]
    return list(NUMBERS)


def written(message: Any, kind: str, label: str, name: str, chosen: list[int]) -> None:
    """Set a field to some of the values that its type has."""
    fitting: list[Any] = []
    for value in values(kind):
        try:
            if label == "repeated ":
                getattr(type(message)(), name).append(value)
            else:
                setattr(type(message)(), name, value)
            fitting.append(value)
        except (ValueError, TypeError):
            pass
    picked = [fitting[each % len(fitting)] for each in chosen]
    if label == "repeated ":
        getattr(message, name).extend(picked)
    elif picked:
        setattr(message, name, picked[0])


def plain(message: Any, name: str) -> list[Any]:
    """Return what a field has, as a list without the zero of what was not written."""
    value = getattr(message, name)
    several = list(value) if message.DESCRIPTOR.fields_by_name[name].is_repeated else [value] if value else []
    return [each.encode() if isinstance(each, str) else each for each in several]


@pytest.mark.slow
@hypothesis.settings(max_examples=examples(200), deadline=None)
@hypothesis.given(SHAPE, SHAPE, st.lists(st.integers(0, 20), max_size=3))
def test_what_is_called_readable_is_read_as_it_was_written(
    one: dict[int, tuple[str, str]], other: dict[int, tuple[str, str]], chosen: list[int]
) -> None:
    reader, writer = text_of(one), text_of(other)
    if verdict(reader, writer) != "yes":
        return
    message = open_message(source(writer), EmptyLibrary()).message()
    for number, (kind, label) in other.items():
        written(message, kind, label, f"f{number}", chosen)
    validator = open_message(source(reader), EmptyLibrary())
    body = message.SerializeToString()
    assert validator.fault(body, None) is None
    again = validator.message.FromString(body)
    for number in one.keys() & other.keys():
        before, after = plain(message, f"f{number}"), plain(again, f"f{number}")
        assert after in (before, [each for each in before if each])
