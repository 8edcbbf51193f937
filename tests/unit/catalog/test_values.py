"""Property types: what is valid, what is equal, and that nothing takes longer than its length."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.values import (
    canonical,
    instant,
    is_any_timestamp,
    is_timestamp,
    is_valid,
    media_type_matches,
    percent_decode,
    percent_encode,
    text_of,
)

VALID = {
    "boolean": (["true", "false"], ["True", "1", ""]),
    "integer": (["0", "-7", "99999999999"], ["1.0", "+1", "01", "", "1\n", "\u0661"]),
    "number": (["1", "-1.5", "1e3", "1E-9"], ["NaN", ".5", "1.", "0x1", "1\n"]),
    "duration": (["P1Y", "P1DT1H", "PT1.5S", "P2W"], ["P", "PT", "P1DT", "1D", "P1D\n"]),
    "symbol": (["a/b;c=1", "x_1"], ["a b", "é", "a\n"]),
    "binary": (["", "AAEC", "AA==", "AAE="], ["A", "A===", "AA=", "AA==\n", "A-_A"]),
    "timestamp": (
        ["2024-02-29T00:00:00Z", "2016-12-31t23:59:60.123456789+01:00", "0000-01-01T00:00:00Z"],
        [
            "2023-02-29T00:00:00Z",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-13-01T00:00:00Z",
            "2026-01-02T24:00:00Z",
            "2026-01-02T03:04:05Z\n",
            "yesterday",
        ],
    ),
    "urireference": (
        ["", "a/b:c", "//h", "http://[::1]:8/a?b#c", "urn:x:y", "%41"],
        ["1a:b", "a b", "a%2", "a#b#c", "é", "{x}", "a\n"],
    ),
    "string": (["", "any\nthing"], []),
    "any": (["", "any\nthing"], []),
}


@pytest.mark.parametrize("kind", VALID)
def test_validity(kind: str) -> None:
    good, bad = VALID[kind]
    assert [text for text in good if not is_valid(kind, text)] == []
    assert [text for text in bad if is_valid(kind, text)] == []


def test_integers_of_cloudevents_have_32_bits() -> None:
    assert is_valid("integer", "-2147483648", bits32=True)
    assert not is_valid("integer", "2147483648", bits32=True)
    assert not is_valid("integer", "9" * 100_000, bits32=True)


def test_equality_is_of_the_type() -> None:
    assert canonical("number", "1") == canonical("number", 1.0) == canonical("number", "1.00e0")
    assert canonical("number", "9007199254740993") != canonical("number", "9007199254740992")
    assert canonical("timestamp", "2026-01-02T03:04:05.10Z") == canonical("timestamp", "2026-01-02t04:04:05.1+01:00")
    assert canonical("boolean", True) == canonical("boolean", "true")
    assert canonical("string", "A") != canonical("string", "a")
    assert canonical("integer", "x") is canonical("boolean", "yes") is canonical("timestamp", "now") is None


@pytest.mark.parametrize("value", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00", "0001-01-01T00:00:00.000+00:00"])
def test_any_timestamp(value: str) -> None:
    assert is_any_timestamp(value)
    assert not is_any_timestamp("0001-01-01T00:00:01Z")


@given(st.datetimes(min_value=datetime(1, 1, 2), timezones=st.just(UTC)))
def test_instants_agree_with_datetime(moment: datetime) -> None:
    assert is_timestamp(moment.isoformat())
    assert instant(moment.isoformat()) == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // (moment.resolution) * 1000


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
    assert [text_of(v) for v in (True, 1, 1.5, "x", None, {"a": [1]})] == ["true", "1", "1.5", "x", "", '{"a":[1]}']


@pytest.mark.parametrize("kind", sorted(VALID))
@pytest.mark.parametrize(
    "text", ["1" * 500_000 + "!", "http://" + "a:" * 250_000 + "{", "P" + "1" * 500_000, "%41" * 150_000 + "%"]
)
def test_hostile_texts_take_linear_time(kind: str, text: str) -> None:
    started = time.perf_counter()
    is_valid(kind, text)
    assert time.perf_counter() - started < 1.0
