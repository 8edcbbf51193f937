"""Events as the SDK has them, for Python callers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from cloudevents.core.exceptions import CloudEventValidationError

from bindings.cloudevents import to_cloudevent

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
