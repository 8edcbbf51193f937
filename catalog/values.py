"""Property types (MATCHING.md#property-types): validity, comparison and text form of values.

Every function here is called per record or per distinct value, so all run in linear time on any text: regular
expressions are possessive (no backtracking) and use ``fullmatch``, since ``$`` would allow a final newline.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Hashable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
NOW: Final = "0000-01-01T00:00:00Z"
"""The 1.0 spelling of the timestamp that means "now" to a producer; :func:`is_any_timestamp` knows all spellings."""
YEAR_1: Final = -62_135_596_800_000
YEAR_10000: Final = 253_402_300_800_000
"""Milliseconds since 1970 of the first and after the last supported date."""
_CACHED_TEXT: Final = 256
"""Maximum length of cached texts, so that hostile values cannot fill the memory."""
_NANOSECONDS: Final = 1_000_000_000
_DAYS_IN_MONTH: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_INTEGER: Final = re.compile(r"-?+(?:0|[1-9][0-9]*+)", re.ASCII)
_NUMBER: Final = re.compile(r"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+", re.ASCII)
_SYMBOL: Final = re.compile(r"[\x21-\x7e]*+")
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?+")
_DURATION: Final = re.compile(
    r"P(?=[0-9T])(?:[0-9]++W|(?:[0-9]++Y)?+(?:[0-9]++M)?+(?:[0-9]++D)?+"
    r"(?:T(?=[0-9])(?:[0-9]++H)?+(?:[0-9]++M)?+(?:[0-9]++(?:\.[0-9]++)?+S)?+)?+)",
    re.ASCII,
)
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]++))?+"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_ANY_TIMESTAMP: Final = re.compile(r"000[01]-01-01[Tt]00:00:00(?:\.0++)?+(?:[Zz]|[+-]00:00)?+")
_OLD_NOW: Final = re.compile(r"01-01-0000[Tt]00:00:00(?:\.0++)?+(?:[Zz]|[+-]00:00)?+")
_MALFORMED_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# RFC 3986 appendix A. A reference without scheme must not have a colon in its first segment.
_ESCAPE: Final = "%[0-9A-Fa-f]{2}"
_NAME: Final = r"A-Za-z0-9\-._~!$&'()*+,;="
_AUTHORITY: Final = (
    rf"//(?:(?:[{_NAME}:]|{_ESCAPE})*+@)?(?:\[[0-9A-Fa-fvV:.{_NAME}]++\]|(?:[{_NAME}]|{_ESCAPE})*+)"
    r"(?::[0-9]*+)?+(?=[/?#]|\Z)"
)
_PATH: Final = rf"(?:[{_NAME}:@/]|{_ESCAPE})*+"
_REFERENCE: Final = re.compile(
    rf"(?:(?:[A-Za-z][A-Za-z0-9+.\-]*+:)?+(?:{_AUTHORITY}{_PATH}|(?!//){_PATH})"
    rf")(?:\?(?:[{_NAME}:@/?]|{_ESCAPE})*+)?+(?:\#(?:[{_NAME}:@/?]|{_ESCAPE})*+)?+"
)
_COLON_FIRST: Final = re.compile(r"(?![A-Za-z][A-Za-z0-9+.\-]*+:)[^/?#:]*+:")
_PARAMETER: Final = re.compile(r'\s*+;\s*+([^\s;="]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^;"]*+))', re.DOTALL)


class WrittenNumber:
    """A number with an unusual notation in its document: ``text`` is as written.

    It is used as a number or as its text, depending on the type of a property. Copies and pickles are plain numbers.
    """

    text: str

    def __reduce__(self) -> tuple[Callable[[Any], object], tuple[object]]:
        return plain_number, (plain_number(self),)


class WrittenInt(WrittenNumber, int):
    """A whole number such as ``0123``."""


class WrittenFloat(WrittenNumber, float):
    """A number such as ``1.10`` or ``1e3``."""


def with_written_text(value: int | float, text: str) -> int | float:
    """Return a number that keeps *text*, if its default notation differs."""
    if repr(value) == text:
        return value
    kept: WrittenInt | WrittenFloat = WrittenInt(value) if isinstance(value, int) else WrittenFloat(value)
    kept.text = text
    return kept


def is_number(value: object) -> bool:
    """Whether a value is a number; a boolean is not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain_number(value: Any) -> Any:
    """Return a number without its written text; any other value unchanged."""
    if isinstance(value, WrittenNumber):
        return int(value) if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    return value


