"""Instants of whole columns as RFC 3339 text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from router.matching.inbox_columns import arrival_times, to_rfc3339

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
