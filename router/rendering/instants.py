"""Instants of a whole array: read from RFC 3339, with the exact reading for what is written unusually."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bindings.entries import Bool, Int
from catalog.values import YEAR_1, YEAR_10000, instant
from router.rendering.texts import Bytes, data_of

INSTANT: Final = pa.timestamp("us", tz="UTC")
_SHORTEST: Final = len("2026-01-02T03:04:05Z")
_LONGEST: Final = len("2026-01-02T03:04:05.123456789+00:00")
_ZONE: Final = len("+00:00")
_SEPARATORS: Final = ((4, "--"), (7, "--"), (10, "Tt"), (13, "::"), (16, "::"))
_DIGITS: Final = [at for at in range(19) if at not in (4, 7, 10, 13, 16)]
_SECOND: Final = 1_000_000
_MONTHS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def moment(text: str | None) -> int | None:
    """Return an event's time in microseconds since 1970; None for one outside of the years 1 to 9999.

    RFC 3339 has a year 0, and offsets and leap seconds reach past 9999; readers of tables know neither.
    """
    nanoseconds = instant(text) if text is not None else None
    if nanoseconds is None:
        return None
    return nanoseconds // 1000 if YEAR_1 <= nanoseconds // 1_000_000 < YEAR_10000 else None


def moments(texts: pa.StringArray) -> pa.TimestampArray:
    """Return what :func:`moment` says of each text, as instants."""
    data, places = data_of(texts)
    lengths = np.diff(places)
    known = texts.is_valid().to_numpy(zero_copy_only=False)
    micros = np.zeros(len(texts), np.int64)
    read = np.zeros(len(texts), bool)
    for length in np.unique(lengths[known]).tolist():
        if _SHORTEST <= length <= _LONGEST:
            rows = np.flatnonzero((lengths == length) & known)
            read[rows], micros[rows] = _written_plainly(data[places[rows][:, None] + np.arange(length)])
    rest = np.flatnonzero(known & ~read)
    for row in rest.tolist():
        exact = moment(texts[row].as_py())
        read[row] = exact is not None
        micros[row] = exact or 0
    return pa.array(micros, pa.int64(), mask=~read).view(INSTANT)


def instant_texts(instants: pa.TimestampArray) -> pa.StringArray:
    """Write instants of the years 1 to 9999 as RFC 3339 in UTC, with as few digits as hold them; null stays null."""
    # Without its zone, Arrow writes an instant with a blank for the "T" and always six digits.
    texts = instants.view(pa.int64()).view(pa.timestamp("us")).cast(pa.string())
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
    return pc.binary_join_element_wise(pc.binary_replace_slice(trimmed, 10, 11, "T"), "Z", "")


def _written_plainly(letters: Bytes) -> tuple[Bool, Int]:
    """Return which of these texts, of one length, are ordinary instants of the calendar, and their microseconds."""
    zulu = (letters[:, -1] | 0x20) == ord("z")
    if zulu.all():
        return _within(letters[:, :-1], None)
    read, micros = np.zeros(len(letters), bool), np.zeros(len(letters), np.int64)
    read[zulu], micros[zulu] = _within(letters[zulu, :-1], None)
    if letters.shape[1] >= _SHORTEST - 1 + _ZONE:
        read[~zulu], micros[~zulu] = _within(letters[~zulu, :-_ZONE], letters[~zulu, -_ZONE:])
    return read, micros


def _within(letters: Bytes, zone: Bytes | None) -> tuple[Bool, Int]:
    width = letters.shape[1]
    # Letters below "0" become large numbers, which are no digits.
    digits = (letters - np.uint8(ord("0"))).astype(np.int64)
    good = (digits[:, _DIGITS] <= 9).all(axis=1)
    for at, either in _SEPARATORS:
        good &= (letters[:, at] == ord(either[0])) | (letters[:, at] == ord(either[1]))
    fraction = np.zeros(len(letters), np.int64)
    if width > 19:
        good &= (letters[:, 19] == ord(".")) & (digits[:, 20:] <= 9).all(axis=1) & (width > 20)
        for place, at in enumerate(range(20, min(width, 26))):
            fraction += digits[:, at] * 10 ** (5 - place)
    year, month, day = _number(digits, 0, 4), _number(digits, 5, 7), _number(digits, 8, 10)
    hour, minute, second = (_number(digits, at, at + 2) for at in (11, 14, 17))
    leap = (month == 2) & (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good &= (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (second <= 59)
    good &= (day >= 1) & (day <= _MONTHS[np.where(good, month, 0)] + leap)
    seconds = _days(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    if zone is not None:
        fits, shift = _offset(zone)
        good, seconds = good & fits, seconds - shift
    good &= (seconds >= YEAR_1 // 1000) & (seconds < YEAR_10000 // 1000)
    return good, seconds * _SECOND + fraction


def _offset(zone: Bytes) -> tuple[Bool, Int]:
    """Return which of these texts are an offset such as ``+01:00``, and its seconds."""
    digits = (zone - np.uint8(ord("0"))).astype(np.int64)
    hour, minute = _number(digits, 1, 3), _number(digits, 4, 6)
    minus = zone[:, 0] == ord("-")
    fits = (minus | (zone[:, 0] == ord("+"))) & (zone[:, 3] == ord(":"))
    fits &= (digits[:, [1, 2, 4, 5]] <= 9).all(axis=1) & (hour <= 23) & (minute <= 59)
    return fits, np.where(minus, -1, 1) * (hour * 3600 + minute * 60)


def _number(digits: Int, begin: int, end: int) -> Int:
    number = digits[:, begin]
    for at in range(begin + 1, end):
        number = number * 10 + digits[:, at]
    return number


def _days(year: Int, month: Int, day: Int) -> Int:
    """Return days since 1970-01-01 in the Gregorian calendar, as ``catalog.values`` counts them."""
    year, month = np.where(month <= 2, year - 1, year), np.where(month <= 2, month + 12, month)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469
