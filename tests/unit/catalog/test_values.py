"""Property types: what is valid, what is equal (tests/cases/values), and that all takes time by length."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.protocols.properties import TYPES
from catalog.values import (
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    parse_timestamp,
    percent_decode,
    percent_encode,
    to_text,
    value_key,
)
from tests.support.cases import read_cases
from tests.support.watched import LINEAR, growth

TABLES: Final[dict[str, dict[str, Any]]] = read_cases(Path(__file__).parents[2] / "cases" / "values" / "types.yaml")


def test_all_types_have_tables() -> None:
    assert TABLES.keys() == TYPES


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_validity(kind: str) -> None:
    table = TABLES[kind]
    assert [text for text in table["valid"] if not is_valid(kind, text)] == []
    assert [text for text in table["invalid"] if is_valid(kind, text)] == []


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_equality(kind: str) -> None:
    table = TABLES[kind]
    assert [pair for pair in table["equal"] if value_key(kind, pair[0]) != value_key(kind, pair[1])] == []
    assert [pair for pair in table["different"] if value_key(kind, pair[0]) == value_key(kind, pair[1])] == []
    assert all(value_key(kind, value) is not None for pair in (*table["equal"], *table["different"]) for value in pair)
    assert all(value_key(kind, text) is None for text in table["invalid"])


def test_integers_of_cloudevents_have_32_bits() -> None:
    assert is_valid("integer", "-2147483648", bits32=True)
    assert not is_valid("integer", "2147483648", bits32=True)
    assert not is_valid("integer", "9" * 100_000, bits32=True)


@pytest.mark.parametrize("value", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00", "0001-01-01T00:00:00.000+00:00"])
def test_any_timestamp(value: str) -> None:
    assert is_any_timestamp(value)
    assert not is_any_timestamp("0001-01-01T00:00:01Z")


@given(st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)))
def test_instants_agree_with_datetime(moment: datetime) -> None:
    assert is_timestamp(moment.isoformat())
    assert (
        parse_timestamp(moment.isoformat()) == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (moment.resolution) * 1000
    )


@pytest.mark.parametrize(
    ("declared", "found", "fits"),
    [
        ("application/json", "Application/JSON; charset=utf-8", True),
        ("text/plain; charset=utf-8", 'TEXT/Plain;x="a;b" ; CharSet="UTF\\-8"', True),
        ("text/plain; charset=utf-8", "text/plain", False),
        ("text/plain", "text/html", False),
    ],
)
def test_media_types(declared: str, found: str, fits: bool) -> None:
    assert media_type_matches(declared, found) is fits


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_percent_encoding_round_trip(text: str) -> None:
    assert percent_decode(percent_encode(text)) == text
    assert percent_encode(text) == quote(text, safe="-._~")


@pytest.mark.parametrize("text", ["%", "a%2", "%zz%41", "%ff", "%C3", "%ed%a0%80"])
def test_malformed_escapes_stay(text: str) -> None:
    assert percent_decode(text) == text


def test_text_forms() -> None:
    assert [to_text(v) for v in (True, 1, 1.5, "x", None, {"a": [1]})] == ["true", "1", "1.5", "x", "", '{"a":[1]}']


whole_numbers = st.integers(min_value=-(10**290), max_value=10**290)


@given(whole_numbers, st.integers(min_value=0, max_value=60))
def test_numbers_are_equal_however_they_are_written(value: int, shift: int) -> None:
    written = f"{value}{'0' * shift}e-{shift}"
    assert value_key("number", written) == value_key("number", value)


@given(st.text(), st.sampled_from(sorted(TYPES)))
def test_any_text_is_judged(text: str, kind: str) -> None:
    assert is_valid(kind, text) == (value_key(kind, text) is not None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(TYPES - {"any", "string"}))
@pytest.mark.parametrize("unit", ["1", "a:", "http://a:", "%41", "P1", "A=", "-", "//"])
def test_hostile_texts_take_linear_time(kind: str, unit: str) -> None:
    def judging(size: int) -> Callable[[], object]:
        text = unit * size
        return lambda: (is_valid(kind, f"{text}!"), is_valid(kind, f"P{text}"), value_key(kind, f"h://{text}%"))

    assert growth(judging, 4_000) < LINEAR


@pytest.mark.parametrize("unit", [";", ";a=", ';a="', ';a="\\', " ;", "a/b;c=d"])
def test_hostile_media_types_take_linear_time(unit: str) -> None:
    def comparing(size: int) -> Callable[[], object]:
        text = unit * size
        return lambda: media_type_matches("text/plain", f"text/plain{text}")

    assert growth(comparing, 2_000) < LINEAR
