"""Timestamps: RFC 3339 in, UTC out; ordered by the instant and not by the text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(?:\.(\d{1,12}))?(?:([Zz])|([+-])(\d\d):(\d\d))?", re.ASCII
)


def moment_of(text: str) -> datetime | None:
    """Read a timestamp; one without a zone is UTC. None when it is none."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    day, minute, second, fraction, _, sign, hours, minutes = match.groups()
    try:
        instant = datetime.fromisoformat(f"{day}T{minute}:{'59' if second == '60' else second}+00:00")
        instant = instant.replace(microsecond=int((fraction or "0")[:6].ljust(6, "0")))
        if sign:
            if int(hours) > 23 or int(minutes) > 59:
                return None
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            instant = instant - offset if sign == "+" else instant + offset
    except (ValueError, OverflowError):
        return None
    return instant


def written(instant: datetime) -> str:
    """Write an instant in UTC, with as much of a fraction as it has."""
    text = instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    if instant.year < 1000:
        text = f"{instant.year:04d}{text[text.index('-') :]}"
    fraction = f".{instant.microsecond:06d}".rstrip("0") if instant.microsecond else ""
    return f"{text}{fraction}Z"


def normalized(text: str) -> str:
    """Write a timestamp that :func:`moment_of` reads in UTC."""
    instant = moment_of(text)
    assert instant is not None
    return written(instant)


def later(one: str, other: str) -> str:
    """Return the later of two timestamps in UTC; '' is before all others."""
    first, second = moment_of(one), moment_of(other)
    return other if second is not None and (first is None or first < second) else one


def now() -> str:
    """Return the present instant."""
    return written(datetime.now(UTC))
