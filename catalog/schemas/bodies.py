"""What a content type says of a body, and how a fault is put in words, for every family of schemas that is not JSON."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from catalog.schemas.contract import SchemaFault
from catalog.values import media_type_of


class UnfitValue:
    """Stands for a value of a body that its column cannot have; ``why`` says so, ``raw`` is what may stand in texts.

    Nothing takes it for a value: no dataclass, so that no library writes one as an object.
    """

    __slots__ = ("raw", "why")

    def __init__(self, why: str, raw: int | None = None) -> None:
        self.why = why
        self.raw = raw


MAX_MESSAGE: Final = 300
"""Characters of a fault's message and of its path: both go into headers and listings."""
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]+")


def is_json(content_type: str | None) -> bool:
    """Tell whether a content type names JSON: ``application/json``, ``text/json``, ``application/vnd.x+json``."""
    return media_type_of(content_type).endswith(("/json", "+json"))


def holds_json(content_type: str | None) -> bool:
    """Tell whether data of a content type is JSON; of none at all it is, as the CloudEvents JSON format has it."""
    return content_type is None or is_json(content_type)


def looks_like_json(body: bytes) -> bool:
    """Tell whether a body without content type may be JSON: it begins as an object, an array or a string does."""
    return body.lstrip(b" \t\r\n")[:1] in (b"{", b"[", b'"')


def json_value(body: bytes, *, doubles: bool = False) -> Any:
    """Return the value of a JSON text, whatever its numbers are (JUDGING.md#data-schemas).

    A number that no double can hold is a Decimal, or with *doubles* an infinity.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is no JSON.
        RecursionError: it nests too deeply.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    number = float if doubles else _number
    try:
        return (_DOUBLES if doubles else _EXACT).decode(body)
    except msgspec.DecodeError as error:
        if "out of range" not in str(error):
            raise
    try:  # an integer of more digits than msgspec makes an integer of
        return json.loads(body.decode("utf-8"), parse_int=number, parse_float=number, parse_constant=_no_number)
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None


def _number(text: str) -> int | float | Decimal:
    number = float(text)
    if math.isfinite(number):
        return number if "." in text or "e" in text.lower() else int(text)
    # What libraries write out takes memory by its digits, and no schema has limits so far away.
    try:
        exact = Decimal(text) if len(text) <= _LONGEST else Decimal("Infinity")
    except InvalidOperation:  # an exponent of more than eighteen digits
        exact = Decimal("Infinity")
    if exact.is_finite() and exact.adjusted() <= _LONGEST:
        return exact
    return Decimal(f"{'-' if text.startswith('-') else ''}1e{_LONGEST}")


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_LONGEST: Final = 999
_EXACT: Final = msgspec.json.Decoder(float_hook=_number)
_DOUBLES: Final = msgspec.json.Decoder(float_hook=float)


def short(text: str) -> str:
    """Return a text of one line without control characters, cut to :data:`MAX_MESSAGE` characters."""
    line = _UNPRINTABLE.sub(" ", text[: 4 * MAX_MESSAGE]).strip()
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def fault(message: str, path: str = "") -> SchemaFault:
    """Return a fault whose texts are safe to hand on, whatever the body put into them."""
    return SchemaFault(short(path), short(message))
