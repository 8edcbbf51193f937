"""The detail of a refused record names the sinks that lack it, whatever they are called and whatever they said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.writing.kafka_records import MAX_HEADER_CHARS
from router.writing.outcomes import format_detail, parse_sinks

NAMES = st.text(alphabet="ab-_.:;% ", min_size=1, max_size=12)
REASONS = st.one_of(st.text(max_size=40), st.just("no; sink other: never"), st.just("x" * 6_000))


@given(st.dictionaries(NAMES, REASONS, min_size=1, max_size=12))
def test_names_are_read_back_and_fit_into_a_header(reasons: dict[str, str]) -> None:
    detail = format_detail(reasons)
    assert parse_sinks(detail) == tuple(reasons)
    assert len(detail) <= MAX_HEADER_CHARS


def test_other_details_name_no_sink() -> None:
    assert parse_sinks("70000 bytes of key and data; a sink of its route accepts 67232") == ()
    assert parse_sinks("") == ()