def to_text(value: object) -> str:
    """Return the text form in which values are compared: ``true``/``false``, shortest numbers, text as it is.

    Numbers with a written text return it. Lists and maps return compact JSON, None the empty text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return value.text if isinstance(value, WrittenNumber) else repr(value)
    if value is None:
        return ""
    return msgspec.json.encode(value, enc_hook=plain_number).decode("utf-8")


def parse_whole_number(text: str | bytes, most: int = INT64_MAX) -> int | None:
    """Parse ASCII digits as a number; None for any other text, and for a number above *most*.

    ``str.isdigit`` accepts digits that ``int`` does not, and ``int`` accepts blanks, underscores and unlimited digits.
    """
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def media_type_of(content_type: str | None) -> str:
    """Return the media type of a content type: without parameters and HTTP whitespace, in lower-case ASCII.

    Empty if there is none. Only ASCII is lower-cased: Unicode lower case would turn other types into JSON.
    """
    media = (content_type or "").partition(";")[0].strip(" \t")
    return media.lower() if media.isascii() else media


def is_valid(type: str, text: str, *, bits32: bool = False) -> bool:
    """Whether *text* is valid for the property type (MATCHING.md#property-types).

    ``bits32`` limits ``integer`` to 32 bit signed, as for CloudEvents attributes. Types unknown to the specifications
    constrain nothing.
    """
    check = _IS_VALID.get(type)
    if check is None:
        return True
    if bits32 and type == "integer":
        return check(text) and len(text) <= 11 and INT32_MIN <= int(text) <= INT32_MAX
    return check(text)


def value_key(type: str, value: object) -> Hashable | None:
    """Return a key that is equal for equal values of *type*; None if the value is not valid for it.

    Numbers compare by exact value, timestamps as instants (nanoseconds since 1970), booleans as such, binary as the
    decoded bytes, media and all other types as their exact text.
    """
    text = to_text(value)
    if type in ("number", "integer"):
        if not is_valid(type, text):
            return None
        try:
            return Decimal(text)
        except InvalidOperation:
            return None  # an exponent of more than eighteen digits
    if type == "boolean":
        return {"true": True, "false": False}.get(text)
    if type == "timestamp":
        return parse_timestamp(text)
    if type == "binary":
        return _decode_base64(text)
    return text if is_valid(type, text) else None


def decode_binary(text: str) -> bytes:
    """Return the bytes of a declared value of type ``binary`` (MATCHING.md#constraints).

    It is base64; any other text, which lint reports, is encoded as UTF-8.
    """
    decoded = _decode_base64(text)
    return text.encode("utf-8", "surrogatepass") if decoded is None else decoded


def is_timestamp(text: str) -> bool:
    """Whether *text* is an RFC 3339 date-time with an offset; a leap second is allowed at any minute."""
    return parse_timestamp(text) is not None


def parse_timestamp(text: str) -> int | None:
    """Parse an RFC 3339 date-time to nanoseconds since 1970; None if it is not one.

    Years are 0000 to 9999; digits beyond nanoseconds are cut; second 60 is the first of the next minute.
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.group(1, 2, 3, 4, 5, 6))
    fraction, sign, offset_hour, offset_minute = match.group(7, 8, 9, 10)
    if not 1 <= month <= 12 or not 1 <= day <= _days_in_month(year, month) or hour > 23 or minute > 59 or second > 60:
        return None
    seconds = _days_since_1970(year, month, day) * 86400 + hour * 3600 + minute * 60 + second
    if sign:
        if int(offset_hour) > 23 or int(offset_minute) > 59:
            return None
        offset = int(offset_hour) * 3600 + int(offset_minute) * 60
        seconds += offset if sign == "-" else -offset
    return seconds * _NANOSECONDS + (int(fraction[:9].ljust(9, "0")) if fraction else 0)


def is_any_timestamp(value: object) -> bool:
    """Whether a declared value means "now" to a producer and any timestamp to a matcher."""
    return isinstance(value, str) and (_ANY_TIMESTAMP.fullmatch(value) is not None or is_old_now(value))


def is_old_now(value: object) -> bool:
    """Whether a value is the "now" of dialects before 1.0, not an RFC 3339 timestamp; :data:`NOW` replaces it."""
    return isinstance(value, str) and _OLD_NOW.fullmatch(value) is not None


def media_type_matches(declared: str, actual: str) -> bool:
    """Compare media types without regard to case; *actual* may have parameters that *declared* does not name."""
    if declared == actual:
        return True
    wanted, wanted_parameters = _media_type(declared)
    name, parameters = _media_type(actual)
    return wanted == name and wanted_parameters.items() <= parameters.items()


def percent_decode(text: str) -> str:
    """Decode percent sequences; a value with a malformed or non-UTF-8 sequence is returned unchanged."""
    decoded = percent_decoded(text)
    return text if decoded is None else decoded


def percent_decoded(text: str) -> str | None:
    """Decode percent sequences; return a malformed value unchanged, and None if it is not UTF-8."""
    if "%" not in text or _MALFORMED_ESCAPE.search(text):
        return text
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeError:
        return None


def percent_encode(text: str) -> str:
    """Percent-encode all except unreserved characters, as in RFC 6570 level 1 expansion."""
    return quote(text, safe="", errors="surrogatepass")


def _decode_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text; None for any other text."""
    return base64.b64decode(text) if is_valid("binary", text) else None


def _is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None and _COLON_FIRST.match(text) is None


def _days_in_month(year: int, month: int) -> int:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _DAYS_IN_MONTH[month - 1]


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the Gregorian calendar; ``datetime`` does not support year 0."""
    if month <= 2:
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469


def _media_type(text: str) -> tuple[str, dict[str, str]]:
    return _cached_media_type(text) if len(text) <= _CACHED_TEXT else _parse_media_type(text)


def _parse_media_type(text: str) -> tuple[str, dict[str, str]]:
    end = text.find(";")
    if end < 0:
        return media_type_of(text), {}
    parameters: dict[str, str] = {}
    for match in _PARAMETER.finditer(text, end):
        name, quoted, plain = match.group(1, 2, 3)
        value = plain.strip(" \t") if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        parameters.setdefault(name.lower(), value.lower())
    return media_type_of(text[:end]), parameters


_cached_media_type: Final = lru_cache(maxsize=4096)(_parse_media_type)


def _matcher_of(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


_IS_VALID: Final[dict[str, Callable[[str], bool]]] = {
    "binary": _matcher_of(_BASE64),
    "boolean": lambda text: text in ("true", "false"),
    "duration": _matcher_of(_DURATION),
    "integer": _matcher_of(_INTEGER),
    "number": _matcher_of(_NUMBER),
    "symbol": _matcher_of(_SYMBOL),
    "timestamp": is_timestamp,
    "uri": _is_reference,
    "urireference": _is_reference,
    "uritemplate": _is_reference,
}
"""``any`` and ``string`` accept every text and so are not listed."""


def is_websocket_address(address: str) -> bool:
    """Whether an address is a WebSocket address (RFC 6455)."""
    return address.strip().lower().startswith(("ws://", "wss://"))
